"""A server of one's own that crashes, freezes and comes back; and the real kube-scheduler."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec import convert

from events.errors import StartFailed
from events.messages import KubernetesOptions
from schedulers.kubernetes import client, watch
from tests.support.kube.apiserver import KubeServer, make_namespace
from tests.support.kube.automatic import Automatic
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.scene import (
    Scene,
    launcher_of,
    scene_of,
    starts,
    starts_with,
    states,
    until_states,
)
from tests.support.kube.scheduler import kube_scheduler
from tests.support.waiting import until


@pytest_asyncio.fixture
async def own(own_kube_server: KubeServer) -> AsyncIterator[Scene]:
    """A scene on a server that may be killed."""
    async with (
        own_kube_server.admin() as admin,
        FaultProxy(own_kube_server.url, own_kube_server.tls()) as proxy,
        scene_of(own_kube_server, Kubelet(admin, await make_namespace(admin)), proxy) as made,
    ):
        yield made


async def test_a_server_that_crashes_and_comes_back(own: Scene) -> None:
    """Its version counter goes on, its watch caches are empty: nothing is lost or invented."""
    scheduler = own.scheduler(own.config(task_slots=1))
    async with Automatic(own.kubelet):
        await scheduler.start_workers(starts(slots=3))
    failures = launcher_of(scheduler).watch.stats
    own.server.kill()
    await until(lambda: failures.failures >= 3)
    assert states(scheduler) == ["running"] * 3
    # A start and a stop that are asked for meanwhile are carried out when it is back.
    starting = asyncio.create_task(scheduler.start_workers(starts("k", wait_s=50.0)))
    await until(lambda: states(scheduler, "k") == ["assigned"])
    await own.server.start()
    first = (await own.kubelet.pods())[0].name
    await own.kubelet.end(first, 7)
    async with Automatic(own.kubelet):
        await starting
    await until_states(scheduler, "failed", "running", "running")
    await until_states(scheduler, "running", job_id="k")


async def test_a_server_that_freezes_is_given_up_and_found_again(
    own: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SILENCE_S", 0.5)
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 1.0)
    config = own.config(task_slots=1, watch_timeout_s=1, view_age_s=2.0)
    scheduler = own.scheduler(config, url=own.server.url)
    launcher = launcher_of(scheduler)
    async with Automatic(own.kubelet):
        await scheduler.start_workers(starts(slots=2))
    own.server.api.freeze()
    await until(lambda: launcher.failing() != "")
    assert states(scheduler) == ["running"] * 2
    own.server.api.thaw()
    await until(lambda: launcher.failing() == "")
    first = (await own.kubelet.pods())[0].name
    await own.kubelet.end(first)
    await until_states(scheduler, "finished", "running")


async def test_a_server_that_lost_its_data_is_noticed(
    own: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers a watch from a version that it never reached with silence, for ever."""
    monkeypatch.setattr(watch, "IN_VAIN", 1_000_000)  # so that the watch goes on from there
    scheduler = own.scheduler(own.config(task_slots=1, watch_timeout_s=6, view_age_s=30))
    async with Automatic(own.kubelet):
        await scheduler.start_workers(starts(slots=2))
    for _ in range(200):  # far ahead of where a new server begins
        name = await make_namespace(own.kubelet.api)
    assert name
    first, second = [pod.name for pod in await own.kubelet.pods()]
    await own.kubelet.end(first)
    await until_states(scheduler, "finished", "running")
    stats = launcher_of(scheduler).watch.stats
    listed, silent = stats.lists, stats.silent
    own.server.kill()
    own.server.etcd.kill()
    shutil.rmtree(own.server.folder / "etcd")
    await own.server.start()
    # Nobody saw its pod go, so nobody can say that it ended.
    await until_states(scheduler, "finished", "lost")
    assert second
    assert scheduler.ledger.held_slots("kubernetes") == 1
    assert (stats.lists, stats.silent) == (listed + 1, silent + 1)


async def test_what_the_real_scheduler_can_not_place_fails_in_its_words(own: Scene) -> None:
    async with kube_scheduler(own.server):
        await own.kubelet.register("small", cpu="2", pods=10)
        config = own.config(task_slots=1, start_deadline_s=5.0)
        scheduler = own.scheduler(config)
        with pytest.raises(StartFailed, match=r"unschedulable: .*Insufficient cpu"):
            await scheduler.start_workers(
                starts_with(kubernetes=options(requests={"cpu": "3"}), slots=1)
            )
        assert await own.kubelet.pods() == []
        with pytest.raises(StartFailed, match=r"unschedulable: .*node affinity/selector"):
            await scheduler.start_workers(starts_with("k", selector={"zone": "nowhere"}))
    await own.kubelet.unregister()


def options(**resources: object) -> KubernetesOptions:
    return convert({"resources": resources}, KubernetesOptions)
