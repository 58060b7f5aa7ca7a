"""Starts: all or nothing, whatever the server or the cluster says, and never twice."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from msgspec import convert

from events.errors import CommandTimeout, Invalid, StartFailed
from events.messages import KubernetesOptions, SchedulerConfig
from schedulers.kubernetes.names import pod_name
from schedulers.kubernetes.quantity import parse_quantity
from tests.support.kube.apiserver import set_quota
from tests.support.kube.automatic import Automatic
from tests.support.kube.clients import CLUSTER
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Rest, pods_path
from tests.support.kube.scene import (
    Scene,
    rows,
    starts,
    starts_with,
    states,
    until_states,
)


async def test_a_start_is_told_done_when_its_pods_run(scene: Scene, kubelet: Kubelet) -> None:
    scheduler = scene.scheduler(scene.config(task_slots=2))
    starting = asyncio.create_task(scheduler.start_workers(starts(slots=5)))
    await kubelet.until(lambda pods: len(pods) == 3)
    done, _ = await asyncio.wait({starting}, timeout=0.3)
    assert not done
    for pod in await kubelet.pods():
        await kubelet.run(pod.name)
    placed = await starting
    assert [one.slots for one in placed] == [2, 2, 1]
    assert {one.node_id for one in placed} == {"kubernetes"}
    labels = [pod.metadata.labels for pod in await kubelet.pods()]
    assert {(one["cluster"], one["job_id"], one["run_id"]) for one in labels} == {
        (CLUSTER, "j", "1")
    }
    assert {one["worker_id"] for one in labels} == {one.worker_id for one in placed}


async def test_a_start_is_told_done_when_its_pods_are_created(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = scene.scheduler(scene.config(launched_when="created"))
    (placed,) = await scheduler.start_workers(starts())
    (pod,) = await kubelet.pods()
    assert pod.status.phase == "Pending"
    assert pod.name == pod_name(CLUSTER, "j", 1, placed.worker_id)
    assert states(scheduler) == ["running"]


async def test_a_pod_that_ends_before_anybody_saw_it_run_has_run(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = scene.scheduler()
    starting = asyncio.create_task(scheduler.start_workers(starts()))
    (pod,) = await kubelet.until(lambda pods: len(pods) == 1)
    await kubelet.end(pod.name)
    assert len(await starting) == 1
    await until_states(scheduler, "finished")


# --- what can't be started ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("ImagePullBackOff", "ImagePullBackOff: no such image"),
        ("CreateContainerConfigError", "CreateContainerConfigError: no such image"),
        ("", "unschedulable: 0/3 nodes are available"),
        ("pending", "waits for a node"),
    ],
)
@pytest.mark.parametrize("launched_when", ["running", "created"])
async def test_a_pod_that_does_not_run_in_time_fails_and_names_why(
    reason: str, cause: str, launched_when: str, scene: Scene, kubelet: Kubelet
) -> None:
    config = scene.config(start_deadline_s=1.0, launched_when=launched_when)
    scheduler = scene.scheduler(config)
    starting = asyncio.create_task(scheduler.start_workers(starts()))
    (pod,) = await kubelet.until(lambda pods: len(pods) == 1)
    if reason == "":
        await kubelet.unschedulable(pod.name, "0/3 nodes are available")
    elif reason != "pending":
        await kubelet.wait(pod.name, reason, "no such image")
        (pod,) = await kubelet.until(lambda pods: pods[0].terminating)
        await kubelet.remove(pod)
    if launched_when == "running":
        with pytest.raises(StartFailed, match=f"did not run within 1 s: {cause}"):
            await starting
    else:
        await starting
    await until_states(scheduler, "failed")
    (row,) = await rows(scheduler)
    assert f"did not run within 1 s: {cause}" in row.reason
    await kubelet.until(lambda pods: not pods)


async def test_a_missing_volume_is_named(scene: Scene, kubelet: Kubelet) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}]
    mounts = [{"name": "data", "mountPath": "/data"}]
    config = scene.config(start_deadline_s=1.0, volumes=volumes, volume_mounts=mounts)
    scheduler = scene.scheduler(config)
    starting = asyncio.create_task(scheduler.start_workers(starts()))
    (pod,) = await kubelet.until(lambda pods: len(pods) == 1)
    await kubelet.wait(pod.name, "ContainerCreating")
    (pod,) = await kubelet.until(lambda pods: pods[0].terminating)
    await kubelet.remove(pod)
    with pytest.raises(StartFailed, match="it needs PersistentVolumeClaim nowhere"):
        await starting


async def test_a_quota_fails_the_start_and_takes_all_back(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    await set_quota(kube, kubelet.namespace, pods="2")
    scheduler = scene.scheduler(scene.config(task_slots=1))
    async with Automatic(kubelet):
        with pytest.raises(StartFailed, match="exceeded quota") as failed:
            await scheduler.start_workers(starts(slots=3))
        assert "exceeded quota" in str(failed.value.facts["reasons"])
        await kubelet.until(lambda pods: not pods)
    assert "running" not in states(scheduler)
    assert scheduler.ledger.held_slots("kubernetes") == 0


async def test_what_the_server_finds_invalid_is_refused_in_its_words(
    scene: Scene, kubelet: Kubelet
) -> None:
    # Nobody but the server knows that there is no such class.
    scheduler = scene.scheduler(scene.config(priority_class="no-such-class"))
    with pytest.raises(StartFailed, match="no PriorityClass with name no-such-class"):
        await scheduler.start_workers(starts())


async def test_a_namespace_that_is_not_there_is_named(scene: Scene) -> None:
    scheduler = scene.scheduler(scene.config(namespace="no-such-place"))
    with pytest.raises(StartFailed, match='namespaces "no-such-place" not found'):
        await scheduler.start_workers(starts())


@pytest.mark.parametrize(
    ("request_fields", "path"),
    [
        ({"stop_after_s": 5}, r"\$\.scheduler_config\.stop_after_s"),
        (
            {"kubernetes": {"labels": {"cluster": "x"}}},
            r"\$\.scheduler_config\.kubernetes\.labels\.cluster",
        ),
        (
            {"kubernetes": {"pod_template": {"spec": {"hostPID": True}}}},
            r"\$\.scheduler_config\.kubernetes\.pod_template",
        ),
        (
            {"kubernetes": {"resources": {"limits": {"cpu": "lots"}}}},
            r"\$\.scheduler_config\.kubernetes\.resources\.limits\.cpu",
        ),
        ({"selector": {"a b": "c"}}, r"\$\.scheduler_config\.selector\['a b'\]"),
    ],
)
async def test_what_can_not_be_a_pod_is_invalid_and_not_accepted(
    request_fields: dict[str, object], path: str, scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = scene.scheduler()
    config = convert(request_fields, SchedulerConfig)
    with pytest.raises(Invalid) as refused:
        await scheduler.start_workers(starts(scheduler_config=config))
    assert re.match(path, refused.value.path), refused.value.path
    assert scheduler.ledger.commands == {}
    assert await kubelet.pods() == []


async def test_a_variable_named_like_ours_is_invalid(scene: Scene, kubelet: Kubelet) -> None:
    """Not silently lost, nor ours."""
    scheduler = scene.scheduler()
    with pytest.raises(Invalid, match="reserved") as refused:
        await scheduler.start_workers(starts(env_vars={"SLOTBUS_JOB_ID": "other"}))
    assert "SLOTBUS_JOB_ID" in refused.value.path
    assert await kubelet.pods() == []


@pytest.mark.parametrize(
    ("level", "words"),
    [("restricted", 'violates PodSecurity "restricted'), ("", "no PriorityClass with name dear")],
    ids=["pod security", "priority class"],
)
async def test_what_admission_refuses_fails_the_start_in_its_words(
    level: str, words: str, scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    if level:
        labels = {"pod-security.kubernetes.io/enforce": level}
        path = f"/api/v1/namespaces/{kubelet.namespace}"
        await kube.patch(path, {"metadata": {"labels": labels}})
    scheduler = scene.scheduler(scene.config(priority_class="" if level else "dear"))
    with pytest.raises(StartFailed, match=words):
        await scheduler.start_workers(starts())
    assert await kubelet.pods() == []
    assert scheduler.ledger.held_slots("kubernetes") == 0


async def test_quantities_reach_the_server_as_the_numbers_they_are(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    """The server writes them as it likes; what counts is the number, times the slots."""
    each = {"memory": "129e6", "ephemeral-storage": "1e9", "cpu": "0.1", "example.org/gpu": "2"}
    odd = {"memory": "128974848000m", "ephemeral-storage": "1Gi", "cpu": "100m"}
    scheduler = scene.scheduler(scene.config(launched_when="created", task_slots=4))
    for job_id, requests in (("j", each), ("k", odd)):
        asked: dict[str, object] = {"requests": requests}
        if "example.org/gpu" in requests:
            asked["limits"] = {"example.org/gpu": "2"}
        options = convert({"resources": asked}, KubernetesOptions)
        await scheduler.start_workers(starts_with(job_id, slots=3, kubernetes=options))
        (pod,) = await kubelet.pods(f"job_id={job_id}")
        whole: Any = await kube.get(pods_path(kubelet.namespace, pod.name))
        (worker,) = whole["spec"]["containers"]
        told = worker["resources"]["requests"]
        assert {name: parse_quantity(text) for name, text in told.items()} == {
            name: parse_quantity(text) * 3 for name, text in requests.items()
        }


async def test_more_pods_than_are_allowed_is_invalid(scene: Scene) -> None:
    scheduler = scene.scheduler(scene.config(task_slots=1, max_pods_per_job=2))
    with pytest.raises(Invalid, match="2 are allowed"):
        await scheduler.start_workers(starts(slots=3))


async def test_a_start_goes_on_when_its_sender_stops_waiting(
    scene: Scene, kubelet: Kubelet
) -> None:
    scheduler = scene.scheduler()
    with pytest.raises(CommandTimeout):
        await scheduler.start_workers(starts(wait_s=0.3))
    async with Automatic(kubelet):
        await until_states(scheduler, "running")


# --- names --------------------------------------------------------------------------------


async def test_jobs_with_awkward_names_live_side_by_side(scene: Scene, kubelet: Kubelet) -> None:
    ids = ["a_b", "a-b", "A-b", "x" * 128, "x" * 127 + "y", "ends-", "-begins", "_"]
    names = {"a_b": "ünïcode 名前", "a-b": "n" * 200, "ends-": "ends in a dash-"}
    scheduler = scene.scheduler()
    async with Automatic(kubelet):
        for job_id in ids:
            await scheduler.start_workers(starts(job_id, name=names.get(job_id, "")))
        assert len(await kubelet.pods()) == len(ids)
        await scheduler.stop_workers("a_b")
        await kubelet.until(lambda pods: len(pods) == len(ids) - 1)
        for job_id in ids[1:]:
            assert len(await scheduler.workers_for_job(job_id)) == 1


async def test_selectors_and_evenness_are_the_clusters_to_obey(
    scene: Scene, kubelet: Kubelet, kube: Rest
) -> None:
    scheduler = scene.scheduler(scene.config(launched_when="created", node_selector={"a": "b"}))
    await scheduler.start_workers(starts_with(selector={"zone": "z1"}, spread="even"))
    (pod,) = await kubelet.pods()
    spec = (await kube.get(pods_path(kubelet.namespace, pod.name)))["spec"]
    assert isinstance(spec, dict)
    assert spec["nodeSelector"] == {"a": "b", "zone": "z1"}
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint["labelSelector"]["matchLabels"]["job_id"] == "j"
    with pytest.raises(Invalid, match="pods here go to nodes with a=b"):
        await scheduler.start_workers(starts_with("k", selector={"a": "c"}))
