"""The output of workers that run next to the controller, for ``slotbus logs``.

What lives here: for the process scheduler, what an agent does for its node: live lines on
``log.<job_id>.<worker_id>`` and answers on ``agent.local.logs``. What may not: storing
output (the supervisor's).
"""

from __future__ import annotations

import asyncio
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from events.codec import decode, encode
from events.errors import Internal, SlotbusError
from events.facts import Record, WorkerEnded, WorkerLaunched
from events.ids import Position
from events.ledger import Ledger
from events.subjects import Subjects
from events.traffic import AgentLogs, LogLines
from schedulers.process import LOCAL_NODE, ProcessLauncher
from schedulers.shipping import LogShipper, stored_tail
from schedulers.supervisor.api import OutputTail

ENDS_WAITING: Final = 10_000

_log = structlog.get_logger("slotbus.output")


class LocalOutput:
    """One leadership's. ``observe`` is for the engine; ``run`` is a task of the owner."""

    def __init__(
        self, nc: Client, subjects: Subjects, launcher: ProcessLauncher, ledger: Ledger
    ) -> None:
        self._nc = nc
        self._subjects = subjects
        self._launcher = launcher
        self._ledger = ledger
        self._shipper = LogShipper(self, self._publish)
        self._ended: asyncio.Queue[str] = asyncio.Queue(ENDS_WAITING)

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        """From the supervisor in use. Raises SupervisorGone."""
        supervisor = await self._launcher.supervisor()
        return await supervisor.output(worker_id, since=since, max_bytes=max_bytes)

    def observe(self, _position: Position, record: Record) -> None:
        """Follows workers that were launched, and lets go of those that ended."""
        for fact in record.events:
            if isinstance(fact, WorkerLaunched):
                self._follow(fact.worker_id, since=0)
            elif isinstance(fact, WorkerEnded) and not self._ended.full():
                self._ended.put_nowait(fact.worker_id)

    def _follow(self, worker_id: str, *, since: int | None) -> None:
        worker = self._ledger.workers.get(worker_id)
        if worker is not None:
            self._shipper.follow(worker_id, worker.job_id, worker.run_id, since=since)

    async def run(self) -> None:
        """Ships, and answers, until cancelled. Raises nats.errors.Error."""
        for worker in self._ledger.workers.values():
            if worker.launched and not worker.gone:  # what it printed before is in its files
                self._follow(worker.worker_id, since=None)
        asked = await self._nc.subscribe(
            self._subjects.agent(LOCAL_NODE, "logs"), cb=self._on_asked
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._shipper.run(), name="output")
                group.create_task(self._let_go(), name="output of ended workers")
        finally:
            await _unsubscribe(asked)

    async def _let_go(self) -> None:
        while True:
            await self._shipper.finish(await self._ended.get())

    async def _publish(self, lines: LogLines) -> None:
        await self._nc.publish(self._subjects.log(lines.job_id, lines.worker_id), encode(lines))

    async def _on_asked(self, message: Msg) -> None:
        try:
            body = encode(await stored_tail(self, decode(message.data, AgentLogs)))
        except SlotbusError as error:
            body = encode(error.body())
        except OSError as error:
            body = encode(Internal(f"the output can't be read: {error}").body())
        if message.reply:
            try:
                await message.respond(body)
            except (nats.errors.Error, OSError) as error:
                _log.debug("stored output not sent", cause=str(error) or repr(error))


async def _unsubscribe(subscription: Subscription) -> None:
    try:
        await subscription.unsubscribe()
    except (nats.errors.Error, OSError) as error:
        _log.debug("connection gone while closing", cause=str(error) or repr(error))
