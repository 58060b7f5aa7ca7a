"""Schedulers: what turns "start N slots" into workers.

What lives here: the names a user of the library needs. What may not: anything else.
"""

from __future__ import annotations

from events.messages import (
    HeartbeatNodeReq,
    RegisterNodeReq,
    SchedulerConfig,
    StartPipelineReq,
    StopReply,
    WorkerFinishedReq,
)
from schedulers.interface import NotEnoughSlots, Scheduler, SchedulerError, UnknownNode
from schedulers.node.backend import NodeScheduler
from schedulers.process import ProcessScheduler

__all__ = [
    "HeartbeatNodeReq",
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
    "WorkerFinishedReq",
]
