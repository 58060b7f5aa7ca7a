"""The past of a running cluster, also what was purged: its log, snapshots and archive.

What lives here: from which of these a moment or a whole history is read. What may not: what
is made of it (``controller.past.views`` and the like), and changing anything.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct
from nats.aio.client import Client

from controller.archive import Part, parts_of
from controller.past.history import History, Moment
from events.errors import Invalid
from events.facts import Record
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.jetstream_snapshots import JetStreamSnapshots
from events.ledger import Ledger
from events.log import EventLog, LogLost, LogPurged
from events.recall import fold, oldest
from events.snapshots import (
    SnapshotFailed,
    SnapshotStore,
    SnapshotUnreadable,
    is_last,
    restore,
)
from events.subjects import Subjects
from schedulers.files import read_file
from schedulers.recording import Snapshot

UNUSABLE: Final = (SnapshotUnreadable, SnapshotFailed, LogLost, LogPurged)
"""Why a look does not begin with this snapshot; the one before may do."""


class Reach(Struct, frozen=True):
    """Where a cluster's past is. ``archive``: a folder of what was purged, if there is one."""

    log: EventLog
    store: SnapshotStore
    archive: Path | None = None


def reach(nc: Client, subjects: Subjects, archive: Path | None = None) -> Reach:
    """The past of the cluster at a connection, without making anything there."""
    log = JetStreamLog(nc, subjects, create=False)
    return Reach(log, JetStreamSnapshots(nc, subjects), archive)


# --- a moment ---------------------------------------------------------------------------------


async def ledger_at(past: Reach, moment: Moment) -> Ledger:
    """As it was after the last record up to a moment, read from the snapshot before it on.
    Raises Invalid for a moment that is not there, LogError."""
    for position in reversed(await _positions(past.store)):
        try:
            if await _is_after(past.store, position, moment):
                continue
            ledger = restore(await past.store.load(position))
            return await _fold_until(past.log, ledger, moment)
        except UNUSABLE:
            continue
    try:
        ledger = await _fold_until(past.log, Ledger(), moment)
    except LogPurged as error:
        if past.archive is None:
            raise Invalid(
                f"what was then is purged: the log begins at record {error.facts.get('first')}; "
                "say --archive FOLDER, if it was archived"
            ) from error
        return await asyncio.to_thread(archived_at, past.archive, moment)
    if isinstance(moment, datetime) and ledger.position == START:
        raise _too_early(moment)
    return ledger


async def _positions(store: SnapshotStore) -> list[Position]:
    try:
        return await store.positions()
    except SnapshotFailed:
        return []  # not ours to see: then from the log alone


async def _is_after(store: SnapshotStore, position: Position, moment: Moment) -> bool:
    if isinstance(moment, datetime):
        return (await store.head(position)).at > moment
    return moment is not None and position > moment


async def _fold_until(log: EventLog, ledger: Ledger, moment: Moment) -> Ledger:
    """Raises LogLost where the log is not the one that the ledger is of, Invalid for a
    position beyond its end."""
    seen = ledger.position == START
    async with aclosing(log.read(Position(max(0, ledger.position - 1)))) as batches:
        async for records in batches:
            if not seen:
                seen = True
                if not is_last(records[0], ledger):
                    raise LogLost(f"record {ledger.position} is another one")
                records = records[1:]
            wanted = _up_to(records, ledger.position, moment)
            fold(ledger, wanted)
            if len(wanted) < len(records):
                break
    if isinstance(moment, int) and ledger.position < moment:
        raise Invalid(f"there are records 1 to {ledger.position}, and no {moment}")
    return ledger


def _up_to(records: list[Record], before: int, moment: Moment) -> list[Record]:
    """Those up to a moment, of records that follow the one at ``before``."""
    if isinstance(moment, int):
        return records[: max(0, moment - before)]
    if isinstance(moment, datetime) and records and records[-1].at > moment:
        return [record for record in records if record.at <= moment]
    return records


def _too_early(moment: datetime) -> Invalid:
    return Invalid(f"the log begins after {moment:%Y-%m-%d %H:%M:%S %Z}")


# --- all of it --------------------------------------------------------------------------------


async def history(past: Reach) -> History:
    """All that is left: the archive and the log behind it; without an archive the log, from
    the first snapshot on where its beginning is purged. Raises Invalid where they don't fit
    together, LogError."""
    before = History(records=[])
    if past.archive is not None:
        before = await asyncio.to_thread(archived, past.archive)
    end = before.after + len(before.records)
    try:
        behind = await _read(past.log, Position(max(0, end - 1)))
    except LogPurged:
        return await _from_oldest(past)
    except LogLost as error:
        raise Invalid(f"the archive knows more than the log: {error.message}") from error
    if end:
        last = before.records[-1]
        if (last.at, last.epoch) != (behind[0].at, behind[0].epoch):
            raise Invalid(f"the archive {past.archive} is of another log")
        behind = behind[1:]
    return History(records=before.records + behind, base=before.base, after=before.after)


async def _read(log: EventLog, after: Position) -> list[Record]:
    return [record async for batch in log.read(after) for record in batch]


async def _from_oldest(past: Reach) -> History:
    base = await oldest(past.log, past.store)
    if base is None:
        raise Invalid(
            "the log's beginning is purged, and no snapshot of what came before it can be used"
        )
    after = Position(base.position)
    return History(records=await _read(past.log, after), base=base.snapshot(), after=after)


# --- the archive ------------------------------------------------------------------------------


def archived(folder: Path) -> History:
    """What an archive holds without a gap, up to its end. Raises Invalid, OSError."""
    found = History(records=[])
    for part in parts_of(folder):
        end = found.after + len(found.records)
        if part.last <= end:
            continue
        here = _part(part)
        if part.first > end + 1:
            found = here
        else:
            found.records.extend(here.records[end + 1 - part.first :])
    return found


def archived_at(folder: Path, moment: Moment) -> Ledger:
    """As ``ledger_at``, from the one file that has the moment. Raises Invalid, OSError."""
    for part in reversed(parts_of(folder)):
        if isinstance(moment, int) and not part.first - 1 <= moment <= part.last:
            continue
        base = _base(part)
        if isinstance(moment, datetime) and (base.state.at or _never(part)) > moment:
            continue
        fold(base, _up_to(_part(part).records, base.position, moment))
        if base.position:
            return base
    if isinstance(moment, datetime):
        raise _too_early(moment)
    raise Invalid(f"record {moment} is neither in the log nor in the archive {folder}")


def _never(part: Part) -> datetime:
    """Of a part without a base: when its first record was written."""
    return next(item.at for item in read_file(part.path) if isinstance(item, Record))


def _base(part: Part) -> Ledger:
    first = next(iter(read_file(part.path)), None)
    return Ledger.restore(bytes(first.ledger)) if isinstance(first, Snapshot) else Ledger()


def _part(part: Part) -> History:
    """The records of one file. Raises Invalid where they are not those of its name."""
    base, records = b"", []
    for item in read_file(part.path):
        if isinstance(item, Snapshot):
            base = bytes(item.ledger)
        elif isinstance(item, Record):
            records.append(item)
    if len(records) != part.last - part.first + 1:
        raise Invalid(f"{part.path.name} holds {len(records)} records")
    return History(records=records, base=base, after=Position(part.first - 1))
