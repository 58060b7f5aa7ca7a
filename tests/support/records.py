"""Records for tests of logs and of what reads them.

What lives here: records that are told apart by their number, and reading a log whole.
What may not: the meaning of facts.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

from msgspec import Raw

from events.facts import NodeCordoned, Record, RunCreated
from events.ids import START, Position
from events.log import EventLog, LogPurged, MemoryLog

EPOCH = 1_700_000_000_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def a_record(number: int = 1, *, cause: str | None = None) -> Record:
    """A small record; another number, another record."""
    return Record(
        at=BEGIN + timedelta(seconds=number),
        epoch=EPOCH,
        cause=cause or f"cordon c-{number}",
        events=[NodeCordoned(node_id=f"n{number}")],
    )


def some_records(count: int, first: int = 1) -> list[Record]:
    """Records numbered from ``first`` on."""
    return [a_record(number) for number in range(first, first + count)]


def a_large_record(program_bytes: int, number: int = 1) -> Record:
    """A record whose program has about so many bytes."""
    return Record(
        at=BEGIN,
        epoch=EPOCH,
        cause=f"start c-{number}",
        events=[
            RunCreated(
                job_id=f"j{number}",
                run_id=1,
                command_id=f"c-{number}",
                slots=1,
                name="large",
                hash="",
                deadline=BEGIN,
                program=Raw(b'{"blob":"' + b"x" * program_bytes + b'"}'),
            )
        ],
    )


class Beheaded(MemoryLog):
    """A log whose records before ``first`` were purged."""

    first = 20

    async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        if after + 1 < self.first:
            raise LogPurged(f"begins at {self.first}", first=self.first)
        async with contextlib.aclosing(super().read(after)) as batches:
            async for batch in batches:
                yield batch


async def read_all(log: EventLog, after: Position = START) -> list[Record]:
    """Everything after a position, in one list."""
    return [record async for batch in log.read(after) for record in batch]


async def append(
    log: EventLog, records: list[Record], expected: int, timeout_s: float = 10.0
) -> int:
    """Appends and returns the position behind."""
    await log.append(records, expected=Position(expected), timeout_s=timeout_s)
    return expected + len(records)
