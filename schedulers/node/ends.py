"""Ends of workers: told to the leader until it acknowledges, then to the supervisor.

What lives here: the reports under way. What may not: what an end means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from events.codec import encode
from events.errors import SlotbusError, UnknownNode
from events.subjects import Subjects
from events.traffic import FinishedReply, InventoryRow
from schedulers.backoff import Backoff
from schedulers.launcher import report_of
from schedulers.node.identity import Identity
from schedulers.node.keeper import Keeper
from schedulers.node.link import Link, NotConnected, Unanswered
from schedulers.node.presence import read_answer
from schedulers.node.stats import AgentStats
from schedulers.shipping import LogShipper

AT_ONCE: Final = 32
REQUEST_TIMEOUT_S: Final = 2.0
RETRY_FIRST_S: Final = 0.2
RETRY_MOST_S: Final = 5.0

_log = structlog.get_logger("slotbus.agent")


class EndReporter:
    """``add`` may be called at any time; ``run`` owns the reports. ``on_unknown`` is called
    when the leader does not know this node, ``on_told`` when an end is over and done. As
    many wait as the supervisor keeps ends, which is bounded there."""

    def __init__(
        self,
        identity: Identity,
        subjects: Subjects,
        link: Link,
        keeper: Keeper,
        shipper: LogShipper,
        stats: AgentStats,
        accepted: asyncio.Event,
        on_unknown: Callable[[], None],
        on_told: Callable[[], None],
    ) -> None:
        self._identity = identity
        self._subject = subjects.node(identity.node_id, "finished")
        self._link = link
        self._keeper = keeper
        self._shipper = shipper
        self._stats = stats
        self._accepted = accepted
        self._on_unknown = on_unknown
        self._on_told = on_told
        self._waiting: dict[str, InventoryRow] = {}
        self._fresh: asyncio.Queue[InventoryRow] = asyncio.Queue()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, row: InventoryRow) -> None:
        """This worker ended. Hearing it twice changes nothing."""
        if row.worker_id in self._waiting:
            return
        self._waiting[row.worker_id] = row
        self._stats.ends_waiting = len(self._waiting)
        self._fresh.put_nowait(row)

    async def run(self) -> None:
        """Reports, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                row = await self._fresh.get()
                task = group.create_task(self._deliver(row), name=f"end of {row.worker_id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _deliver(self, row: InventoryRow) -> None:
        _log.info(
            "worker ended",
            worker_id=row.worker_id,
            job_id=row.job_id,
            run_id=row.run_id,
            state=row.state.value,
            exit_code=row.exit_code,
            signal=row.signal,
            reason=row.reason,
        )
        await self._until_done(self._report, row)
        await self._shipper.finish(row.worker_id)
        await self._until_done(self._acknowledge, row)
        self._waiting.pop(row.worker_id, None)
        self._stats.ends_reported += 1
        self._stats.ends_waiting = len(self._waiting)
        self._on_told()

    async def _until_done(
        self, step: Callable[[InventoryRow], Awaitable[None]], row: InventoryRow
    ) -> None:
        """Repeats a step until it succeeds: an end is never given up."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        said = ""
        while True:
            try:
                await step(row)
                return
            except UnknownNode:
                self._on_unknown()
            except NotConnected:
                said = ""
            except SlotbusError as error:
                if error.message != said:
                    said = error.message
                    _log.warning(
                        "the end of a worker is still to be told",
                        worker_id=row.worker_id,
                        cause=said,
                    )
            await asyncio.sleep(backoff.next())

    async def _report(self, row: InventoryRow) -> None:
        """Raises SlotbusError unless a leader of the present has it in its log."""
        await self._accepted.wait()
        report = report_of(row, self._identity.node_id)
        async with self._slots:
            body = await self._link.ask(self._subject, encode(report), REQUEST_TIMEOUT_S)
        reply = read_answer(body, FinishedReply)
        if reply.epoch < self._keeper.epoch:
            raise Unanswered(f"acknowledged under epoch {reply.epoch}, which is over")

    async def _acknowledge(self, row: InventoryRow) -> None:
        await self._keeper.acknowledge(row.worker_id)
