"""Snapshots beside the engine, which never waits for one.

What lives here: a second ledger that folds what the log has acknowledged, when a snapshot
of it is due, and making one in small steps. What may not: what a snapshot is
(``events.snapshots``), and how many are kept for how long (``controller.retention``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import structlog
from msgspec import Struct

from events.errors import NotLeader, SlotbusError
from events.facts import Record
from events.ids import START, Position
from events.ledger import Ledger
from events.log import EventLog
from events.recall import fold
from events.snapshots import Snapshot, SnapshotStore, head_of, pack, pieces

SLICE_S: Final = 0.001
"""Of the loop's time, until others get a turn."""

SLICE_RECORDS: Final = 20
GATHER_S: Final = 0.05
"""What is acknowledged in this time is folded together."""

MAX_WAITING: Final = 20_000
"""Records held in memory, while a snapshot is made; beyond, they are read from the log."""

PAUSE_S: Final = 5.0
"""Between two snapshots at the least, also where the last one failed."""

LOOK_S: Final = 10.0
"""Between two looks at whether something is to be removed."""

_log = structlog.get_logger("slotbus.snapshots")


class SnapshotStats(Struct):
    """Of one controller. ``position`` and ``size``: of the newest snapshot it made, or found
    when it began to lead; ``at``: when, on the monotonic clock, in seconds. ``first``: the
    oldest record that is left in the log; ``archived``: the last one in the archive."""

    position: int = 0
    at: float = 0.0
    size: int = 0
    made: int = 0
    failures: int = 0
    first: int = 0
    log_bytes: int = 0
    purges: int = 0
    archived: int = 0


class Tidy(Struct, frozen=True):
    """What a look at the store came to. ``newest``: the newest snapshot of this log;
    ``wanted``: without another one there is nothing behind which the log may be purged."""

    newest: Position = START
    wanted: bool = False


class Snapshotter:
    """``offer`` is for the engine's observers, ``run`` a task of the owner. ``shadow`` is a
    ledger of its own, at the position where ``offer`` begins.

    ``tidy`` is asked after each snapshot and now and then; ``may_act``: seconds for which
    this controller may still act as leader.
    """

    def __init__(
        self,
        log: EventLog,
        store: SnapshotStore,
        shadow: Ledger,
        *,
        every: int,
        tidy: Callable[[Ledger], Awaitable[Tidy]],
        may_act: Callable[[], float],
        stats: SnapshotStats,
        version: str = "",
    ) -> None:
        self._source = log
        self._store = store
        self._shadow = shadow
        self._every = every
        self._tidy = tidy
        self._may_act = may_act
        self._stats = stats
        self._version = version
        self._waiting: deque[Record] = deque()
        self._end: int = shadow.position
        self._some = asyncio.Event()
        self._busy = asyncio.Lock()
        self._newest: int | None = None
        self._wanted = False
        self._made_at = float("-inf")

    @property
    def position(self) -> int:
        """Up to where the log is folded here."""
        return self._shadow.position

    def offer(self, position: Position, record: Record) -> None:
        """Takes an acknowledged record; never waits."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()  # what is folded next is read from the log
        self._waiting.append(record)
        self._end = position
        self._some.set()

    async def run(self) -> None:
        """Follows, and makes snapshots as they are due, until cancelled. Raises SlotbusError
        where one could not be made; run it again."""
        loop = asyncio.get_running_loop()
        looked_at = float("-inf")
        while True:
            async with self._busy:
                if loop.time() >= looked_at + LOOK_S:
                    looked_at = loop.time()
                    await self._look()
                await self._follow()
                if self._is_due():
                    await self._make()
            await self._pause(looked_at + LOOK_S)

    async def hand_over(self, timeout_s: float) -> None:
        """One more for whoever comes next, where that saves reading; gives up in time."""
        try:
            async with asyncio.timeout(timeout_s), self._busy:
                await self._follow()
                if self._newest is not None and self._behind > self._every // 10:
                    await self._make()
        except (SlotbusError, TimeoutError) as error:
            _log.info("no snapshot at the end of this lead", cause=str(error) or "too slow")

    @property
    def _behind(self) -> int:
        return self._shadow.position - (self._newest or 0)

    def _is_due(self) -> bool:
        if self._newest is None or self._behind <= 0:
            return False
        rested = asyncio.get_running_loop().time() >= self._made_at + PAUSE_S
        return rested and (self._wanted or self._behind >= self._every)

    async def _pause(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        if self._newest is not None and (self._wanted or self._behind >= self._every):
            until = min(until, self._made_at + PAUSE_S)
        try:
            async with asyncio.timeout_at(until):
                self._some.clear()
                if self._end == self._shadow.position:
                    await self._some.wait()
                await asyncio.sleep(min(GATHER_S, max(0.0, until - loop.time())))
        except TimeoutError:
            pass

    async def _look(self) -> None:
        """Learns which snapshot is the newest, at first; later what was removed is its own."""
        try:
            found = await self._tidy(self._shadow)
        except SlotbusError:
            self._stats.failures += 1
            raise
        self._newest, self._wanted = max(found.newest, self._newest or 0), found.wanted

    # --- the second ledger ----------------------------------------------------------------

    async def _follow(self) -> None:
        """Folds all that was acknowledged, in small steps."""
        while self._shadow.position < self._end:
            missing = self._end - self._shadow.position - len(self._waiting)
            if missing > 0:
                await self._read_missing(missing)
                continue
            some = [self._waiting.popleft() for _ in range(min(SLICE_RECORDS, len(self._waiting)))]
            fold(self._shadow, some)
            await asyncio.sleep(0)

    async def _read_missing(self, count: int) -> None:
        """Folds what was dropped for lack of room. Raises LogError."""
        async with aclosing(self._source.read(Position(self._shadow.position))) as batches:
            async for records in batches:
                for at in range(0, min(len(records), count), SLICE_RECORDS):
                    fold(self._shadow, records[at : min(at + SLICE_RECORDS, count)])
                    await asyncio.sleep(0)
                count -= len(records)
                if count <= 0:
                    return

    # --- a snapshot -----------------------------------------------------------------------

    async def _make(self) -> None:
        """Stores one, and looks what it makes superfluous. Raises SlotbusError."""
        loop = asyncio.get_running_loop()
        self._made_at = loop.time()
        try:
            snapshot = await self._take()
            if self._may_act() <= 0:
                raise NotLeader("the lease is over")
            await self._store.keep(snapshot)
        except SlotbusError as error:
            self._stats.failures += 1
            _log.warning("no snapshot", position=self._shadow.position, cause=error.message)
            raise
        self._newest, self._wanted = snapshot.head.position, False
        stats = self._stats
        stats.position, stats.size = snapshot.head.position, snapshot.head.packed
        stats.at, stats.made = loop.time(), stats.made + 1
        _log.info(
            "snapshot kept",
            position=snapshot.head.position,
            bytes=snapshot.head.packed,
            took_s=round(loop.time() - self._made_at, 3),
        )
        await self._look()

    async def _take(self) -> Snapshot:
        """The shadow stands still meanwhile; what is acknowledged waits."""
        loop = asyncio.get_running_loop()
        parts: list[bytes] = []
        began = loop.time()
        for piece in pieces(self._shadow.state):
            parts.append(piece)
            if loop.time() - began > SLICE_S:
                await asyncio.sleep(0)
                began = loop.time()
        packed = await asyncio.to_thread(pack, parts)
        head = head_of(self._shadow.state, packed, version=self._version)
        return Snapshot(head=head, data=packed.data)
