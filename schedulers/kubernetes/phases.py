"""What a pod's state says about its worker.

What lives here: one pure mapping from a pod as it was seen, or was last seen, to a worker's
state with the reason a person reads. What may not: remembering pods, and conclusions that
need the ledger.

``gone`` is a proof: the kubelet reported the worker's container as ended or let the object
go, or no node ever had it. An object that vanished by force proves nothing.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from events.states import WorkerState
from schedulers.kubernetes.config import WORKER
from schedulers.kubernetes.pods import Pod, PodCondition, PodVolume, Terminated, Waiting

MAX_REASON: Final = 500
"""Characters; messages of the scheduler can be as long as the cluster has nodes."""


DELETED: Final = "its pod was deleted, not by slotbus"


class Cause(StrEnum):
    """The kind of reason, for counting and for deciding what to tell."""

    NONE = "none"
    PENDING = "pending"
    UNSCHEDULABLE = "unschedulable"
    IMAGE = "image"
    CONTAINER = "container"
    VOLUME = "volume"
    INIT = "init"
    EXIT = "exit"
    OUT_OF_MEMORY = "out_of_memory"
    EVICTED = "evicted"
    DEADLINE = "deadline"
    REJECTED = "rejected"
    TERMINATING = "terminating"
    DELETED = "deleted"
    NODE = "node"


class Asked(StrEnum):
    """Whether we asked for the end of this pod."""

    NO = "no"
    GRACEFULLY = "gracefully"
    FORCED = "forced"


class Sighting(Struct, frozen=True, kw_only=True):
    """``state``: assigned (not running yet), running, stopping, finished, failed, lost."""

    state: WorkerState
    cause: Cause = Cause.NONE
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    gone: bool = False
    node: str = ""


_WAITING: Final[dict[str, Cause]] = {
    "ErrImagePull": Cause.IMAGE,
    "ImagePullBackOff": Cause.IMAGE,
    "InvalidImageName": Cause.IMAGE,
    "ErrImageNeverPull": Cause.IMAGE,
    "ImageInspectError": Cause.IMAGE,
    "RegistryUnavailable": Cause.IMAGE,
    "SignatureValidationFailed": Cause.IMAGE,
    "CreateContainerConfigError": Cause.CONTAINER,
    "CreateContainerError": Cause.CONTAINER,
    "RunContainerError": Cause.CONTAINER,
    "PreCreateHookError": Cause.CONTAINER,
    "PreStartHookError": Cause.CONTAINER,
    "PostStartHookError": Cause.CONTAINER,
}
"""What the kubelet says of a container that does not run yet and may never."""

_FAILED: Final[dict[str, tuple[WorkerState, Cause, bool]]] = {
    "Evicted": (WorkerState.LOST, Cause.EVICTED, True),
    "Preempting": (WorkerState.LOST, Cause.EVICTED, True),
    "Terminated": (WorkerState.LOST, Cause.NODE, True),
    "NodeShutdown": (WorkerState.LOST, Cause.NODE, True),
    "Shutdown": (WorkerState.LOST, Cause.NODE, True),
    "NodeLost": (WorkerState.LOST, Cause.NODE, False),
    "DeadlineExceeded": (WorkerState.FAILED, Cause.DEADLINE, True),
    "UnexpectedAdmissionError": (WorkerState.FAILED, Cause.REJECTED, True),
    "NodeAffinity": (WorkerState.FAILED, Cause.REJECTED, True),
    "NodePorts": (WorkerState.FAILED, Cause.REJECTED, True),
}
"""Reasons of a pod that failed as a whole: state, cause, and whether the kubelet knows."""

_WORDS: Final = {
    Cause.EVICTED: "evicted",
    Cause.NODE: "its node went away",
    Cause.DEADLINE: "ran longer than its deadline",
    Cause.REJECTED: "its node did not take it",
}
_OUT_OF: Final = "OutOf"
"""``OutOfcpu``, ``OutOfpods``: the kubelet had no room for what it was sent."""

_BY_POD_GC: Final = "DeletionByPodGC"
"""Set where the node is no more: nobody saw the containers end."""


def see(pod: Pod, asked: Asked = Asked.NO) -> Sighting:
    """What a pod that exists says about its worker."""
    end = _end(pod)
    if pod.metadata.deletion_timestamp is None:
        return end or _alive(pod)
    if end is not None and (asked is not Asked.NO or _ended_before(pod)):
        return end
    if asked is Asked.NO:
        return _deleted(pod, end, DELETED if end else "its pod is being deleted, not by slotbus")
    return Sighting(
        state=WorkerState.STOPPING,
        cause=Cause.TERMINATING,
        reason=f"still terminating on node {pod.node}" if pod.node else "being deleted",
        node=pod.node,
    )


def see_deleted(last: Pod, asked: Asked = Asked.NO) -> Sighting:
    """What is known of a worker whose pod no longer exists; ``last``: the pod as it was."""
    end = _end(last)
    if end is not None and (asked is not Asked.NO or _ended_before(last)):
        return end
    if asked is Asked.NO:
        text = DELETED if end or not last.node else _unconfirmed(DELETED, last)
        return _deleted(last, end, text)
    proved = asked is Asked.GRACEFULLY or not last.node
    return Sighting(
        state=WorkerState.LOST,
        cause=Cause.DELETED,
        reason="stopped; its exit code was not reported"
        if proved
        else _unconfirmed("removed by force", last),
        gone=proved,
        node=last.node,
    )


def _end(pod: Pod) -> Sighting | None:
    """How the worker ended; None while its end is not reported."""
    status, ended = pod.status, pod.state_of(WORKER).terminated
    over = status.phase in ("Failed", "Succeeded")
    disruption = _disruption(pod)
    if status.phase == "Failed" and disruption is not None:
        known = disruption.reason != _BY_POD_GC or ended is not None
        cause = Cause.NODE if disruption.reason == _BY_POD_GC else Cause.EVICTED
        return _ending(pod, WorkerState.LOST, cause, disruption.message, known)
    if status.phase == "Failed" and status.reason in _FAILED:
        state, cause, known = _FAILED[status.reason]
        return _ending(pod, state, cause, status.message, known or ended is not None)
    if status.phase == "Failed" and (status.reason or "").startswith(_OUT_OF):
        return _ending(pod, WorkerState.FAILED, Cause.REJECTED, status.message, True)
    if ended is not None:
        return _exit(pod, ended)
    if status.phase == "Succeeded":
        return _sighting(pod, WorkerState.FINISHED, Cause.EXIT, "", exit_code=0, gone=True)
    return _never_ran(pod) if over else None


def _exit(pod: Pod, ended: Terminated) -> Sighting:
    """The end of the container that is ours."""
    if ended.reason == "ContainerStatusUnknown":
        text = _joined("its container vanished from the node", ended.message)
        return _sighting(pod, WorkerState.LOST, Cause.NODE, text, gone=True)
    code, signal = ended.exit_code, ended.signal or None
    if code == 0 and signal is None:
        return _sighting(pod, WorkerState.FINISHED, Cause.EXIT, "", exit_code=0, gone=True)
    cause, text = Cause.EXIT, f"exit code {code}" if signal is None else f"signal {signal}"
    if ended.reason == "OOMKilled":
        cause, text = Cause.OUT_OF_MEMORY, "out of memory" + _memory_limit(pod)
    elif ended.reason in ("StartError", "ContainerCannotRun"):
        cause, text = Cause.CONTAINER, "its container could not be started"
    return Sighting(
        state=WorkerState.FAILED,
        cause=cause,
        reason=_joined(text, ended.message),
        exit_code=code if signal is None else None,
        signal=signal,
        gone=True,
        node=pod.node,
    )


def _never_ran(pod: Pod) -> Sighting:
    """The pod failed without its worker: an init container, or the node refused it."""
    for status in pod.status.init_container_statuses or []:
        ended = status.state.terminated if status.state else None
        if ended is not None and ended.exit_code:
            text = f"init container {status.name} ended with exit code {ended.exit_code}"
            text = _joined(text, ended.message)
            return _sighting(pod, WorkerState.FAILED, Cause.INIT, text, gone=True)
    text = _joined(f"failed: {pod.status.reason or 'no reason given'}", pod.status.message)
    return _sighting(pod, WorkerState.FAILED, Cause.EXIT, text, gone=True)


def _alive(pod: Pod) -> Sighting:
    state = pod.state_of(WORKER)
    if pod.status.phase == "Unknown":
        text = _joined(f"node {pod.node} does not tell", pod.status.message)
        return _sighting(pod, WorkerState.LOST, Cause.NODE, text)
    if state.running is not None:
        return _sighting(pod, WorkerState.RUNNING, Cause.NONE, "")
    if pod.status.phase == "Running" and state.waiting is None:
        return _sighting(pod, WorkerState.RUNNING, Cause.NONE, "")
    if not pod.node:
        return _unbound(pod)
    for status in pod.status.init_container_statuses or []:
        waiting = status.state.waiting if status.state else None
        if waiting is not None and waiting.reason in _WAITING:
            return _waits(pod, waiting, f"init container {status.name}: ")
        if status.state is not None and status.state.running is not None and state.waiting is None:
            return _sighting(
                pod, WorkerState.ASSIGNED, Cause.INIT, f"init container {status.name} runs"
            )
    return _waits(pod, state.waiting or Waiting(), "")


def _unbound(pod: Pod) -> Sighting:
    scheduled = pod.condition("PodScheduled")
    if scheduled is None or scheduled.status != "False":
        return _sighting(pod, WorkerState.ASSIGNED, Cause.PENDING, "waits for a node")
    text = _joined(_spaced(scheduled.reason or "Unschedulable"), scheduled.message)
    return _sighting(pod, WorkerState.ASSIGNED, Cause.UNSCHEDULABLE, text)


def _waits(pod: Pod, waiting: Waiting, who: str) -> Sighting:
    cause = _WAITING.get(waiting.reason or "")
    if cause is not None:
        text = who + _joined(str(waiting.reason), waiting.message)
        return _sighting(pod, WorkerState.ASSIGNED, cause, text)
    needed = [text for text in map(_needs, pod.spec.volumes or []) if text]
    text = _joined(who + (waiting.reason or "its node has not begun"), waiting.message)
    if needed:
        text += f"; it needs {', '.join(needed)}"
    cause = Cause.VOLUME if needed else Cause.PENDING
    return _sighting(pod, WorkerState.ASSIGNED, cause, text)


def _needs(volume: PodVolume) -> str:
    """The object that must exist before a volume can be mounted; "" for none."""
    if volume.persistent_volume_claim is not None:
        return f"PersistentVolumeClaim {volume.persistent_volume_claim.claim_name}"
    for kind, source in (("ConfigMap", volume.config_map), ("Secret", volume.secret)):
        if source is not None and not source.optional:
            return f"{kind} {source.name or source.secret_name}"
    return ""


def _unconfirmed(text: str, pod: Pod) -> str:
    return f"{text}; node {pod.node} has not confirmed its end"


def _deleted(pod: Pod, end: Sighting | None, text: str) -> Sighting:
    """Somebody else ended it: whatever it says itself, it did not end by its own will."""
    disruption = _disruption(pod)
    cause = Cause.DELETED if disruption is None else Cause.EVICTED
    if disruption is not None:
        text = _joined("evicted", disruption.message or disruption.reason)
    found = end or Sighting(state=WorkerState.LOST, gone=not pod.node, node=pod.node)
    return msgspec.structs.replace(found, state=WorkerState.LOST, cause=cause, reason=text)


def _ended_before(pod: Pod) -> bool:
    """Whether the worker had ended when the deletion was asked for (or none was)."""
    due = pod.metadata.deletion_timestamp
    ended = pod.state_of(WORKER).terminated
    if due is None:
        return True
    if ended is None or ended.finished_at is None:
        return False
    asked_at = due - timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    return ended.finished_at < asked_at


def _disruption(pod: Pod) -> PodCondition | None:
    condition = pod.condition("DisruptionTarget")
    return condition if condition is not None and condition.status == "True" else None


def _memory_limit(pod: Pod) -> str:
    for container in pod.spec.containers or []:
        if container.name == WORKER and container.resources is not None:
            limit = (container.resources.limits or {}).get("memory")
            return f" (limit {limit})" if limit else ""
    return ""


def _ending(
    pod: Pod, state: WorkerState, cause: Cause, message: str | None, known: bool
) -> Sighting:
    """The end of a pod as a whole; a container's exit code is told where there is one."""
    ended = pod.state_of(WORKER).terminated
    return Sighting(
        state=state,
        cause=cause,
        reason=_joined(_WORDS[cause], message),
        exit_code=ended.exit_code if ended is not None else None,
        gone=known,
        node=pod.node,
    )


def _sighting(
    pod: Pod,
    state: WorkerState,
    cause: Cause,
    reason: str,
    *,
    exit_code: int | None = None,
    gone: bool = False,
) -> Sighting:
    return Sighting(
        state=state, cause=cause, reason=reason, exit_code=exit_code, gone=gone, node=pod.node
    )


def _joined(text: str, message: str | None) -> str:
    """One line for a person, of bounded length."""
    whole = f"{text}: {' '.join(message.split())}" if message and message.strip() else text
    return whole if len(whole) <= MAX_REASON else f"{whole[: MAX_REASON - 3]}..."


def _spaced(reason: str) -> str:
    return {"Unschedulable": "unschedulable", "SchedulingGated": "held by a gate"}.get(
        reason, reason
    )
