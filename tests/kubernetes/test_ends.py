"""Ends: what becomes of a pod is what the ledger says, and nothing that nobody can prove."""

from __future__ import annotations

import asyncio

import pytest

from events.errors import RunActive
from events.messages import StopReply, StopWorkersReq
from events.traffic import WorkerFinishedReq
from schedulers.decide import Rules
from schedulers.kubernetes.scheduler import KubernetesScheduler
from tests.support.kube import faults
from tests.support.kube.apiserver import make_namespace
from tests.support.kube.automatic import Automatic, Behaviour
from tests.support.kube.clients import CLUSTER
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Rest
from tests.support.kube.scene import (
    RULES,
    Scene,
    launcher_of,
    rows,
    starts,
    states,
    until_states,
)
from tests.support.waiting import until


async def started(
    scene: Scene, kubelet: Kubelet, slots: int = 1, *, rules: Rules = RULES, **fields: object
) -> KubernetesScheduler:
    """A scheduler with workers that run, on nodes played by hand from now on."""
    scheduler = scene.scheduler(scene.config(task_slots=1, **fields), rules=rules)
    async with Automatic(kubelet):
        await scheduler.start_workers(starts(slots=slots))
    return scheduler


async def stop(scheduler: KubernetesScheduler, grace_s: float, wait_s: float = 30.0) -> StopReply:
    reply = await scheduler.submit(StopWorkersReq(job_id="j", grace_s=grace_s, wait_s=wait_s))
    assert isinstance(reply, StopReply)
    return reply


# --- by themselves ------------------------------------------------------------------------


async def test_every_way_to_end(scene: Scene, kubelet: Kubelet) -> None:
    scheduler = await started(scene, kubelet, 6)
    good, bad, oom, evicted, late, killed = [pod.name for pod in await kubelet.pods()]
    await kubelet.end(good)
    await kubelet.end(bad, 3)
    await kubelet.oom(oom)
    await kubelet.evict(evicted)
    await kubelet.exceed_deadline(late)
    await kubelet.end(killed, 137, signal=9)
    await until_states(scheduler, "failed", "failed", "failed", "failed", "finished", "lost")
    found = [(str(r.state), r.exit_code, r.signal, r.reason) for r in await rows(scheduler)]
    assert {one for one in found if one[0] in ("finished", "lost")} == {
        ("finished", 0, None, "exit 0"),
        ("lost", None, None, "evicted: The node was low on resource: memory"),
    }
    told = "; ".join(one[3] for one in found)
    for reason in ("exit code 3", "out of memory", "ran longer than its deadline", "signal 9"):
        assert reason in told
    assert str(scheduler.ledger.jobs["j"].current.state) == "failed"


async def test_an_ended_pod_is_removed_once_its_end_is_in_the_log(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = await started(scene, kubelet, 2)
    first, second = [pod.name for pod in await kubelet.pods()]
    await kubelet.end(first, 1)
    pods = await kubelet.until(lambda pods: len(pods) == 1)
    assert [pod.name for pod in pods] == [second]
    assert sorted(states(scheduler)) == ["failed", "running"]


async def test_a_sidecar_does_not_keep_a_worker_alive(scene: Scene, kubelet: Kubelet) -> None:
    sidecar = {"spec": {"containers": [{"name": "sidecar", "image": "rig/none"}]}}
    scheduler = await started(scene, kubelet, pod_template=sidecar)
    (pod,) = await kubelet.pods()
    await kubelet.end_containers(pod.name, {"worker": 4})
    await until_states(scheduler, "failed")
    (row,) = await rows(scheduler)
    assert row.exit_code == 4
    await kubelet.until(lambda pods: pods[0].terminating)


# --- by others ----------------------------------------------------------------------------


async def test_a_pod_deleted_by_hand_is_a_lost_worker_within_a_second(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = await started(scene, kubelet, 2)
    first, _ = [pod.name for pod in await kubelet.pods()]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await kubelet.delete(first, grace_s=30)
    await until_states(scheduler, "lost", "running")
    assert loop.time() - began < 1
    # It still runs, for all we know: its slots are not free before it is gone.
    assert scheduler.ledger.held_slots("kubernetes") == 2
    await kubelet.confirm(first)
    await until(lambda: scheduler.ledger.held_slots("kubernetes") == 1)
    assert sorted(states(scheduler)) == ["lost", "running"]
    (row,) = [row for row in await rows(scheduler) if row.state == "lost"]
    assert row.reason == "its pod was deleted, not by slotbus"


async def test_a_pod_deleted_by_force_is_lost_and_never_provably_gone(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = await started(scene, kubelet)
    (pod,) = await kubelet.pods()
    await kubelet.delete(pod.name, grace_s=0)
    await until_states(scheduler, "lost")
    launcher_of(scheduler).watch.list_again()
    await until(lambda: launcher_of(scheduler).watch.stats.lists >= 1)
    assert scheduler.ledger.held_slots("kubernetes") == 1

    stopped = await stop(scheduler, 0.0)
    assert len(stopped.unconfirmed) == 1
    assert states(scheduler) == ["stopping"]
    # Only a person can say so.
    (row,) = await rows(scheduler)
    node = kubelet.api_name("node-1")
    told = f"its pod was deleted, not by slotbus; node {node} has not confirmed its end"
    assert row.reason == told
    await scheduler.submit(
        WorkerFinishedReq(
            node_id="kubernetes", worker_id=row.worker_id, job_id="j", run_id=1, slots=1,
            exit_code=137,
        )
    )  # fmt: skip
    assert scheduler.ledger.held_slots("kubernetes") == 0
    await until(lambda: len(launcher_of(scheduler).view) == 0)


async def test_a_pod_that_nobody_placed_is_gone_when_its_object_is(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = scene.scheduler(scene.config(launched_when="created"))
    await scheduler.start_workers(starts())
    (pod,) = await kubelet.pods()
    await kubelet.delete(pod.name)
    await until_states(scheduler, "lost")
    assert scheduler.ledger.held_slots("kubernetes") == 0


# --- stops --------------------------------------------------------------------------------


async def test_a_stop_gives_the_grace_and_waits_until_the_pods_are_gone(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = await started(scene, kubelet, 2)
    stopping = asyncio.create_task(stop(scheduler, 20.0))
    pods = await kubelet.until(lambda pods: all(pod.terminating for pod in pods))
    assert {pod.metadata.deletion_grace_period_seconds for pod in pods} == {20}
    assert states(scheduler) == ["stopping"] * 2
    for pod in pods:
        assert not stopping.done()
        await kubelet.confirm(pod.name)
    reply = await stopping
    assert len(reply.workers) == 2
    assert reply.unconfirmed == []
    assert {(str(r.state), r.exit_code) for r in await rows(scheduler)} == {("finished", 143)}


async def test_a_forced_stop_is_confirmed_by_a_node_that_lives(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = await started(scene, kubelet, rules=Rules(stop_timeout_s=20))
    async with Automatic(kubelet, lambda pod: Behaviour(ignores_term=True)):
        stopped = await scheduler.stop_workers("j", force=True)
    assert (len(stopped.workers), stopped.unconfirmed) == (1, [])
    assert [(str(r.state), r.exit_code) for r in await rows(scheduler)] == [("finished", 137)]


async def test_a_forced_stop_removes_the_object_of_a_dead_node_and_says_what_that_means(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedulers.kubernetes.launcher.FORCE_PATIENCE_S", 0.5)
    scheduler = await started(scene, kubelet)
    await kubelet.lose("node-1")
    stopped = await scheduler.stop_workers("j", force=True)
    assert (stopped.workers, len(stopped.unconfirmed)) == ([], 1)
    await kubelet.until(lambda pods: not pods)
    node = kubelet.api_name("node-1")
    await until(
        lambda: (
            [w.reason for w in scheduler.ledger.workers.values()]
            == [f"removed by force; node {node} has not confirmed its end"]
        )
    )
    assert states(scheduler) == ["stopping"]
    assert list(kubelet.containers) != []


async def test_a_stop_on_a_dead_node_ends_with_the_truth(
    scene: Scene, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedulers.kubernetes.launcher.OVERDUE_S", 0.1)
    scheduler = await started(scene, kubelet, 2)
    first, second = await kubelet.pods()
    await kubelet.lose("node-1")
    stopping = asyncio.create_task(stop(scheduler, 1.0))
    await kubelet.until(lambda pods: all(pod.terminating for pod in pods))
    await kubelet.confirm(first.name)
    reply = await stopping
    (left,) = reply.unconfirmed
    assert second.metadata.labels["worker_id"] == left
    node = kubelet.api_name("node-1")
    await until(
        lambda: scheduler.ledger.workers[left].reason == f"still terminating on node {node}"
    )
    # The node comes back, and confirms.
    await kubelet.find("node-1")
    await kubelet.confirm(second.name)
    await until_states(scheduler, "finished", "finished")


async def test_an_evicted_node_s_pods_are_lost_until_it_is_back(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = await started(scene, kubelet)
    await kubelet.lose("node-1")
    await kubelet.taint_evict("node-1")
    await until_states(scheduler, "lost")
    assert scheduler.ledger.held_slots("kubernetes") == 1
    (pod,) = await kubelet.pods()
    await kubelet.confirm(pod.name)
    await until(lambda: scheduler.ledger.held_slots("kubernetes") == 0)


async def test_a_stop_touches_nothing_but_its_own(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    """Not another run, job, controller, namespace or a pod that only looks like ours."""
    scheduler = scene.scheduler()
    other = scene.scheduler(scene.config(cluster="other"))
    other.log = type(other.log)()
    async with Automatic(kubelet):
        await scheduler.start_workers(starts("j"))
        await scheduler.start_workers(starts("k"))
        await other.start_workers(starts("j"))
        await kubelet.create("bystander", labels={"job_id": "j", "run_id": "1"})
        await scheduler.stop_workers("j")
        pods = await kubelet.until(lambda pods: len(pods) <= 3)
    left = {(p.metadata.labels.get("cluster"), p.metadata.labels["job_id"]) for p in pods}
    assert left == {("test", "k"), ("other", "j"), (None, "j")}
    assert await other.workers_for_job("j") != []


async def test_stops_get_through_a_server_in_trouble(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    scheduler = await started(scene, kubelet, 3)
    for fault in (faults.server_error(), faults.Drop(carry_out=True), faults.too_many_requests(1)):
        fault_proxy.inject(fault, verb="delete", resource="pods")
    async with Automatic(kubelet):
        stopped = await stop(scheduler, 5.0)
        await kubelet.until(lambda pods: not pods)
    assert (len(stopped.workers), stopped.unconfirmed) == (3, [])


async def test_a_run_is_replaced_while_its_pods_still_terminate_elsewhere(
    scene: Scene, kubelet: Kubelet
) -> None:
    """The names differ, since worker ids do: no conflict with a pod that takes 60 s to go."""
    scheduler = await started(scene, kubelet)
    (old,) = await kubelet.pods()
    stopping = asyncio.create_task(stop(scheduler, 60.0))
    await kubelet.until(lambda pods: pods[0].terminating)
    with pytest.raises(RunActive):
        await scheduler.start_workers(starts())
    await kubelet.confirm(old.name)
    await stopping
    async with Automatic(kubelet):
        (placed,) = await scheduler.start_workers(starts())
    (new,) = await kubelet.until(lambda pods: [p.name for p in pods] != [old.name])
    assert new.metadata.labels["worker_id"] == placed.worker_id
    assert new.metadata.labels["run_id"] == "2"


async def test_a_stop_deletes_nothing_by_label_and_nothing_in_another_namespace(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    """Pods elsewhere with the very same labels are others'."""
    scheduler = await started(scene, kubelet, 2)
    elsewhere = Kubelet(kube, await make_namespace(kube))
    twins = [
        await elsewhere.create(pod.name, labels=pod.metadata.labels) for pod in await kubelet.pods()
    ]
    async with Automatic(kubelet):
        await scheduler.stop_workers("j", force=True)
        await kubelet.until(lambda pods: not pods)
    left = await elsewhere.pods()
    assert {pod.uid for pod in left} == {pod.uid for pod in twins}
    assert not any(pod.terminating for pod in left)
    seen = scene.proxy.seen
    assert {one.namespace for one in seen} == {kubelet.namespace}
    assert scene.proxy.count("deletecollection") == 0
    # What looks at many pods names whose.
    assert all(
        one.query["labelSelector"].startswith(f"cluster={CLUSTER},")
        for one in seen
        if one.verb in ("list", "watch")
    )
