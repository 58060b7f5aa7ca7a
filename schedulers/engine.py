"""The engine: the scheduler's six methods over the loop.

What lives here: what a caller of the library and the controller use. What may not: how a
message is decided and stored (``schedulers.loop``).
"""

from __future__ import annotations

from events.ids import WorkerId
from events.messages import (
    Command,
    HeartbeatNodeReq,
    PlacedWorker,
    QueryWorkers,
    RegisterNodeReq,
    StartPipelineReq,
    StartReply,
    StopReply,
    StopWorkersReq,
    WorkerFinishedReq,
    WorkersReply,
)
from schedulers.decide.messages import Reply
from schedulers.interface import Scheduler
from schedulers.loop import Backend, EngineLoop, EngineSettings, EngineStats, LocalNode

__all__ = ["Backend", "Engine", "EngineSettings", "EngineStats", "LocalNode"]


class Engine(EngineLoop, Scheduler):
    """Implements the scheduler over an event log and a backend's launcher.

    The methods start the engine where nobody did.
    """

    async def start_workers(self, request: StartPipelineReq) -> list[PlacedWorker]:
        reply = await self._command(request)
        assert isinstance(reply, StartReply)
        return reply.workers

    async def register_node(self, request: RegisterNodeReq) -> None:
        await self._command(request)

    async def heartbeat_node(self, request: HeartbeatNodeReq) -> None:
        await self._command(request)

    async def worker_finished(self, request: WorkerFinishedReq) -> None:
        await self._command(request)

    async def stop_workers(
        self, job_id: str, run_id: int | None = None, force: bool = False
    ) -> StopReply:
        reply = await self._command(StopWorkersReq(job_id=job_id, run_id=run_id, force=force))
        assert isinstance(reply, StopReply)
        return reply

    async def workers_for_job(self, job_id: str, run_id: int | None = None) -> list[WorkerId]:
        await self.start()
        reply = await self.submit(QueryWorkers(job_id=job_id, run_id=run_id, limit=5_000))
        assert isinstance(reply, WorkersReply)
        return [WorkerId(row.worker_id) for row in reply.workers]

    async def _command(
        self, message: Command | RegisterNodeReq | HeartbeatNodeReq | WorkerFinishedReq
    ) -> Reply:
        await self.start()
        return await self.submit(message)
