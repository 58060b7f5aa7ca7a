"""Starts while the server is in trouble, and starts that are taken back."""

from __future__ import annotations

import asyncio

import pytest

from events.errors import StartFailed
from schedulers.kubernetes.names import pod_name
from tests.support.kube import faults
from tests.support.kube.apiserver import set_quota
from tests.support.kube.automatic import Automatic, Behaviour
from tests.support.kube.clients import CLUSTER
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Rest
from tests.support.kube.scene import (
    Scene,
    launcher_of,
    starts,
    states,
)
from tests.support.waiting import until

WAITS = Behaviour(run_after_s=3_600)

TROUBLE: list[tuple[str, faults.Fault]] = [
    ("429", faults.too_many_requests(1)),
    ("500", faults.server_error()),
    ("500 after all was done", faults.server_error(carry_out=True)),
    ("503", faults.unavailable()),
    ("504 after all was done", faults.gateway_timeout()),
    ("401", faults.unauthorized()),
    ("dropped", faults.Drop()),
    ("dropped after all was done", faults.Drop(carry_out=True)),
    ("quota's own conflict", faults.quota_conflict()),
]


@pytest.mark.parametrize("fault", [f for _, f in TROUBLE], ids=[name for name, _ in TROUBLE])
async def test_a_start_gets_through_and_creates_each_pod_once(
    fault: faults.Fault, scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    scheduler = scene.scheduler(scene.config(task_slots=1))
    rule = fault_proxy.inject(fault, verb="create", resource="pods", times=2)
    async with Automatic(kubelet):
        assert len(await scheduler.start_workers(starts(slots=3))) == 3
        assert rule.hits == 2
        assert len(await kubelet.pods()) == 3
        assert states(scheduler) == ["running"] * 3


async def test_retry_after_is_obeyed(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    scheduler = scene.scheduler(scene.config(task_slots=1))
    await scheduler.start()
    fault_proxy.inject(faults.too_many_requests(2), verb="create")
    async with Automatic(kubelet):
        await scheduler.start_workers(starts(slots=1))
    first, second = [seen for seen in fault_proxy.seen if seen.verb == "create"]
    assert second.at - first.at >= 2


async def test_a_quota_refusal_after_a_lost_answer_does_not_hide_the_pod(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    """The first request used the quota up, and its answer was lost."""
    scheduler = scene.scheduler()
    fault_proxy.inject(faults.Drop(carry_out=True), verb="create")
    fault_proxy.inject(faults.quota_exceeded(), verb="create", skip=1)
    async with Automatic(kubelet):
        assert len(await scheduler.start_workers(starts())) == 1
        assert len(await kubelet.pods()) == 1


async def test_creates_are_paced(scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy) -> None:
    config = scene.config(task_slots=1, requests_per_s=10, burst=1, requests_at_once=2)
    scheduler = scene.scheduler(config)
    async with Automatic(kubelet):
        await scheduler.start_workers(starts(slots=8))
    times = [seen.at for seen in fault_proxy.seen if seen.verb == "create"]
    assert len(times) == 8
    assert times[-1] - times[0] >= 0.6


async def test_a_name_that_is_taken_by_a_stranger_is_no_success(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    scheduler = scene.scheduler()
    rule = fault_proxy.inject(faults.Delay(0.5), verb="create")
    starting = asyncio.create_task(scheduler.start_workers(starts()))
    await asyncio.wait_for(rule.hit.wait(), 10)
    (worker,) = scheduler.ledger.workers.values()
    await kubelet.create(pod_name(CLUSTER, "j", 1, worker.worker_id), labels={"cluster": CLUSTER})
    with pytest.raises(StartFailed, match="is there already, and is not ours"):
        await starting
    assert len(await kubelet.pods()) == 1


# --- roll-back ----------------------------------------------------------------------------


async def test_a_stopped_start_leaves_no_pods_behind(scene: Scene, kubelet: Kubelet) -> None:
    """Also those whose creation was under way when the stop came."""
    scheduler = scene.scheduler(scene.config(task_slots=1, requests_per_s=20, burst=1))
    starting = asyncio.create_task(scheduler.start_workers(starts(slots=10)))
    async with Automatic(kubelet, lambda pod: WAITS):
        await kubelet.until(lambda pods: len(pods) >= 2)
        stopped = await scheduler.stop_workers("j")
        with pytest.raises(StartFailed, match="it was stopped while it started"):
            await starting
        assert stopped.unconfirmed == []
        await kubelet.until(lambda pods: not pods)
        await until(lambda: len(launcher_of(scheduler).maker) == 0)
    assert await kubelet.pods() == []


async def test_what_was_not_asked_for_yet_is_not_asked_for_after_a_stop(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    scheduler = scene.scheduler(scene.config(task_slots=1, requests_at_once=1))
    rule = fault_proxy.inject(faults.Delay(1.0), verb="create")
    starting = asyncio.create_task(scheduler.start_workers(starts(slots=5)))
    await asyncio.wait_for(rule.hit.wait(), 10)
    async with Automatic(kubelet):
        assert (await scheduler.stop_workers("j")).unconfirmed == []
        with pytest.raises(StartFailed):
            await starting
        await kubelet.until(lambda pods: not pods)
    assert fault_proxy.count("create") == 1
    assert len(launcher_of(scheduler).maker) == 0


async def test_a_roll_back_is_tried_again_until_it_is_done(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy, kube: Rest
) -> None:
    await set_quota(kube, kubelet.namespace, pods="2")
    scheduler = scene.scheduler(scene.config(task_slots=1))
    rule = fault_proxy.inject(faults.server_error(), verb="delete", resource="pods", times=4)
    async with Automatic(kubelet):
        with pytest.raises(StartFailed):
            await scheduler.start_workers(starts(slots=3))
        await kubelet.until(lambda pods: not pods)
    assert rule.hits == 4


async def test_a_pod_created_late_is_stopped_like_any(
    scene: Scene, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    """Its request is under way when the start is given up: it is waited for."""
    scheduler = scene.scheduler()
    rule = fault_proxy.inject(faults.Delay(1.0), verb="create")
    starting = asyncio.create_task(scheduler.start_workers(starts()))
    await asyncio.wait_for(rule.hit.wait(), 10)
    async with Automatic(kubelet):
        assert (await scheduler.stop_workers("j")).unconfirmed == []
        with pytest.raises(StartFailed):
            await starting
        await kubelet.until(lambda pods: not pods)
