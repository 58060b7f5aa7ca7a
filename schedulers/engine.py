"""The engine: the scheduler's six methods over the loop.

What lives here: what a caller of the library and the controller use. What may not: how a
message is decided and stored (``schedulers.loop``).
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from events import codec
from events.errors import Invalid
from events.ids import WorkerId
from events.messages import (
    Command,
    PlacedWorker,
    StartPipelineReq,
    StartReply,
    StopReply,
    StopWorkersReq,
)
from events.queries import QueryWorkers, WorkersReply
from events.traffic import HeartbeatNodeReq, RegisterNodeReq, WorkerFinishedReq
from schedulers.backend import Backend, LocalNode
from schedulers.decide.messages import NodeTraffic, Query, Reply
from schedulers.interface import Scheduler
from schedulers.leading import Leading
from schedulers.loop import EngineSettings, EngineStats

__all__ = ["Backend", "Engine", "EngineSettings", "EngineStats", "LocalNode"]

WORKERS_LIMIT: Final = 5_000
"""Rows that one query may ask for at the most."""

M = TypeVar("M", bound=msgspec.Struct)


class Engine(Leading, Scheduler):
    """Implements the scheduler over an event log and a backend's launcher.

    The methods start the engine where nobody did. What they are given is held to the same
    rules as a message from the wire: they raise Invalid, TooLarge too.
    """

    async def start_workers(self, request: StartPipelineReq) -> list[PlacedWorker]:
        reply = await self._command(request)
        assert isinstance(reply, StartReply)
        return reply.workers

    async def register_node(self, request: RegisterNodeReq) -> None:
        await self._from_node(request)

    async def heartbeat_node(self, request: HeartbeatNodeReq) -> None:
        await self._from_node(request)

    async def worker_finished(self, request: WorkerFinishedReq) -> None:
        await self._from_node(request)

    async def stop_workers(
        self, job_id: str, run_id: int | None = None, force: bool = False
    ) -> StopReply:
        reply = await self._command(StopWorkersReq(job_id=job_id, run_id=run_id, force=force))
        assert isinstance(reply, StopReply)
        return reply

    async def workers_for_job(self, job_id: str, run_id: int | None = None) -> list[WorkerId]:
        query = QueryWorkers(job_id=job_id, run_id=run_id, limit=WORKERS_LIMIT)
        found: list[WorkerId] = []
        while True:
            reply = await self._command(query)
            assert isinstance(reply, WorkersReply)
            found += [WorkerId(row.worker_id) for row in reply.workers]
            if not reply.next:
                return found
            query = msgspec.structs.replace(query, cursor=reply.next)

    async def _from_node(self, message: NodeTraffic) -> None:
        if self.backend.local is None:
            await self._command(message)

    async def _command(self, message: Command | Query | NodeTraffic) -> Reply:
        checked = _as_from_the_wire(message)
        await self.start()
        return await self.submit(checked)


def _as_from_the_wire(message: M) -> M:
    """Structs made in Python are not checked when they are made. Raises Invalid, TooLarge."""
    try:
        body = codec.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"can't be written as JSON: {error}") from error
    return codec.decode(body, type(message))
