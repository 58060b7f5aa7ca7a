"""Programs too large for the environment: their ConfigMaps come and go with those that need
them, whoever dies in between."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from events.errors import SlotbusError, StartFailed
from events.log import MemoryLog
from schedulers.kubernetes import programs
from schedulers.kubernetes.identity import run_marks
from schedulers.kubernetes.names import program_name
from tests.support.kube import faults
from tests.support.kube.apiserver import set_quota
from tests.support.kube.automatic import Automatic
from tests.support.kube.clients import CLUSTER
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Rest
from tests.support.kube.scene import Scene, launcher_of, starts, states, until_states
from tests.support.waiting import until

BIG = {"text": "x" * 100_000}
LOOK_S = 0.1


async def stored(kube: Rest, kubelet: Kubelet) -> list[str]:
    """Names of the ConfigMaps with our label."""
    path = f"/api/v1/namespaces/{kubelet.namespace}/configmaps"
    items = (await kube.get(path, labelSelector=f"cluster={CLUSTER}"))["items"]
    assert isinstance(items, list)
    return [item["metadata"]["name"] for item in items]


async def until_stored(kube: Rest, kubelet: Kubelet, *names: str) -> None:
    async with asyncio.timeout(20):
        while sorted(await stored(kube, kubelet)) != sorted(names):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def die_before_the_pods(scene: Scene, kubelet: Kubelet, kube: Rest) -> None:
    """A start whose ConfigMap is stored; its controller goes before any pod is."""
    scheduler = scene.scheduler(scene.config(task_slots=1))
    rule = scene.proxy.inject(faults.Hang(), verb="create", resource="pods", times=2)
    starting = asyncio.create_task(scheduler.start_workers(starts(slots=2, program=BIG)))
    await until(lambda: rule.hits == 2)
    await scene.leave(scheduler)
    with suppress(SlotbusError):
        await starting
    await until_stored(kube, kubelet, program_name(CLUSTER, "j", 1))
    assert await kubelet.pods() == []


async def test_stored_once_and_removed_with_the_last_pod(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    scheduler = scene.scheduler(scene.config(task_slots=1))
    async with Automatic(kubelet):
        await scheduler.start_workers(starts(slots=3, program=BIG))
        name = program_name(CLUSTER, "j", 1)
        await until_stored(kube, kubelet, name)
        assert scene.proxy.count("create", "configmaps") == 1
        first, *_ = [pod.name for pod in await kubelet.pods()]
        await kubelet.end(first)
        await until_states(scheduler, "finished", "running", "running")
        await until(lambda: len(launcher_of(scheduler).view) == 2)
        assert await stored(kube, kubelet) == [name]
        await scheduler.stop_workers("j")
        await until_stored(kube, kubelet)


async def test_a_start_that_is_refused_leaves_none_behind(
    scene: Scene, kubelet: Kubelet, kube: Rest, fault_proxy: FaultProxy
) -> None:
    await set_quota(kube, kubelet.namespace, pods="0")
    scheduler = scene.scheduler(scene.config(task_slots=1))
    rule = fault_proxy.inject(faults.server_error(), verb="delete", resource="configmaps", times=2)
    with pytest.raises(StartFailed, match="exceeded quota"):
        await scheduler.start_workers(starts(slots=2, program=BIG))
    await until_stored(kube, kubelet)
    assert rule.hits == 2


async def test_a_start_that_is_stopped_before_its_pods_leaves_none_behind(
    scene: Scene, kubelet: Kubelet, kube: Rest, fault_proxy: FaultProxy
) -> None:
    scheduler = scene.scheduler(scene.config(task_slots=1))
    rule = fault_proxy.inject(faults.quota_conflict(), verb="create", resource="pods", times=None)
    starting = asyncio.create_task(scheduler.start_workers(starts(slots=2, program=BIG)))
    await until(lambda: rule.hits >= 2)
    await scheduler.stop_workers("j")
    with pytest.raises(StartFailed):
        await starting
    await until_stored(kube, kubelet)


async def test_the_next_controller_goes_on_with_the_one_that_is_there(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    await die_before_the_pods(scene, kubelet, kube)
    scheduler = scene.scheduler(scene.config(task_slots=1))
    async with Automatic(kubelet):
        await scheduler.start()
        await until_states(scheduler, "running", "running")
        await scheduler.stop_workers("j")
        await until_stored(kube, kubelet)


async def test_one_that_nobody_needs_any_more_is_found_and_removed(
    scene: Scene, kubelet: Kubelet, kube: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller died before the pods were made, and the log that knew of it is gone."""
    monkeypatch.setattr(programs, "FIRST_LOOK_S", LOOK_S)
    await die_before_the_pods(scene, kubelet, kube)
    looks = scene.proxy.count("list", "configmaps")
    scene.log = MemoryLog()
    await scene.scheduler().start()
    await until_stored(kube, kubelet)
    assert scene.proxy.count("list", "configmaps") == looks + 2


async def test_none_is_removed_while_its_pods_are_still_to_be_made(
    scene: Scene, kubelet: Kubelet, kube: Rest, fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(programs, "FIRST_LOOK_S", LOOK_S)
    monkeypatch.setattr(programs, "NEXT_LOOK_S", LOOK_S)
    scheduler = scene.scheduler(scene.config(task_slots=1))
    rule = fault_proxy.inject(faults.quota_conflict(), verb="create", resource="pods", times=None)
    starting = asyncio.create_task(scheduler.start_workers(starts(slots=1, program=BIG)))
    await until(lambda: scene.proxy.count("list", "configmaps") >= 4)
    assert await stored(kube, kubelet) == [program_name(CLUSTER, "j", 1)]
    rule.stop()
    async with Automatic(kubelet):
        await starting
    looks = scene.proxy.count("list", "configmaps")
    await until(lambda: scene.proxy.count("list", "configmaps") >= looks + 3)
    assert await stored(kube, kubelet) == [program_name(CLUSTER, "j", 1)]
    assert states(scheduler) == ["running"]


async def test_what_others_store_under_our_label_is_left_alone(
    scene: Scene, kubelet: Kubelet, kube: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "FIRST_LOOK_S", LOOK_S)
    monkeypatch.setattr(programs, "NEXT_LOOK_S", LOOK_S)
    path = f"/api/v1/namespaces/{kubelet.namespace}/configmaps"
    like_ours = run_marks(CLUSTER, "j", 1, "j").labels
    await kube.post(path, {"metadata": {"name": "plain", "labels": {"cluster": CLUSTER}}})
    await kube.post(path, {"metadata": {"name": "like-ours", "labels": like_ours}})
    await scene.scheduler().start()
    await until(lambda: scene.proxy.count("list", "configmaps") >= 4)
    assert sorted(await stored(kube, kubelet)) == ["like-ours", "plain"]
    assert scene.proxy.count("delete", "configmaps") == 0
