"""What a kubelet and a scheduler write about a pod and a node, as JSON.

What lives here: pure functions from a pod and a moment to the body of a merge patch. What may
not: sending them, clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from tests.support.kube.rest import Container, JsonObject, Pod

OOM_EXIT_CODE: Final = 137
OOM_REASON: Final = "OOMKilled"
POD_IP: Final = "10.1.0.1"


def stamp(at: datetime) -> str:
    """How the API writes a time: whole seconds."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def running_state(at: datetime) -> JsonObject:
    return {"running": {"startedAt": stamp(at)}}


def waiting_state(reason: str, message: str = "") -> JsonObject:
    return {"waiting": {"reason": reason, "message": message}}


def ended_state(code: int, at: datetime, reason: str | None = None, signal: int = 0) -> JsonObject:
    """``reason`` is by default what a kubelet says for this code."""
    said = reason or ("Completed" if code == 0 else "Error")
    ended: JsonObject = {"exitCode": code, "reason": said, "finishedAt": stamp(at)}
    if signal:
        ended["signal"] = signal
    return {"terminated": ended}


def running(pod: Pod, at: datetime) -> JsonObject:
    """Every container runs and is ready."""
    states = dict.fromkeys(_names(pod), running_state(at))
    return status(pod, "Running", states, at)


def waiting(pod: Pod, reason: str, message: str, at: datetime) -> JsonObject:
    """No container can start, for this reason; the pod stays Pending."""
    states = dict.fromkeys(_names(pod), waiting_state(reason, message))
    return status(pod, "Pending", states, at)


def ended(
    pod: Pod, code: int, at: datetime, reason: str | None = None, signal: int = 0
) -> JsonObject:
    """Every container has ended with ``code``."""
    states = dict.fromkeys(_names(pod), ended_state(code, at, reason, signal))
    return status(pod, "Failed" if code else "Succeeded", states, at)


def evicted(message: str, at: datetime) -> JsonObject:
    """As under pressure on the node: no word on containers."""
    return _failed("Evicted", message, at)


def deadline_exceeded(at: datetime) -> JsonObject:
    """As after the pod's activeDeadlineSeconds."""
    message = "Pod was active on the node longer than the specified deadline"
    return _failed("DeadlineExceeded", message, at)


def unschedulable(message: str, at: datetime) -> JsonObject:
    """As a scheduler that finds no node."""
    conditions = [_condition("PodScheduled", False, at, "Unschedulable", message)]
    return {"status": {"phase": "Pending", "conditions": conditions}}


def status(
    pod: Pod, phase: str, states: Mapping[str, JsonObject], at: datetime, reason: str | None = None
) -> JsonObject:
    """``states`` by container; containers without one are left out."""
    up = phase == "Running" and all("running" in state for state in states.values())
    return {
        "status": {
            "phase": phase,
            "reason": reason,
            "podIP": POD_IP,
            "startTime": stamp(at),
            "conditions": [
                _condition("PodScheduled", True, at),
                _condition("Initialized", True, at),
                _condition("ContainersReady", up, at),
                _condition("Ready", up, at),
            ],
            "containerStatuses": _statuses(pod.spec.containers, states),
        }
    }


def node_status(ready: str, at: datetime, cpu: str, memory: str, pods: int) -> JsonObject:
    """``ready`` is True, False or Unknown, the last as for a node that nobody hears."""
    room = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    return {
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [
                {
                    "type": "Ready",
                    "status": ready,
                    "reason": "Rig",
                    "lastHeartbeatTime": stamp(at),
                    "lastTransitionTime": stamp(at),
                }
            ],
        }
    }


def _names(pod: Pod) -> list[str]:
    return [container.name for container in pod.spec.containers]


def _failed(reason: str, message: str, at: datetime) -> JsonObject:
    return {
        "status": {
            "phase": "Failed",
            "reason": reason,
            "message": message,
            "startTime": stamp(at),
            "containerStatuses": None,
        }
    }


def _condition(
    kind: str, holds: bool, at: datetime, reason: str = "", message: str = ""
) -> JsonObject:
    condition: JsonObject = {
        "type": kind,
        "status": "True" if holds else "False",
        "lastTransitionTime": stamp(at),
    }
    return condition | ({"reason": reason, "message": message} if reason else {})


def _statuses(containers: list[Container], states: Mapping[str, JsonObject]) -> list[JsonObject]:
    return [
        {
            "name": container.name,
            "image": container.image,
            "imageID": f"rig/{container.image}",
            "restartCount": 0,
            "ready": "running" in states[container.name],
            "started": "running" in states[container.name],
            "state": states[container.name],
        }
        for container in containers
        if container.name in states
    ]
