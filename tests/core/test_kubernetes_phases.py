"""Pods as the API shows them, and what they say about their workers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from events.states import WorkerState
from schedulers.kubernetes.phases import MAX_REASON, Asked, Cause, Sighting, see, see_deleted
from schedulers.kubernetes.pods import Pod

W = WorkerState
RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T10:00:00Z"}}


def ended(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    """The state of a container that has ended at ten o'clock."""
    more = {"finishedAt": "2026-01-01T10:00:00Z"} | more
    return {"terminated": {"exitCode": code, "reason": reason, **more}}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def pod(
    phase: str,
    worker: dict[str, Any] | None = None,
    *,
    node: str = "n1",
    init: dict[str, Any] | None = None,
    sidecar: dict[str, Any] | None = None,
    conditions: list[dict[str, Any]] | None = None,
    deleted: str = "",
    volumes: list[dict[str, Any]] | None = None,
    **status: Any,
) -> Pod:
    """A pod as JSON, read as it is read from the API."""
    tree: dict[str, Any] = {
        "metadata": {"name": "p", "labels": None, "creationTimestamp": None},
        "spec": {
            "nodeName": node or None,
            "volumes": volumes,
            "containers": [
                {"name": "worker", "resources": {"limits": {"memory": "512Mi"}}, "image": "x"}
            ],
        },
        "status": {"phase": phase, "conditions": conditions, "hostIP": "127.0.0.1", **status},
    }
    statuses = [("side", sidecar), ("worker", worker)]
    found = [{"name": name, "state": state, "ready": False} for name, state in statuses if state]
    if found:
        tree["status"]["containerStatuses"] = found
    if init:
        tree["status"]["initContainerStatuses"] = [{"name": "fetch", "state": init}]
    if deleted:
        tree["metadata"] |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}
    return msgspec.json.decode(msgspec.json.encode(tree), type=Pod)


UNSCHEDULABLE = [
    {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available:\n 3 Insufficient cpu.",
    }
]
EVICTION = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
POD_GC = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]


@pytest.mark.parametrize(
    ("seen", "state", "cause", "words"),
    [
        (pod("Pending", node=""), W.ASSIGNED, Cause.PENDING, "waits for a node"),
        (
            pod("Pending", node="", conditions=UNSCHEDULABLE),
            W.ASSIGNED,
            Cause.UNSCHEDULABLE,
            "unschedulable: 0/3 nodes are available: 3 Insufficient cpu.",
        ),
        (pod("Pending"), W.ASSIGNED, Cause.PENDING, "its node has not begun"),
        (
            pod("Pending", waits("ContainerCreating")),
            W.ASSIGNED,
            Cause.PENDING,
            "ContainerCreating",
        ),
        (
            pod("Pending", waits("ImagePullBackOff", 'Back-off pulling image "x"')),
            W.ASSIGNED,
            Cause.IMAGE,
            'ImagePullBackOff: Back-off pulling image "x"',
        ),
        (pod("Pending", waits("ErrImagePull")), W.ASSIGNED, Cause.IMAGE, "ErrImagePull"),
        (
            pod("Pending", waits("CreateContainerConfigError", 'secret "s" not found')),
            W.ASSIGNED,
            Cause.CONTAINER,
            'CreateContainerConfigError: secret "s" not found',
        ),
        (
            pod(
                "Pending",
                waits("ContainerCreating"),
                volumes=[
                    {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "c", "configMap": {"name": "conf"}},
                    {"name": "s", "secret": {"secretName": "keys"}},
                    {"name": "o", "secret": {"secretName": "maybe", "optional": True}},
                    {"name": "e", "emptyDir": {}},
                ],
            ),
            W.ASSIGNED,
            Cause.VOLUME,
            "ContainerCreating; it needs PersistentVolumeClaim data, ConfigMap conf, Secret keys",
        ),
        (
            pod("Pending", waits("PodInitializing"), init=waits("ImagePullBackOff")),
            W.ASSIGNED,
            Cause.IMAGE,
            "init container fetch: ImagePullBackOff",
        ),
        (pod("Pending", init=RUNS), W.ASSIGNED, Cause.INIT, "init container fetch runs"),
        (pod("Running", RUNS), W.RUNNING, Cause.NONE, ""),
        (pod("Running"), W.RUNNING, Cause.NONE, ""),
        (
            pod("Running", waits("ErrImagePull"), sidecar=RUNS),
            W.ASSIGNED,
            Cause.IMAGE,
            "ErrImagePull",
        ),
        (
            pod("Unknown", RUNS, message="Node is lost"),
            W.LOST,
            Cause.NODE,
            "node n1 does not tell: Node is lost",
        ),
    ],
)
def test_a_worker_that_may_live(seen: Pod, state: WorkerState, cause: Cause, words: str) -> None:
    sighting = see(seen)
    assert (sighting.state, sighting.cause, sighting.reason) == (state, cause, words)
    assert sighting.exit_code is None
    assert not sighting.gone


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (
            pod("Succeeded", ended(0, "Completed")),
            Sighting(state=W.FINISHED, cause=Cause.EXIT, exit_code=0, gone=True, node="n1"),
        ),
        (
            pod("Succeeded"),
            Sighting(state=W.FINISHED, cause=Cause.EXIT, exit_code=0, gone=True, node="n1"),
        ),
        (
            pod("Failed", ended(3, message="no such table\n")),
            Sighting(
                state=W.FAILED,
                cause=Cause.EXIT,
                reason="exit code 3: no such table",
                exit_code=3,
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", ended(137, "OOMKilled")),
            Sighting(
                state=W.FAILED,
                cause=Cause.OUT_OF_MEMORY,
                reason="out of memory (limit 512Mi)",
                exit_code=137,
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", ended(0, signal=9)),
            Sighting(
                state=W.FAILED, cause=Cause.EXIT, reason="signal 9", signal=9, gone=True, node="n1"
            ),
        ),
        (
            pod("Failed", ended(128, "StartError", message="exec: no such file")),
            Sighting(
                state=W.FAILED,
                cause=Cause.CONTAINER,
                reason="its container could not be started: exec: no such file",
                exit_code=128,
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", ended(137, "ContainerStatusUnknown")),
            Sighting(
                state=W.LOST,
                cause=Cause.NODE,
                reason="its container vanished from the node",
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", reason="Evicted", message="The node was low on memory."),
            Sighting(
                state=W.LOST,
                cause=Cause.EVICTED,
                reason="evicted: The node was low on memory.",
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", ended(143), reason="DeadlineExceeded"),
            Sighting(
                state=W.FAILED,
                cause=Cause.DEADLINE,
                reason="ran longer than its deadline",
                exit_code=143,
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", reason="OutOfcpu", message="Node didn't have enough resource"),
            Sighting(
                state=W.FAILED,
                cause=Cause.REJECTED,
                reason="its node did not take it: Node didn't have enough resource",
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", init=ended(2, message="no network")),
            Sighting(
                state=W.FAILED,
                cause=Cause.INIT,
                reason="init container fetch ended with exit code 2: no network",
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", reason="SomethingNew", message="why not"),
            Sighting(
                state=W.FAILED,
                cause=Cause.EXIT,
                reason="failed: SomethingNew: why not",
                gone=True,
                node="n1",
            ),
        ),
        (
            pod("Failed", ended(143), conditions=EVICTION),
            Sighting(
                state=W.LOST,
                cause=Cause.EVICTED,
                reason="evicted",
                exit_code=143,
                gone=True,
                node="n1",
            ),
        ),
    ],
)
def test_a_worker_that_has_ended(seen: Pod, expected: Sighting) -> None:
    assert see(seen) == expected


def test_the_worker_ends_before_its_sidecar_and_whatever_its_sidecar_does() -> None:
    assert see(pod("Running", ended(0), sidecar=RUNS)).state is W.FINISHED
    assert see(pod("Running", ended(1), sidecar=RUNS)).state is W.FAILED
    assert see(pod("Failed", ended(0), sidecar=ended(1))).state is W.FINISHED
    assert see(pod("Running", RUNS, sidecar=ended(1))).state is W.RUNNING


def test_a_pod_of_a_node_that_is_no_more_proves_nothing() -> None:
    sighting = see(pod("Failed", RUNS, conditions=POD_GC))
    assert (sighting.state, sighting.cause, sighting.gone) == (W.LOST, Cause.NODE, False)


def test_a_pod_that_we_delete_is_stopping_until_its_container_ended() -> None:
    terminating = pod("Running", RUNS, deleted="2026-01-01T10:00:30Z")
    for asked in (Asked.GRACEFULLY, Asked.FORCED):
        sighting = see(terminating, asked)
        assert (sighting.state, sighting.cause) == (W.STOPPING, Cause.TERMINATING)
        assert sighting.reason == "still terminating on node n1"
        assert not sighting.gone
    stopped = pod("Failed", ended(143), deleted="2026-01-01T10:00:30Z")
    assert see(stopped, Asked.GRACEFULLY).exit_code == 143
    assert see(stopped, Asked.GRACEFULLY).gone


def test_a_pod_deleted_by_hand_is_lost_at_once_and_gone_when_it_is() -> None:
    sighting = see(pod("Running", RUNS, deleted="2026-01-01T10:00:30Z"))
    assert (sighting.state, sighting.cause, sighting.gone) == (W.LOST, Cause.DELETED, False)
    assert sighting.reason == "its pod is being deleted, not by slotbus"
    # It was asked at 10:00:00 and ended then: not of its own will.
    sighting = see(pod("Succeeded", ended(0), deleted="2026-01-01T10:00:30Z"))
    assert (sighting.state, sighting.exit_code, sighting.gone) == (W.LOST, 0, True)


def test_a_pod_deleted_after_its_end_tells_its_end() -> None:
    over = pod("Succeeded", ended(0), deleted="2026-01-01T11:00:00Z")
    assert see(over).state is W.FINISHED
    assert see_deleted(over).state is W.FINISHED
    assert see_deleted(pod("Failed", ended(2))).exit_code == 2


def test_a_pod_that_is_evicted_says_so() -> None:
    sighting = see(pod("Running", RUNS, conditions=EVICTION, deleted="2026-01-01T10:00:30Z"))
    assert (sighting.state, sighting.cause) == (W.LOST, Cause.EVICTED)
    assert sighting.reason == "evicted: EvictionByEvictionAPI"


@pytest.mark.parametrize(
    ("last", "asked", "state", "gone"),
    [
        (pod("Running", RUNS), Asked.NO, W.LOST, False),
        (pod("Running", RUNS), Asked.GRACEFULLY, W.LOST, True),
        (pod("Running", RUNS), Asked.FORCED, W.LOST, False),
        (pod("Running", ended(137)), Asked.FORCED, W.FAILED, True),
        (pod("Pending", node=""), Asked.NO, W.LOST, True),
        (pod("Pending", node=""), Asked.FORCED, W.LOST, True),
        (pod("Succeeded", ended(0)), Asked.GRACEFULLY, W.FINISHED, True),
    ],
)
def test_an_object_that_is_no_more(last: Pod, asked: Asked, state: WorkerState, gone: bool) -> None:
    sighting = see_deleted(last, asked)
    assert (sighting.state, sighting.gone) == (state, gone)
    assert sighting.reason or sighting.state is W.FINISHED


def test_who_removed_it_by_force_is_told_what_nobody_knows() -> None:
    sighting = see_deleted(pod("Running", RUNS), Asked.FORCED)
    assert sighting.reason == "removed by force; node n1 has not confirmed its end"


def test_reasons_are_one_line_of_bounded_length() -> None:
    sighting = see(pod("Failed", ended(1, message="a\nb" + "x" * 5000)))
    assert sighting.reason.startswith("exit code 1: a bx")
    assert len(sighting.reason) == MAX_REASON


def test_a_pod_of_which_nothing_is_told_yet() -> None:
    bare = msgspec.json.decode(b'{"metadata": {"name": "p"}}', type=Pod)
    assert see(bare).state is W.ASSIGNED
