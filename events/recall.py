"""From an event log to a ledger: the whole log, or a kept snapshot and what follows it.

What lives here: reading and folding, and which snapshot is trusted. What may not: where
snapshots are kept (``events.snapshots``), and when they are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

import structlog
from msgspec import Struct

from events.collector import paused_collector
from events.errors import SlotbusError
from events.facts import Record
from events.ids import START, Position
from events.ledger import Ledger
from events.log import EventLog, LogError, LogLost, LogPurged, LogUnreadable
from events.snapshots import (
    SnapshotFailed,
    SnapshotStore,
    SnapshotUnreadable,
    is_last,
    restore,
)
from events.states import IllegalTransition

PASSED_OVER: Final = "snapshot passed over"

_log = structlog.get_logger("slotbus.recall")


class LogBeheaded(LogError):
    """The beginning of the log is purged, and no snapshot that reaches it can be used: refuse
    to lead. ``first``: the oldest record that is left."""


class Recalled(Struct, frozen=True, kw_only=True):
    """A ledger at the log's end. ``base``: the position of the snapshot it began with."""

    ledger: Ledger
    base: Position = START


def fold(ledger: Ledger, records: Iterable[Record]) -> None:
    """Folds stored records. Raises LogUnreadable for one that can't follow those before."""
    try:
        for record in records:
            ledger.apply(record)
    except IllegalTransition as error:
        position = ledger.position + 1
        raise LogUnreadable(
            f"record {position} of the event log can't be: {error}", position=position
        ) from error


async def read_on(log: EventLog, *ledgers: Ledger) -> None:
    """Folds what a log has behind ledgers that all stand at one position, up to its end. The
    record that they folded last is looked for first: a log that lost its end and was written on
    has another one there. What goes wrong on the way leaves them somewhere in between, all at
    the same place but after LogUnreadable. Raises LogError as ``EventLog.read``, and LogLost
    where the log does not have that record."""
    position = ledgers[0].position
    seen = position == START
    async with aclosing(log.read(Position(max(0, position - 1)))) as batches:
        async for records in batches:
            if not seen:
                seen = True
                _check_last(records.pop(0), ledgers[0])
            for ledger in ledgers:
                fold(ledger, records)
    if not seen:
        raise LogLost(
            f"the log ends before the known position {position}: its tail was lost",
            expected=position,
        )


async def fold_on(log: EventLog, ledger: Ledger) -> None:
    """As ``read_on`` for much at once, at a program's beginning."""
    with paused_collector():
        await read_on(log, ledger)


def _check_last(record: Record, ledger: Ledger) -> None:
    if not is_last(record, ledger):
        raise LogLost(
            f"record {ledger.position} of the event log is another one than it was: the log lost "
            "its end and was written on",
            expected=ledger.position,
        )


async def recall(log: EventLog, store: SnapshotStore | None = None) -> Recalled:
    """A ledger at the log's end: from the newest snapshot that can be used, else from all of
    the log. What is passed over is named in the program's log.

    Raises LogBeheaded, and LogError as ``EventLog.read``.
    """
    if store is not None:
        for position in reversed(await _positions(store)):
            found = await _from_snapshot(log, store, position)
            if found is not None:
                return found
    ledger = Ledger()
    try:
        await fold_on(log, ledger)
    except LogPurged as error:
        first = error.facts.get("first")
        raise LogBeheaded(
            f"the event log begins at record {first}, and no snapshot of what came before can "
            "be used: put the snapshots back from a backup, or import the archived log with what "
            "follows it into a new cluster (docs/operating.md, Backups)",
            first=first,
        ) from error
    return Recalled(ledger=ledger)


async def _positions(store: SnapshotStore) -> list[Position]:
    try:
        return await store.positions()
    except SnapshotFailed as error:
        _log.warning("no snapshots can be looked for, reading on", cause=error.message)
        return []


async def _from_snapshot(
    log: EventLog, store: SnapshotStore, position: Position
) -> Recalled | None:
    """None where the snapshot can't be used with this log. Raises LogError where it is the
    log that can't be read."""
    try:
        ledger = restore(await store.load(position))
        await fold_on(log, ledger)
    except (SnapshotUnreadable, SnapshotFailed, LogLost, LogPurged) as error:
        _say(position, error)
        return None
    return Recalled(ledger=ledger, base=position)


def _say(position: Position, error: SlotbusError) -> None:
    if isinstance(error, LogLost):  # what the snapshot knows, the log has forgotten
        _log.error(PASSED_OVER, position=position, cause=error.message)
    else:
        _log.warning(PASSED_OVER, position=position, cause=error.message)


async def oldest(log: EventLog, store: SnapshotStore) -> Ledger | None:
    """The ledger of the oldest snapshot whose record the log still has: where looking back can
    begin when the log's own beginning is purged. None: there is none. Raises LogError where it
    is the log that can't be read."""
    for position in await _positions(store):
        try:
            ledger = restore(await store.load(position))
            async with aclosing(log.read(Position(position - 1))) as batches:
                async for records in batches:
                    if is_last(records[0], ledger):
                        return ledger
                    break
        except (SnapshotUnreadable, SnapshotFailed, LogLost, LogPurged):
            continue
    return None
