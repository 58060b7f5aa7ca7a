"""What is kept of the past: which snapshots, how much of the log, and the archive before it.

What lives here: the rules, as pure functions, and carrying them out for the leader. What
may not: making snapshots (``controller.snapshotting``), and what the archive's files are
(``controller.archive``).

The log is purged only behind a snapshot that was read again and is right, and that at least
``kept`` newer ones follow or it is of these; the record that a snapshot ends with stays, for
it shows later that the snapshot is of this log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog
from msgspec import Struct

from controller.archive import Archive
from controller.snapshotting import SnapshotStats, Tidy
from events.errors import NotLeader
from events.ids import START, Position
from events.jetstream import Extent
from events.ledger import Ledger
from events.log import EventLog
from events.snapshots import Head, SnapshotStore, SnapshotUnreadable, unpack

SPREAD: Final = 16
"""Older snapshots that stay, evenly over the log: looking back reads from the one before."""

LOW_WATER: Final = 0.75
"""Of the bytes that the log may have, what a purge leaves."""

_log = structlog.get_logger("slotbus.retention")


class TrimmableLog(EventLog, Protocol):
    """An event log whose beginning can be removed."""

    async def extent(self) -> Extent: ...

    async def trim(self, upto: Position) -> None: ...


class Keeping(Struct, frozen=True, kw_only=True):
    """``kept``: newest snapshots that always stay; ``log_bytes``: beyond so many the log's
    oldest records go."""

    kept: int
    log_bytes: int


def superfluous(positions: Sequence[int], *, kept: int, needs_oldest: bool) -> list[int]:
    """The snapshots to drop so that SPREAD stay beside the newest, those first that leave the
    smallest gaps. ``positions`` grow; ``needs_oldest``: without it the log's first records
    could not be understood."""
    left = list(positions)
    dropped: list[int] = []
    while len(left) > kept + SPREAD:
        old = range(1 if needs_oldest else 0, len(left) - kept)
        least = min(old, key=lambda at: left[at + 1] - (left[at - 1] if at else 0))
        dropped.append(left.pop(least))
    return dropped


def cut(positions: Sequence[int], extent: Extent, keeping: Keeping) -> int:
    """Behind which of its snapshots a log is to be purged; 0 for none. What each record takes
    is taken to be the same."""
    if extent.bytes <= keeping.log_bytes:
        return 0
    candidates = [p for p in positions[: len(positions) - keeping.kept + 1] if p > extent.first]
    each = extent.bytes / (extent.last - extent.first + 1)
    for position in candidates:
        if each * (extent.last - position + 1) <= keeping.log_bytes * LOW_WATER:
            return position
    return candidates[-1] if candidates else 0


class Retention:
    """``tidy`` is for a ``Snapshotter``. Everything it removes it removes as the leader."""

    def __init__(
        self,
        log: TrimmableLog,
        store: SnapshotStore,
        keeping: Keeping,
        *,
        archive: Archive | None,
        may_act: Callable[[], float],
        stats: SnapshotStats,
    ) -> None:
        self._source = log
        self._store = store
        self._keeping = keeping
        self._archive = archive
        self._may_act = may_act
        self._stats = stats
        self._heads: dict[Position, Head] = {}
        """Of the snapshots that are known to be of this log."""

    async def tidy(self, ledger: Ledger) -> Tidy:
        """Drops what is torn or superfluous, purges what is to go. ``ledger`` knows who wrote
        the log up to where. Raises SlotbusError."""
        positions = await self._of_this_log(ledger)
        extent = await self._source.extent()
        self._stats.first, self._stats.log_bytes = extent.first, extent.bytes
        drop = superfluous(positions, kept=self._keeping.kept, needs_oldest=extent.first > 1)
        for position in drop:
            await self._drop(position)
        positions = [position for position in positions if position not in drop]
        at = cut(positions, extent, self._keeping)
        if at and await self._purge(positions, at):
            extent = await self._source.extent()
            self._stats.first, self._stats.log_bytes = extent.first, extent.bytes
        newest = positions[-1] if positions else START
        if newest and not self._stats.position:
            self._stats.position, self._stats.size = newest, self._heads[newest].packed
        wanted = extent.bytes > self._keeping.log_bytes and newest < ledger.position
        return Tidy(newest=newest, wanted=wanted)

    async def _of_this_log(self, ledger: Ledger) -> list[Position]:
        """Snapshots that the log confirms; what was never finished is dropped."""
        found = await self._store.positions()
        for position in found:
            if position in self._heads:
                continue
            try:
                head = await self._store.head(position)
            except SnapshotUnreadable as error:
                if position <= ledger.position:
                    _log.warning("unreadable snapshot", position=position, cause=error.message)
                    await self._drop(position)
                continue
            if ledger.wrote(head.epoch, position):
                self._heads[position] = head
            else:
                _log.error(
                    "a snapshot is of another log: this one lost its end, or was replaced",
                    position=position,
                    epoch=head.epoch,
                )
        return [position for position in found if position in self._heads]

    async def _purge(self, positions: Sequence[Position], at: int) -> bool:
        """Purges behind a snapshot, once the archive has it. False where it can't be."""
        position = Position(at)
        try:
            unpack(await self._store.load(position))
        except SnapshotUnreadable as error:
            _log.error("a kept snapshot is damaged", position=position, cause=error.message)
            await self._drop(position)
            return False
        if self._archive is not None:
            self._stats.archived = await self._archive.export(
                self._source, self._store, [p for p in positions if p <= at], self._stats.first
            )
        self._check()
        await self._source.trim(Position(at - 1))
        self._stats.purges += 1
        _log.info("log purged", before=at, archived=self._archive is not None)
        for old in positions:
            if old < at:
                await self._drop(old)
        return True

    async def _drop(self, position: int) -> None:
        self._check()
        self._heads.pop(Position(position), None)
        await self._store.drop(Position(position))

    def _check(self) -> None:
        if self._may_act() <= 0:
            raise NotLeader("the lease is over")
