"""Keeps a supervisor at hand: the present one, or the next after it died.

What lives here: who the supervisor is at the moment, the epoch it has seen, and the ends it
reports. What may not: NATS, and what becomes of an end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from events.errors import SlotbusError
from events.traffic import AgentStopReply, InventoryRow
from schedulers.backoff import Backoff
from schedulers.node.roster import Roster
from schedulers.node.stats import AgentStats
from schedulers.supervisor.api import (
    Inventory,
    OutputTail,
    Spawned,
    Supervisor,
    SupervisorGone,
    WorkerSpec,
)
from schedulers.supervisor.client import SupervisorClient

RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 5.0
WAIT_S: Final = 3.0
"""How long an order waits for a supervisor that is being replaced."""

SHUTDOWN_GRACE_S: Final = 1.0

Ensure = Callable[[], Awaitable[Supervisor]]

_log = structlog.get_logger("slotbus.agent")


class Keeper:
    """``open`` first, then ``run`` as a task of its owner. ``on_end`` hears of each end at
    least once, ``on_attached`` of each supervisor with its workers; both must not block."""

    def __init__(
        self,
        ensure: Ensure,
        roster: Roster,
        stats: AgentStats,
        *,
        on_end: Callable[[InventoryRow], None],
        on_attached: Callable[[Inventory], None],
    ) -> None:
        self._ensure = ensure
        self._roster = roster
        self._stats = stats
        self._on_end = on_end
        self._on_attached = on_attached
        self._current: Supervisor | None = None
        self._there = asyncio.Event()
        self._lost = asyncio.Event()
        self.epoch = 0
        """The highest epoch this node has seen."""

    async def open(self) -> None:
        """Finds or starts the supervisor. Raises SlotbusError, OSError if that fails."""
        supervisor = await self._ensure()
        try:
            inventory = await supervisor.inventory(0)
        except BaseException:
            await supervisor.close()
            raise
        self._current = supervisor
        self._there.set()
        self._stats.supervisors += 1
        self._take(inventory)
        self._on_attached(inventory)

    async def run(self) -> None:
        """Hands on ends, and replaces a supervisor that is gone, until cancelled."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        said = False
        while True:
            try:
                if self._current is None:
                    await self.open()
                    _log.info("the supervisor is back, and its workers with it")
                backoff.reset()
                said = False
                await self._hear()
                _log.warning("the supervisor is gone, starting another")
            except (SlotbusError, OSError) as error:
                if not said:
                    _log.warning("no supervisor, trying again and again", cause=str(error))
                said = True
            await self._drop()
            await asyncio.sleep(backoff.next())

    async def launch(self, spec: WorkerSpec, epoch: int) -> Spawned:
        """Raises SpawnRefused, Invalid, SupervisorGone."""
        async with self._using() as supervisor:
            spawned = await supervisor.launch(spec, epoch)
        self._saw(epoch)
        return spawned

    async def stop(
        self, worker_id: str, *, force: bool, grace_s: float, epoch: int
    ) -> AgentStopReply:
        """Raises SpawnRefused, SupervisorGone."""
        async with self._using() as supervisor:
            reply = await supervisor.stop(worker_id, force=force, grace_s=grace_s, epoch=epoch)
        self._saw(epoch)
        return reply

    async def inventory(self, epoch: int = 0) -> Inventory:
        """What runs here; raises the epoch seen to ``epoch``. Raises SpawnRefused for a
        lower one than seen, SupervisorGone."""
        async with self._using() as supervisor:
            inventory = await supervisor.inventory(epoch)
        self._take(inventory)
        return inventory

    async def acknowledge(self, worker_id: str) -> None:
        """Raises SupervisorGone."""
        async with self._using() as supervisor:
            await supervisor.acknowledge([worker_id])

    async def renew(self, sent_at: float) -> None:
        """A leader answered what was sent then. Raises SupervisorGone."""
        async with self._using() as supervisor:
            await supervisor.renew(sent_at)

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        """Stored output, as ``schedulers.shipping`` asks for it. Raises SupervisorGone."""
        async with self._using(wait_s=0.0) as supervisor:
            return await supervisor.output(worker_id, since=since, max_bytes=max_bytes)

    async def close(self) -> None:
        """Lets go of the supervisor, which goes on."""
        await self._drop()

    async def shutdown(self) -> None:
        """Has a supervisor process end, and what still runs there."""
        supervisor, self._current = self._current, None
        if isinstance(supervisor, SupervisorClient):
            try:
                await supervisor.shutdown(SHUTDOWN_GRACE_S)
            except SlotbusError as error:
                _log.warning("the supervisor does not end", cause=error.message)

    @asynccontextmanager
    async def _using(self, wait_s: float = WAIT_S) -> AsyncIterator[Supervisor]:
        """The supervisor, waited for while it is replaced; one that does not answer is
        replaced. Raises SupervisorGone."""
        if self._current is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._there.wait()
        supervisor = self._current
        if supervisor is None:
            raise SupervisorGone("this node's supervisor is being replaced")
        try:
            yield supervisor
        except SupervisorGone:
            if supervisor is self._current:
                self._lost.set()
            raise

    async def _hear(self) -> None:
        """Hands on what the supervisor reports, until it is lost."""
        hearing = asyncio.create_task(self._hear_reports(), name="reports")
        losing = asyncio.create_task(self._lost.wait(), name="supervisor lost")
        try:
            await asyncio.wait({hearing, losing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hearing.cancel()
            losing.cancel()
            await asyncio.wait({hearing, losing})
        if not hearing.cancelled():
            hearing.result()

    async def _hear_reports(self) -> None:
        supervisor = self._current
        if supervisor is None:
            return
        async for row in supervisor.reports():
            self._roster.ended(row.worker_id)
            self._on_end(row)

    async def _drop(self) -> None:
        supervisor, self._current = self._current, None
        self._there.clear()
        self._lost.clear()
        if supervisor is not None:
            try:
                await supervisor.close()
            except (SlotbusError, OSError) as error:
                _log.debug("closing the supervisor's client", cause=str(error))

    def _take(self, inventory: Inventory) -> None:
        self._roster.refresh(inventory)
        self._saw(inventory.epoch)

    def _saw(self, epoch: int) -> None:
        self.epoch = self._stats.epoch = max(self.epoch, epoch)
