"""A controller that goes, at any point, and the next one on the same log; and pods that
should not be."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from events.errors import DuplicateNode, SlotbusError
from events.facts import Record, WorkerOrphaned
from events.ids import Position
from events.messages import StopWorkersReq
from events.traffic import Stamp
from schedulers.kubernetes.identity import Identity, worker_marks
from schedulers.kubernetes.names import pod_name
from schedulers.kubernetes.scheduler import KubernetesScheduler
from tests.support.kube import faults
from tests.support.kube.apiserver import make_namespace
from tests.support.kube.automatic import Automatic
from tests.support.kube.clients import CLUSTER
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Pod, Rest, pods_path
from tests.support.kube.scene import Scene, launcher_of, rows, starts, states, until_states
from tests.support.waiting import until


async def begin_and_die(scene: Scene, fault: faults.Fault, slots: int = 2) -> KubernetesScheduler:
    """A start whose creates meet this fault; its controller goes in the middle of it."""
    scheduler = scene.scheduler(scene.config(task_slots=1))
    rule = scene.proxy.inject(fault, verb="create", times=slots)
    starting = asyncio.create_task(scheduler.start_workers(starts(slots=slots)))
    await until(lambda: rule.hits == slots)
    await scene.leave(scheduler)
    with suppress(SlotbusError):
        await starting
    return scheduler


async def successor(scene: Scene) -> KubernetesScheduler:
    scheduler = scene.scheduler(scene.config(task_slots=1))
    await scheduler.start()
    return scheduler


def orphans(scheduler: KubernetesScheduler) -> list[WorkerOrphaned]:
    """Facts about orphans, from now on."""
    found: list[WorkerOrphaned] = []

    def look(_: Position, record: Record) -> None:
        found.extend(fact for fact in record.events if isinstance(fact, WorkerOrphaned))

    scheduler.observe(look)
    return found


async def test_before_the_pods_were_created(scene: Scene, kubelet: Kubelet) -> None:
    await begin_and_die(scene, faults.Hang())
    assert await kubelet.pods() == []
    async with Automatic(kubelet):
        scheduler = await successor(scene)
        await until_states(scheduler, "running", "running")
        assert len(await kubelet.pods()) == 2


async def test_between_the_creation_and_its_answer(scene: Scene, kubelet: Kubelet) -> None:
    await begin_and_die(scene, faults.Hang(carry_out=True))
    pods = await kubelet.until(lambda pods: len(pods) == 2)
    async with Automatic(kubelet):
        scheduler = await successor(scene)
        await until_states(scheduler, "running", "running")
    assert {pod.uid for pod in await kubelet.pods()} == {pod.uid for pod in pods}


async def test_while_the_pods_wait_to_run(scene: Scene, kubelet: Kubelet) -> None:
    first = scene.scheduler(scene.config(task_slots=1))
    starting = asyncio.create_task(first.start_workers(starts(slots=2)))
    pods = await kubelet.until(lambda pods: len(pods) == 2)
    await scene.leave(first)
    with suppress(SlotbusError):
        await starting
    scheduler = await successor(scene)
    assert states(scheduler) == ["assigned", "assigned"]
    for pod in pods:
        await kubelet.run(pod.name)
    await until_states(scheduler, "running", "running")
    assert str(scheduler.ledger.jobs["j"].current.state) == "running"


async def test_while_they_run_and_what_happened_meanwhile(scene: Scene, kubelet: Kubelet) -> None:
    first = await successor(scene)
    async with Automatic(kubelet):
        await first.start_workers(starts(slots=5))
    await scene.leave(first)
    ended, removed, doomed, forced, _ = [pod.name for pod in await kubelet.pods()]
    await kubelet.end(ended, 3)
    await kubelet.delete(removed)
    await kubelet.confirm(removed)
    await kubelet.delete(doomed, grace_s=30)
    await kubelet.delete(forced, grace_s=0)

    scheduler = await successor(scene)
    await until_states(scheduler, "failed", "lost", "lost", "lost", "running")
    assert [row.exit_code for row in await rows(scheduler) if row.state == "failed"] == [3]
    await kubelet.confirm(doomed, 143)
    await until(lambda: scheduler.ledger.held_slots("kubernetes") == 1)


async def test_in_the_middle_of_a_stop(scene: Scene, kubelet: Kubelet) -> None:
    first = await successor(scene)
    async with Automatic(kubelet):
        await first.start_workers(starts(slots=2))
    stopping = asyncio.create_task(first.submit(StopWorkersReq(job_id="j", grace_s=60.0)))
    pods = await kubelet.until(lambda pods: all(pod.terminating for pod in pods))
    await scene.leave(first)
    with suppress(SlotbusError):
        await stopping
    await kubelet.confirm(pods[0].name)
    scheduler = await successor(scene)
    await kubelet.confirm(pods[1].name)
    await until(lambda: scheduler.ledger.held_slots("kubernetes") == 0)
    assert sorted(states(scheduler)) == ["finished", "lost"]
    assert str(scheduler.ledger.jobs["j"].current.state) == "stopped"


async def test_before_the_deletion_was_sent(scene: Scene, kubelet: Kubelet) -> None:
    first = await successor(scene)
    async with Automatic(kubelet):
        await first.start_workers(starts(slots=2))
        rule = scene.proxy.inject(faults.Hang(), verb="delete", times=2)
        stopping = asyncio.create_task(first.submit(StopWorkersReq(job_id="j", grace_s=5.0)))
        await until(lambda: rule.hits == 2)
        await scene.leave(first)
        with suppress(SlotbusError):
            await stopping
        scheduler = await successor(scene)
        await until_states(scheduler, "finished", "finished")
        await kubelet.until(lambda pods: not pods)


async def test_an_end_that_was_not_acknowledged_is_heard_again(
    scene: Scene, kubelet: Kubelet
) -> None:
    first = await successor(scene)
    async with Automatic(kubelet):
        await first.start_workers(starts())
    rule = scene.proxy.inject(faults.Hang(), verb="delete")
    (pod,) = await kubelet.pods()
    await kubelet.end(pod.name, 5)
    await until(lambda: rule.hits == 1)
    await scene.leave(first)
    scheduler = await successor(scene)
    await kubelet.until(lambda pods: not pods)
    assert states(scheduler) == ["failed"]


# --- pods that should not be --------------------------------------------------------------


async def copy_of(kube: Rest, kubelet: Kubelet, pod: Pod) -> dict[str, Any]:
    """A pod's manifest as somebody could save it."""
    whole: dict[str, Any] = dict(await kube.get(pods_path(kubelet.namespace, pod.name)))
    meta = whole["metadata"]
    kept = {key: meta[key] for key in ("name", "labels", "annotations")}
    return {"metadata": kept, "spec": {k: v for k, v in whole["spec"].items() if k != "nodeName"}}


async def test_a_pod_that_is_created_late_is_removed(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    """As by an earlier leader's request that was long under way: its worker is over."""
    scheduler = await successor(scene)
    found = orphans(scheduler)
    async with Automatic(kubelet):
        await scheduler.start_workers(starts())
        (pod,) = await kubelet.pods()
        late = await copy_of(kube, kubelet, pod)
        await scheduler.stop_workers("j")
        await until(lambda: len(launcher_of(scheduler).view) == 0)
        await kube.post(pods_path(kubelet.namespace), late)
        await until(lambda: bool(found))
        assert [one.stopped for one in found] == [True]
        await kubelet.until(lambda pods: not pods)
    assert states(scheduler) == ["finished"]


async def test_a_pod_with_our_labels_that_the_log_can_not_confirm_is_left_and_told(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    scheduler = await successor(scene)
    found = orphans(scheduler)
    stamp = Stamp(cluster=CLUSTER, epoch=scheduler.epoch + 7, position=9_999)
    who = Identity(worker_id="w-strange", job_id="j", run_id=3, name="j", slots=1, stamp=stamp)
    marks = worker_marks(who)
    body = {
        "metadata": {
            "name": pod_name(CLUSTER, "j", 3, "w-strange"),
            "labels": marks.labels,
            "annotations": marks.annotations,
        },
        "spec": {"containers": [{"name": "worker", "image": "rig/none"}]},
    }
    await kube.post(pods_path(kubelet.namespace), body)
    await until(lambda: bool(found))
    assert [(one.worker_id, one.stopped) for one in found] == [("w-strange", False)]
    assert [pod.terminating for pod in await kubelet.pods()] == [False]


async def test_two_controllers_of_different_names_ignore_each_other(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    one = await successor(scene)
    other = Scene(scene.server, kubelet, fault_proxy)
    another = other.scheduler(other.config(cluster="other"))
    async with Automatic(kubelet):
        await one.start_workers(starts())
        await another.start_workers(starts())
        await another.stop_workers("j")
        await kubelet.until(lambda pods: len(pods) == 1)
        assert len(launcher_of(one).view) == 1
    await other.leave_all()
    assert states(one) == ["running"]


async def test_another_namespace_is_taken_when_nobody_lives_in_the_last_one(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    """And back again. Else workers that nobody looks at would be forgotten, or started twice."""
    elsewhere = Kubelet(kube, await make_namespace(kube))
    moved = scene.config(namespace=elsewhere.namespace)
    async with Automatic(kubelet), Automatic(elsewhere):
        first = scene.scheduler()
        await first.start_workers(starts())
        await scene.leave(first)
        refused = scene.scheduler(moved)
        with pytest.raises(DuplicateNode, match="1 workers in the log live where this controller"):
            await refused.start()
        await scene.leave(refused)
        back = scene.scheduler()
        await back.stop_workers("j")
        await scene.leave(back)
        for config, node in ((moved, elsewhere), (scene.config(), kubelet)):
            scheduler = scene.scheduler(config)
            await scheduler.start_workers(starts())
            assert len(await node.pods()) == 1
            await scheduler.stop_workers("j")
            await scene.leave(scheduler)
