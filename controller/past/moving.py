"""Logs that move: out into lines, in from a file.

What lives here: both ways. What may not: understanding files, printing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Raw, Struct
from nats.aio.client import Client

from controller.past.history import History, Moment
from events.errors import Invalid
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.log import encode_record
from events.subjects import Subjects
from schedulers.packing import create
from schedulers.recording import Snapshot, encode_line

AT_ONCE: Final = 200
APPEND_TIMEOUT_S: Final = 10.0


class Imported(Struct, frozen=True):
    """How many records a log has got."""

    records: int


def export_lines(history: History, begin: Moment, end: Moment) -> Iterator[bytes]:
    """Lines that ``import`` and every command with a FILE can read: the records of a stretch,
    after a snapshot where it is not the log's beginning."""
    chosen = history.between(begin, end)
    if chosen and chosen[0].position > 1:
        before = history.ledger_at(chosen[0].position - 1)
        snapshot = Raw(before.snapshot())
        yield encode_line(Snapshot(position=before.position, ledger=snapshot))
    for each in chosen:
        yield encode_record(each.record)


def write_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Into a new file, compressed by its suffix; how many. Raises OSError, FileExistsError too."""
    written = 0
    with create(path) as file:
        for line in lines:
            file.write(line + b"\n")
            written += 1
    return written


async def import_log(nc: Client, subjects: Subjects, history: History) -> Imported:
    """Writes a whole log into an empty one. Raises Invalid, LogError."""
    if history.after or not history.records:
        raise Invalid(f"this is no whole log: it begins after record {history.after}")
    log = JetStreamLog(nc, subjects)
    try:
        if [batch async for batch in log.read()]:
            raise Invalid(f"the event log of {subjects.root} is not empty: nothing was written")
        for first in range(0, len(history.records), AT_ONCE):
            part = history.records[first : first + AT_ONCE]
            await log.append(part, expected=Position(START + first), timeout_s=APPEND_TIMEOUT_S)
    finally:
        await log.close()
    return Imported(len(history.records))
