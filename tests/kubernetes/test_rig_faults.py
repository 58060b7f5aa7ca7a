"""The rig's proxy: every fault as a client sees it, and the counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import pytest_asyncio

from tests.support.kube import faults
from tests.support.kube.apiserver import KubeServer
from tests.support.kube.faultproxy import FaultProxy, Stream
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Event, PodList, Refused, Rest, pods_path

DEADLINE_S = 20.0
QUIET_S = 0.3
"""Long enough for an event to arrive that should not."""


@pytest_asyncio.fixture
async def user(fault_proxy: FaultProxy, kube_server: KubeServer) -> AsyncIterator[Rest]:
    """An administrator behind the proxy; ``kubelet`` goes straight to the server."""
    async with Rest(fault_proxy.url, kube_server.admin_token, timeout_s=2) as rest:
        yield rest


@asynccontextmanager
async def watching(user: Rest, kubelet: Kubelet) -> AsyncGenerator[AsyncGenerator[Event]]:
    """A watch from now on."""
    path = pods_path(kubelet.namespace)
    version = (await user.get_as(path, PodList)).metadata.resource_version
    async with asyncio.timeout(DEADLINE_S), user.watch(path, version) as events:
        yield events


def only_stream(proxy: FaultProxy) -> Stream:
    (stream,) = proxy.streams
    return stream


async def said(events: AsyncGenerator[Event], number: int) -> list[str]:
    """The next events, as "TYPE name"."""
    found = []
    for _ in range(number):
        event = await anext(events)
        found.append(f"{event.type} {event.pod.name}")
    return found


async def quiet(events: AsyncGenerator[Event]) -> bool:
    """True if nothing came for a while; the watch can't be used afterwards."""
    waiting = asyncio.ensure_future(anext(events))
    done, _ = await asyncio.wait({waiting}, timeout=QUIET_S)
    if done:
        return False
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return True


# --- no faults --------------------------------------------------------------------------------


async def test_without_faults_it_is_not_noticed_but_counts(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    behind = Kubelet(user, kubelet.namespace)
    async with watching(user, kubelet) as events:
        await behind.create("one", labels={"cluster": "a"})
        await behind.run("one")
        await behind.pods("cluster=a")
        await behind.delete("one", grace_s=0)
        # Bound, running, to be deleted.
        assert await said(events, 5) == ["ADDED one", *["MODIFIED one"] * 3, "DELETED one"]
    await user.delete(pods_path(kubelet.namespace), grace_s=0)
    assert fault_proxy.counts() == {
        ("list", "pods"): 2,
        ("watch", "pods"): 1,
        ("create", "pods"): 1,
        ("get", "pods"): 3,  # before and after it was bound
        ("create", "pods/binding"): 1,
        ("patch", "pods/status"): 1,
        ("delete", "pods"): 1,
        ("deletecollection", "pods"): 1,
    }
    assert fault_proxy.count("list") == 2
    assert fault_proxy.count(resource="pods/status") == 1
    listed = [seen for seen in fault_proxy.seen if seen.verb == "list"]
    assert [seen.query.get("labelSelector") for seen in listed] == [None, "cluster=a"]
    assert {seen.namespace for seen in fault_proxy.seen} == {kubelet.namespace}
    assert all(200 <= seen.status < 300 for seen in fault_proxy.seen)


async def test_a_refusal_of_the_server_comes_through(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    with pytest.raises(Refused) as caught:
        await Kubelet(user, kubelet.namespace).pod("none")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    assert fault_proxy.seen[0].status == 404


async def test_a_quiet_watch_is_open_at_once(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    async with watching(user, kubelet) as events:
        assert only_stream(fault_proxy).seen.resource == "pods"
        assert await quiet(events)


# --- requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        faults.gone(),
        faults.too_many_requests(7),
        faults.server_error(),
        faults.unavailable(),
        faults.quota_exceeded(),
        faults.unauthorized(),
    ],
    ids=lambda answer: str(answer.status),
)
async def test_answers(
    answer: faults.Answer, fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    rule = fault_proxy.inject(answer, verb="create", resource="pods")
    behind = Kubelet(user, kubelet.namespace)
    assert await behind.pods() == []  # another verb
    with pytest.raises(Refused) as caught:
        await behind.create("one")
    assert (caught.value.status, caught.value.reason) == (answer.status, answer.reason)
    assert caught.value.message == answer.message
    assert caught.value.retry_after == (None if answer.status != 429 else "7")
    assert await kubelet.pods() == []
    assert rule.hits == 1
    assert rule.hit.is_set()
    await behind.create("one")  # it was for one request


async def test_an_answer_can_hide_that_the_work_was_done(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    fault_proxy.inject(faults.gateway_timeout(), verb="create", skip=1)
    behind = Kubelet(user, kubelet.namespace)
    await behind.create("one")
    with pytest.raises(Refused, match="Timeout"):
        await behind.create("two")
    fault_proxy.inject(faults.Drop(carry_out=True), verb="create")
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await behind.create("three")
    assert [pod.name for pod in await kubelet.pods()] == ["one", "three", "two"]


async def test_delays_drops_and_answers_that_never_come(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    behind = Kubelet(user, kubelet.namespace)
    fault_proxy.inject(faults.Delay(0.3))
    began = time.monotonic()
    await behind.create("one")
    assert time.monotonic() - began >= 0.3
    fault_proxy.inject(faults.Drop(), verb="create")
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await behind.create("two")
    fault_proxy.inject(faults.Hang(), verb="create")
    with pytest.raises(TimeoutError):
        await behind.create("two")
    assert [pod.name for pod in await kubelet.pods()] == ["one"]


async def test_a_fault_holds_until_it_is_stopped(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    rule = fault_proxy.inject(faults.unavailable(), times=None)
    for _ in range(5):
        with pytest.raises(Refused, match="503"):
            await user.get(pods_path(kubelet.namespace))
    rule.stop()
    await user.get(pods_path(kubelet.namespace))
    assert rule.hits == 5


async def test_only_the_newest_token_is_taken(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet, kube_server: KubeServer
) -> None:
    fault_proxy.valid_tokens = {"another"}
    with pytest.raises(Refused, match="401"):
        await user.get(pods_path(kubelet.namespace))
    fault_proxy.valid_tokens.add(kube_server.admin_token)
    await user.get(pods_path(kubelet.namespace))


async def test_a_server_that_is_gone_and_comes_back(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    async with watching(user, kubelet) as events:
        await fault_proxy.refuse()
        with pytest.raises(aiohttp.ClientError):
            await anext(events)
    for _ in range(2):
        with pytest.raises(aiohttp.ClientConnectorError):
            await user.get(pods_path(kubelet.namespace))
    await fault_proxy.accept()
    await user.get(pods_path(kubelet.namespace))


# --- watches ----------------------------------------------------------------------------------


async def test_a_watch_is_refused_with_410(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    fault_proxy.inject(faults.gone(), verb="watch")
    with pytest.raises(Refused) as caught:
        async with watching(user, kubelet):
            pass
    assert caught.value.status == 410


@pytest.mark.parametrize("injected", [True, False])
async def test_a_watch_gets_an_error_event(
    injected: bool, fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    if injected:
        fault_proxy.inject(faults.ErrorEvent(after=1))
    async with watching(user, kubelet) as events:
        await kubelet.create("one")
        assert await said(events, 1) == ["ADDED one"]
        if not injected:
            await only_stream(fault_proxy).error()
        error = await anext(events)
        assert (error.type, error.refusal.code, error.refusal.reason) == ("ERROR", 410, "Expired")
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert fault_proxy.streams == []


async def test_a_watch_ends_empty(fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet) -> None:
    fault_proxy.inject(faults.EndStream(), times=2)
    for _ in range(2):
        async with watching(user, kubelet) as events:
            with pytest.raises(StopAsyncIteration):
                await anext(events)
    async with watching(user, kubelet) as events:
        await kubelet.create("one")
        assert await said(events, 1) == ["ADDED one"]
        await only_stream(fault_proxy).end()
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_a_watch_is_cut_within_an_event(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    fault_proxy.inject(faults.CutStream(after=1))
    async with watching(user, kubelet) as events:
        await kubelet.create("one")
        assert await said(events, 1) == ["ADDED one"]
        await kubelet.create("two")
        with pytest.raises(aiohttp.ClientPayloadError):
            await anext(events)


async def test_a_watch_is_cut_between_events(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    fault_proxy.inject(faults.CutStream(after=1, mid_event=False))
    async with watching(user, kubelet) as events:
        (stream,) = fault_proxy.streams
        await kubelet.create("one")
        # The client may lose the event too: aiohttp drops what it had not yet handed out.
        with pytest.raises(aiohttp.ClientPayloadError):
            await said(events, 2)
        assert len(stream.lines) == 1


async def test_a_watch_is_cut_by_hand(
    fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    async with watching(user, kubelet) as events:
        await kubelet.create("one")
        assert await said(events, 1) == ["ADDED one"]
        await only_stream(fault_proxy).cut()
        with pytest.raises(aiohttp.ClientPayloadError):
            await anext(events)


@pytest.mark.parametrize("injected", [True, False])
async def test_a_watch_falls_silent(
    injected: bool, fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet
) -> None:
    if injected:
        fault_proxy.inject(faults.Silence(after=1))
    async with watching(user, kubelet) as events:
        await kubelet.create("one")
        assert await said(events, 1) == ["ADDED one"]
        if not injected:
            only_stream(fault_proxy).silence()
        await kubelet.create("two")
        assert await quiet(events)
        assert len(fault_proxy.streams) == 1


async def test_events_come_twice(fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet) -> None:
    fault_proxy.inject(faults.Repeat())
    async with watching(user, kubelet) as events:
        await kubelet.create("one")
        await kubelet.create("two")
        assert await said(events, 4) == ["ADDED one", "ADDED one", "ADDED two", "ADDED two"]


async def test_old_events_come_again(fault_proxy: FaultProxy, user: Rest, kubelet: Kubelet) -> None:
    fault_proxy.inject(faults.Stale())
    async with watching(user, kubelet) as events:
        await kubelet.create("one")
        await kubelet.create("two")
        assert await said(events, 3) == ["ADDED one", "ADDED two", "ADDED one"]
        await only_stream(fault_proxy).replay()
        assert await said(events, 2) == ["ADDED one", "ADDED two"]
