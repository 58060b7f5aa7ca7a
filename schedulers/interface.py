"""The scheduler's interface: the six methods a user calls and a controller delegates to.

What lives here: the abstract class, with Arroyo's names and order. What may not: any
behaviour but the empty default for node traffic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from events.errors import NotEnoughSlots, SlotbusError, UnknownNode
from events.ids import WorkerId
from events.messages import PlacedWorker, StartPipelineReq, StopReply
from events.traffic import HeartbeatNodeReq, RegisterNodeReq, WorkerFinishedReq

SchedulerError = SlotbusError

__all__ = ["NotEnoughSlots", "Scheduler", "SchedulerError", "UnknownNode"]


class Scheduler(ABC):
    """Turns "start N slots" into workers. The names and their order are Arroyo's.

    Node traffic has an empty default on purpose: only backends with agents hear any.
    """

    @abstractmethod
    async def start_workers(self, request: StartPipelineReq) -> list[PlacedWorker]:
        """Starts ``request.slots`` slots, all or nothing, and returns the workers once
        all are launched. Raises NotEnoughSlots (``slots_needed``: the shortage) and other
        SchedulerErrors: StaleRun, RunActive, StartFailed, CommandTimeout, Invalid."""

    async def register_node(self, request: RegisterNodeReq) -> None:  # noqa: B027
        """Takes up a node and its slots. Raises DuplicateNode. Backends without agents
        ignore it."""

    async def heartbeat_node(self, request: HeartbeatNodeReq) -> None:  # noqa: B027
        """Keeps a node alive. Raises UnknownNode. Backends without agents ignore it."""

    async def worker_finished(self, request: WorkerFinishedReq) -> None:  # noqa: B027
        """Takes the end of a worker. Backends without agents ignore it."""

    @abstractmethod
    async def stop_workers(
        self, job_id: str, run_id: int | None = None, force: bool = False
    ) -> StopReply:
        """Stops the workers of a job, of one run or of all; returns when they are gone,
        with those that can't be confirmed. Raises UnknownJob, CommandTimeout."""

    @abstractmethod
    async def workers_for_job(self, job_id: str, run_id: int | None = None) -> list[WorkerId]:
        """Ids of the workers alive, in order; an unknown job has none."""
