"""Schedulers: what turns "start N slots" into workers.

What lives here: the names a user of the library needs. What may not: anything else.

A backend is imported when its name is asked for: the supervisor process and a plain library
user need neither NATS nor HTTP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from events.messages import SchedulerConfig, StartPipelineReq, StopReply
from events.traffic import HeartbeatNodeReq, RegisterNodeReq, WorkerFinishedReq
from schedulers.interface import NotEnoughSlots, Scheduler, SchedulerError, UnknownNode

if TYPE_CHECKING:
    from schedulers.embedded import EmbeddedScheduler, WorkerContext
    from schedulers.kubernetes.config import KubernetesConfig
    from schedulers.kubernetes.scheduler import KubernetesScheduler
    from schedulers.manual import ManualScheduler
    from schedulers.node.backend import NodeScheduler
    from schedulers.process import ProcessScheduler
    from schedulers.replaying import replay

_BACKENDS = {
    "EmbeddedScheduler": "schedulers.embedded",
    "KubernetesConfig": "schedulers.kubernetes.config",
    "KubernetesScheduler": "schedulers.kubernetes.scheduler",
    "ManualScheduler": "schedulers.manual",
    "NodeScheduler": "schedulers.node.backend",
    "ProcessScheduler": "schedulers.process",
    "replay": "schedulers.replaying",
    "WorkerContext": "schedulers.embedded",
}


def __getattr__(name: str) -> object:
    if name not in _BACKENDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_BACKENDS[name]), name)


__all__ = [
    "EmbeddedScheduler",
    "HeartbeatNodeReq",
    "KubernetesConfig",
    "KubernetesScheduler",
    "ManualScheduler",
    "NodeScheduler",
    "NotEnoughSlots",
    "ProcessScheduler",
    "RegisterNodeReq",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerError",
    "StartPipelineReq",
    "StopReply",
    "UnknownNode",
    "WorkerContext",
    "WorkerFinishedReq",
    "replay",
]
