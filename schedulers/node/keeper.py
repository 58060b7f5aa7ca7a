"""Keeps a supervisor at hand: the present one, or the next after it died.

What lives here: who the supervisor is at the moment, the epoch it has seen, and the ends it
reports. What may not: NATS, and what becomes of an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from events.errors import SlotbusError
from events.messages import InventoryRow
from schedulers.node.backoff import Backoff
from schedulers.node.roster import Roster
from schedulers.node.stats import AgentStats
from schedulers.supervisor.api import Inventory, OutputTail, Supervisor, SupervisorGone

RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 5.0
WAIT_S: Final = 3.0
"""How long an order waits for a supervisor that is being replaced."""

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
        self.epoch = 0
        """The highest epoch this node has seen."""

    async def open(self) -> None:
        """Finds or starts the supervisor. Raises SlotbusError, OSError if that fails."""
        supervisor = await self._ensure()
        inventory = await supervisor.inventory(0)
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

    async def get(self, wait_s: float = WAIT_S) -> Supervisor:
        """The supervisor, waited for while it is replaced. Raises SupervisorGone."""
        if self._current is None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._there.wait()
            except TimeoutError:
                pass
        if self._current is None:
            raise SupervisorGone("this node's supervisor is being replaced")
        return self._current

    async def inventory(self, epoch: int = 0) -> Inventory:
        """What runs here; raises the epoch seen to ``epoch``. Raises SpawnRefused for a
        lower one than seen, SupervisorGone."""
        supervisor = await self.get()
        inventory = await supervisor.inventory(epoch)
        self._take(inventory)
        return inventory

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        """Stored output, as ``schedulers.shipping`` asks for it. Raises SupervisorGone."""
        supervisor = await self.get(0.0)
        return await supervisor.output(worker_id, since=since, max_bytes=max_bytes)

    def saw(self, epoch: int) -> None:
        """The supervisor has taken an order of this epoch."""
        self.epoch = self._stats.epoch = max(self.epoch, epoch)

    async def close(self) -> None:
        """Lets go of the supervisor."""
        await self._drop()

    async def _hear(self) -> None:
        supervisor = self._current
        assert supervisor is not None
        async for row in supervisor.reports():
            self._roster.ended(row.worker_id)
            self._on_end(row)

    async def _drop(self) -> None:
        supervisor, self._current = self._current, None
        self._there.clear()
        if supervisor is not None:
            try:
                await supervisor.close()
            except (SlotbusError, OSError) as error:
                _log.debug("closing the supervisor's client", cause=str(error))

    def _take(self, inventory: Inventory) -> None:
        self._roster.refresh(inventory)
        self.saw(inventory.epoch)
