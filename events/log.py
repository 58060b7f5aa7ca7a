"""The event log's port and its implementation in memory.

What lives here: what every log promises, its errors, and ``MemoryLog``. What may not:
files (``events.filelog``) and NATS (``events.jetstream``), and the meaning of records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec

from events.errors import SlotbusError
from events.facts import SCHEMA_VERSION, Record
from events.ids import START, Position

READ_BATCH: Final = 1_000
"""Records that one step of ``read`` yields at the most."""


class LogError(SlotbusError):
    """The event log can't do what was asked."""


class LogConflict(LogError):
    """Somebody else wrote: this writer no longer leads. Facts: ``expected``, ``found``."""


class LogUnsettled(LogError):
    """Within the time given it could not be learnt whether the append was stored."""


class LogFull(LogError):
    """The log refused the append because it is at its limit or its disk is full; nothing
    was stored."""


class LogUnreadable(LogError):
    """A record can't be understood: which (``position``), and why. Refuse to lead."""


class LogLost(LogError):
    """The log ends before a position that was acknowledged, or is another log."""


class EventLog(Protocol):
    """Records in order, appended by one writer at a time, under compare-and-swap.

    Read to the end before the first append: that tells the log where its end is.
    """

    async def read(self, after: Position = START) -> AsyncIterator[list[Record]]:
        """Yields what is stored after a position, oldest first, in batches, up to the end
        found at the call. Raises LogUnreadable, LogUnsettled (not reachable), LogLost."""
        ...
        yield []

    async def append(
        self, records: Sequence[Record], *, expected: Position, timeout_s: float
    ) -> None:
        """Stores all the records or none, if the log still ends at ``expected``.

        Returns once they are durable. Call it with one append in flight. Raises
        LogConflict, LogUnsettled (after ``timeout_s`` seconds), LogFull. After
        LogUnsettled the log is to be read again before the next append.
        """
        ...

    async def close(self) -> None:
        """Lets go of files and connections made by this log."""
        ...


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """The one line of JSON a record is, without the line's end."""
    return _ENCODER.encode(record)


def decode_record(line: bytes | memoryview, position: Position) -> Record:
    """Reads what ``encode_record`` wrote. Raises LogUnreadable, naming the position."""
    try:
        record = _DECODER.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise LogUnreadable(
            f"record {position} of the event log can't be read: {error}", position=position
        ) from error
    if record.v > SCHEMA_VERSION:
        raise LogUnreadable(
            f"record {position} has schema version {record.v}; this slotbus reads up to "
            f"{SCHEMA_VERSION}: upgrade it",
            position=position,
        )
    return record


class MemoryLog:
    """A log that lives as long as the object: for library use and for tests."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    async def read(self, after: Position = START) -> AsyncIterator[list[Record]]:
        end = len(self._lines)
        for start in range(after, end, READ_BATCH):
            stop = min(start + READ_BATCH, end)
            yield [
                decode_record(self._lines[index], Position(index + 1))
                for index in range(start, stop)
            ]

    async def append(
        self, records: Sequence[Record], *, expected: Position, timeout_s: float
    ) -> None:
        found = len(self._lines)
        if found != expected:
            raise LogConflict(
                f"the log ends at {found}, not at {expected}: another writer was here",
                expected=expected,
                found=found,
            )
        self._lines.extend([encode_record(record) for record in records])

    async def close(self) -> None:
        return None
