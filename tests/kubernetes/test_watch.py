"""The watch over every way in which it can break: what happens is still heard of, nothing is
concluded wrongly, and nobody is asked more often than need be."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from schedulers.kubernetes import watch
from schedulers.kubernetes.scheduler import KubernetesScheduler
from tests.support.kube import faults
from tests.support.kube.automatic import Automatic
from tests.support.kube.clients import CLUSTER
from tests.support.kube.faultproxy import FaultProxy, Stream
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.scene import Scene, launcher_of, starts, states, until_states
from tests.support.waiting import until

SLOTS = 3


@pytest_asyncio.fixture
async def running(scene: Scene, kubelet: Kubelet) -> KubernetesScheduler:
    """Three workers, one a pod, that run on nodes played by hand."""
    scheduler = scene.scheduler(scene.config(task_slots=1))
    async with Automatic(kubelet):
        await scheduler.start_workers(starts(slots=SLOTS))
    await until(lambda: bool(scene.proxy.streams))
    return scheduler


def stream_of(proxy: FaultProxy) -> Stream:
    return proxy.streams[-1]


async def ends(scheduler: KubernetesScheduler, kubelet: Kubelet, code: int = 0) -> None:
    """One more pod ends, and the ledger hears of it."""
    over = ("finished", "failed")
    before = sum(state in over for state in states(scheduler))
    pods = [pod for pod in await kubelet.pods() if not pod.ended]
    await kubelet.end(pods[0].name, code)
    await until(lambda: sum(state in over for state in states(scheduler)) == before + 1)


FAULTS: list[tuple[str, faults.Fault]] = [
    ("410 as a status", faults.gone()),
    ("410 as an event", faults.ErrorEvent()),
    ("500 as an event", faults.ErrorEvent(500, "InternalError", "etcdserver: leader changed")),
    ("429", faults.too_many_requests(1)),
    ("500", faults.server_error()),
    ("503", faults.unavailable()),
    ("401", faults.unauthorized()),
    ("a version from the future", faults.gateway_timeout(carry_out=False)),
    ("dropped", faults.Drop()),
    ("ended and empty", faults.EndStream()),
    ("cut within an event", faults.CutStream()),
    ("cut between events", faults.CutStream(after=1, mid_event=False)),
    ("every event twice", faults.Repeat()),
    ("old events again", faults.Stale()),
]


@pytest.mark.parametrize("fault", [f for _, f in FAULTS], ids=[name for name, _ in FAULTS])
async def test_ends_are_heard_of_over_a_fault(
    fault: faults.Fault, running: KubernetesScheduler, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    rule = fault_proxy.inject(fault, verb="watch", times=2)
    await stream_of(fault_proxy).cut()
    await asyncio.wait_for(rule.hit.wait(), 10)
    for _ in range(SLOTS):
        await ends(running, kubelet)
    assert states(running) == ["finished"] * SLOTS
    assert launcher_of(running).watch.stats.faults == 0


STORMS: list[tuple[str, faults.Fault]] = [
    ("410", faults.gone()),
    ("410 as an event", faults.ErrorEvent()),
    ("429", faults.too_many_requests(0)),
    ("500", faults.server_error()),
    ("503", faults.unavailable()),
    ("401", faults.unauthorized()),
    ("dropped", faults.Drop()),
    ("ended and empty", faults.EndStream()),
]


@pytest.mark.parametrize("fault", [f for _, f in STORMS], ids=[name for name, _ in STORMS])
async def test_a_storm_is_met_with_patience(
    fault: faults.Fault, running: KubernetesScheduler, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    stats = launcher_of(running).watch.stats
    rule = fault_proxy.inject(fault, verb="watch", times=None)
    began, asked = asyncio.get_running_loop().time(), len(fault_proxy.seen)
    before = stats.failures
    await stream_of(fault_proxy).cut()
    await until(lambda: stats.failures - before >= 6)
    took_s = asyncio.get_running_loop().time() - began
    # Waits double from FIRST_PAUSE_S, each shortened by up to half.
    assert took_s > sum(0.5 * watch.FIRST_PAUSE_S * 2**n for n in range(5))
    # A list and a watch each; a connection that breaks is tried once more by aiohttp.
    assert len(fault_proxy.seen) - asked <= 3 * 6 + 4
    # Lists go through in between, and tell the same.
    await ends(running, kubelet)
    rule.stop()
    await ends(running, kubelet)


@pytest.mark.parametrize("silent_after", [0, 1])
async def test_a_silent_connection_is_given_up(
    silent_after: int, scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(watch, "SILENCE_S", 0.5)
    scheduler = scene.scheduler(scene.config(task_slots=1, watch_timeout_s=1, view_age_s=1.2))
    async with Automatic(kubelet):
        await scheduler.start_workers(starts(slots=2))
    rule = fault_proxy.inject(faults.Silence(silent_after), verb="watch", times=2)
    await asyncio.wait_for(rule.hit.wait(), 10)
    await ends(scheduler, kubelet)
    await ends(scheduler, kubelet)
    assert rule.hits == 2 or silent_after


async def test_readiness_fails_while_nothing_is_heard(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    scheduler = scene.scheduler(scene.config(watch_timeout_s=1, view_age_s=1.5))
    launcher = launcher_of(scheduler)
    await scheduler.start()
    assert launcher.failing() == ""
    await fault_proxy.refuse()
    await until(lambda: launcher.failing() != "")
    assert "nothing was heard of the pods for" in launcher.failing()
    await fault_proxy.accept()
    await until(lambda: launcher.failing() == "")


async def test_a_server_that_is_gone_concludes_nothing(
    running: KubernetesScheduler, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    watched = launcher_of(running).watch.stats
    await fault_proxy.refuse()
    failed = watched.failures
    await until(lambda: watched.failures >= failed + 4)
    assert states(running) == ["running"] * SLOTS
    # What happens meanwhile: one ends, one is deleted and goes.
    first, second, _ = [pod.name for pod in await kubelet.pods()]
    await kubelet.end(first, 3)
    await kubelet.delete(second, grace_s=5)
    await kubelet.confirm(second)
    await fault_proxy.accept()
    await until_states(running, "failed", "running", "lost")


async def test_pods_that_come_and_go_between_two_looks(
    running: KubernetesScheduler, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    """Nobody saw them go: they are lost, for nobody can prove how they ended."""
    await fault_proxy.refuse()
    for pod in await kubelet.pods():
        await kubelet.delete(pod.name, grace_s=0)
    await fault_proxy.accept()
    await until_states(running, *["lost"] * SLOTS)
    assert not any(w.gone for w in running.ledger.workers.values())


async def test_what_cannot_be_read_hides_nothing_else(
    running: KubernetesScheduler, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    stream = stream_of(fault_proxy)
    await stream.send(b'{"type":"MODIFIED","object":{"metadata":{"name":7}}}\n')
    await ends(running, kubelet)
    assert launcher_of(running).watch.stats.unreadable == 1


async def test_a_fault_of_our_own_does_not_end_the_watch(
    running: KubernetesScheduler, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = launcher_of(running)
    take, failed = launcher.view.take, asyncio.Event()

    def broken(*_: object, **__: object) -> None:
        failed.set()
        raise RuntimeError("made for this test")

    monkeypatch.setattr(launcher.view, "take", broken)
    first = (await kubelet.pods())[0].name
    await kubelet.end(first)
    await asyncio.wait_for(failed.wait(), 10)
    monkeypatch.setattr(launcher.view, "take", take)
    await until(lambda: states(running).count("finished") == 1)
    assert launcher.watch.stats.faults >= 1


async def test_little_is_asked_in_quiet(
    running: KubernetesScheduler, kubelet: Kubelet, scene: Scene, fault_proxy: FaultProxy
) -> None:
    """A watch is renewed when its time is over; one that said nothing is asked about. That is
    all."""
    await scene.leave(running)
    scheduler = scene.scheduler(scene.config(task_slots=1, watch_timeout_s=6, view_age_s=20))
    watches = fault_proxy.count("watch")
    await scheduler.start()
    await until(lambda: fault_proxy.count("watch") > watches)
    asked, began = len(fault_proxy.seen), asyncio.get_running_loop().time()
    await until(lambda: fault_proxy.count("watch") >= watches + 3)
    # Two watches of at least 0.9 times their time, in whole seconds.
    assert asyncio.get_running_loop().time() - began >= 9
    since = fault_proxy.seen[asked:]
    assert [seen.verb for seen in since] == ["list", "watch"] * 2
    # What is asked about a silent one selects nothing.
    assert {seen.query["labelSelector"] for seen in since if seen.verb == "list"} == {
        f"cluster={CLUSTER},worker_id,!cluster"
    }
    assert launcher_of(scheduler).watch.stats.lists == 0
