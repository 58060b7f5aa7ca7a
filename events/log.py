"""The event log's port and its implementation in memory.

What lives here: what every log promises, its errors, and ``MemoryLog``. What may not:
files (``events.filelog``) and NATS (``events.jetstream``), and the meaning of records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar, Final, Protocol

import msgspec

from events.errors import SlotbusError
from events.facts import SCHEMA_VERSION, Record
from events.ids import START, Position
from events.upcasts import NoUpcast, upcast

READ_BATCH: Final = 1_000
"""Records that one step of ``read`` yields at the most."""


class LogError(SlotbusError):
    """The event log can't do what was asked. ``passing``: what was read of it stays true."""

    passing: ClassVar[bool] = False


class NoLog(LogError):
    """No event log was ever written here."""


class LogConflict(LogError):
    """Somebody else wrote: this writer no longer leads. Facts: ``expected``, ``found``."""


class LogUnsettled(LogError):
    """Within the time given it could not be learnt whether the append was stored, or the
    log could not be reached."""

    passing: ClassVar[bool] = True


class LogFull(LogError):
    """The log refused the append because it is at its limit or its disk is full; nothing
    was stored."""


class LogUnreadable(LogError):
    """A record can't be understood: which (``position``), and why. Refuse to lead."""


class LogLost(LogError):
    """The log ends before a position that was acknowledged, or is another log."""


class LogPurged(LogError):
    """The records asked for were purged behind a snapshot: the oldest left is ``first``."""


class EventLog(Protocol):
    """Records in order, appended by one writer at a time, under compare-and-swap.

    What a caller knows of the log is a position; reading after a position that the log
    has not reached, or never had, is how loss is noticed.
    """

    def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        """Yields what is stored after a position, oldest first, in batches of one to
        READ_BATCH records, up to the end found at the call; may run beside an append.

        Raises LogUnreadable, LogUnsettled (not reachable), LogPurged, and LogLost if the
        log ends before ``after``.
        """
        ...

    async def append(
        self, records: Sequence[Record], *, expected: Position, timeout_s: float
    ) -> None:
        """Stores all the records, if the log still ends at ``expected``.

        Returns once they are durable; appends wait for one another. After LogFull and
        TooLarge (one record is over the store's limit) nothing was stored. After
        LogConflict, LogUnsettled (``timeout_s`` seconds are over) or a cancellation the
        first few may be stored, each whole: read the log again. Raises LogLost too.
        """
        ...

    async def close(self) -> None:
        """Lets go of files and connections made by this log. A closed log is done with."""
        ...


def conflict(expected: int, found: int) -> LogConflict:
    """The error of a writer whose idea of the log's end is wrong."""
    return LogConflict(
        f"the log ends at {found}, not at {expected}: another writer was here",
        expected=expected,
        found=found,
    )


def lost(after: int, found: int) -> LogLost:
    """The error of a reader who knows of more records than the log has."""
    return LogLost(
        f"the log ends at {found}, before the known position {after}: its tail was lost",
        expected=after,
        found=found,
    )


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for what is no record."""

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """The one line of JSON a record is, without the line's end."""
    line = _ENCODER.encode(record)
    if b"\n" in line:  # a program's raw JSON, written over several lines
        line = msgspec.json.format(line, indent=-1)
    return line


def decode_record(line: bytes | memoryview, position: Position) -> Record:
    """Reads what ``encode_record`` wrote, of this schema version or an older one. Raises
    LogUnreadable, naming the position."""
    try:
        record = _DECODER.decode(line)
        if record.v == SCHEMA_VERSION:
            return record
        return _of_another_version(line, record.v, position)
    except UNREADABLE as error:
        version = _version(line)
        if version != SCHEMA_VERSION:
            return _of_another_version(line, version, position)
        raise _unreadable(position, error) from error


def _of_another_version(line: bytes | memoryview, version: int, position: Position) -> Record:
    if version > SCHEMA_VERSION:
        raise LogUnreadable(
            f"record {position} has schema version {version}; this slotbus reads up to "
            f"{SCHEMA_VERSION}: upgrade it",
            position=position,
        )
    try:
        return _DECODER.decode(upcast(line, version, to=SCHEMA_VERSION))
    except (NoUpcast, *UNREADABLE) as error:
        raise _unreadable(position, error) from error


def _unreadable(position: Position, error: Exception) -> LogUnreadable:
    text = f"record {position} of the event log can't be read: {error}"
    return LogUnreadable(text, position=position)


def decode_lines(data: bytes, count: int, first: Position) -> list[Record]:
    """Reads ``count`` lines, the first of which is the record at ``first``. Raises
    LogUnreadable, naming the position."""
    try:
        records = _DECODER.decode_lines(data)
    except UNREADABLE:
        records = []
    if len(records) == count and all(record.v == SCHEMA_VERSION for record in records):
        return records
    # Something is wrong, or older, and one by one they tell which it is.
    lines = data.split(b"\n")[:count]
    return [decode_record(line, Position(at)) for at, line in enumerate(lines, first)]


class _Versioned(msgspec.Struct):
    v: int = SCHEMA_VERSION


def _version(line: bytes | memoryview) -> int:
    """The schema version of a record that may say things unknown here."""
    try:
        return msgspec.json.decode(line, type=_Versioned).v
    except UNREADABLE:
        return SCHEMA_VERSION


class MemoryLog:
    """A log that lives as long as the object: for library use and for tests."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        end = len(self._lines)
        if after > end:
            raise lost(after, end)
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
            raise conflict(expected, found)
        self._lines.extend([encode_record(record) for record in records])

    async def close(self) -> None:
        return None
