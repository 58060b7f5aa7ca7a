"""Snapshots of the ledger: what one says of itself, its bytes, and how they are checked.

What lives here: pure functions from a ledger to packed bytes and back, and the port of
places where snapshots are kept, with one in memory. What may not: files
(``events.filesnapshots``), NATS (``events.jetstream_snapshots``), and when one is made.

A snapshot holds the ledger after the record at ``position``, and names that record by its
time and epoch: a log that has another record there is another log. Epochs grow also where
a log was lost, so no two logs agree on both.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from events.entities import LedgerState
from events.errors import SlotbusError
from events.facts import Record
from events.ids import Position
from events.ledger import Ledger

FORMAT: Final = 1
"""Of the packed bytes and of the ledger's state in them; a reader passes over a higher one."""

PIECE_ITEMS: Final = 16
"""Of a table, encoded in one go: some ten microseconds, or 8 MiB where all of them are jobs
with the largest program."""

LEVEL: Final = 1
"""Of zlib: an eighth of the size at 250 MB a second; more takes longer than it saves."""


class SnapshotUnreadable(SlotbusError):
    """This snapshot can't be used: torn, damaged, gone, or newer than this slotbus."""


class SnapshotFailed(SlotbusError):
    """A snapshot could not be kept, dropped or looked for."""


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a snapshot says of itself. ``at`` and ``epoch`` are those of the record at
    ``position``. ``digest``: hex SHA-256 of the ledger's JSON, which has ``size`` bytes, and
    ``packed`` with zlib. ``version``: of the slotbus that made it."""

    position: int
    at: datetime
    epoch: int
    digest: str
    size: int
    packed: int
    version: str = ""
    v: int = FORMAT


class Snapshot(Struct, frozen=True, kw_only=True):
    """``data``: the packed bytes."""

    head: Head
    data: bytes


class Packed(Struct, frozen=True):
    """A ledger's JSON, packed, with its size and digest before that."""

    data: bytes
    size: int
    digest: str


def pieces(state: LedgerState) -> Iterator[bytes]:
    """``Ledger.snapshot()`` in small pieces, so that others get a turn in between; nothing
    may change in the state until the last one."""
    lead = b"{"
    for field in msgspec.structs.fields(LedgerState):
        value = getattr(state, field.name)
        if isinstance(value, dict) and value:
            yield lead + msgspec.json.encode(field.encode_name) + b":"
            yield from _table(value)
        else:  # msgspec knows which defaults it leaves out
            alone = msgspec.json.encode(LedgerState(**{field.name: value}))[1:-1]
            if not alone:
                continue
            yield lead + alone
        lead = b","
    yield b"}" if lead == b"," else b"{}"


def _table(value: dict[str, object]) -> Iterator[bytes]:
    items = iter(value.items())
    lead = b"{"
    while some := dict(islice(items, PIECE_ITEMS)):
        yield lead + msgspec.json.encode(some)[1:-1]
        lead = b","
    yield b"}"


def pack(parts: Iterable[bytes]) -> Packed:
    """Takes some 50 ms for 10 MB, and lets other threads run: call it in one of its own."""
    data = b"".join(parts)
    digest = hashlib.sha256(data).hexdigest()
    return Packed(zlib.compress(data, LEVEL), len(data), digest)


def head_of(state: LedgerState, packed: Packed, *, version: str = "") -> Head:
    """Of a ledger that holds at least one record."""
    assert state.at is not None, "nothing was folded"
    return Head(
        position=state.position,
        at=state.at,
        epoch=state.epoch,
        digest=packed.digest,
        size=packed.size,
        packed=len(packed.data),
        version=version,
    )


def take(ledger: Ledger, *, version: str = "") -> Snapshot:
    """A snapshot in one go, for whoever may take that time."""
    packed = pack(pieces(ledger.state))
    return Snapshot(head=head_of(ledger.state, packed, version=version), data=packed.data)


def unpack(snapshot: Snapshot) -> bytes:
    """The ledger's JSON, checked. Raises SnapshotUnreadable."""
    head = snapshot.head
    if head.v > FORMAT:
        raise SnapshotUnreadable(
            f"it has format {head.v}, and this slotbus reads up to {FORMAT}: upgrade it"
        )
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(snapshot.data, head.size + 1)
    except zlib.error as error:
        raise SnapshotUnreadable(f"it is damaged: {error}") from error
    if len(data) != head.size or hashlib.sha256(data).hexdigest() != head.digest:
        raise SnapshotUnreadable("it is damaged: its digest is another")
    return data


def restore(snapshot: Snapshot) -> Ledger:
    """The ledger that it holds. Raises SnapshotUnreadable."""
    data = unpack(snapshot)
    try:
        ledger = Ledger.restore(data)
    except (msgspec.DecodeError, LookupError, RecursionError) as error:
        raise SnapshotUnreadable(f"its ledger can't be read: {error}") from error
    if not fits(snapshot.head, ledger):
        raise SnapshotUnreadable("its ledger is not the one that its head names")
    return ledger


def fits(head: Head, ledger: Ledger) -> bool:
    """Whether a ledger stands where a snapshot says."""
    state = ledger.state
    return (state.position, state.at, state.epoch) == (head.position, head.at, head.epoch)


def is_last(record: Record, ledger: Ledger) -> bool:
    """Whether this is the record that a ledger folded last."""
    return (record.at, record.epoch) == (ledger.state.at, ledger.state.epoch)


def encode_head(head: Head) -> bytes:
    """One line of JSON, without its end."""
    return msgspec.json.encode(head)


def decode_head(data: bytes) -> Head:
    """Reads what ``encode_head`` wrote. Raises SnapshotUnreadable."""
    try:
        return msgspec.json.decode(data, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotUnreadable(f"its head can't be read: {error}") from error


class SnapshotStore(Protocol):
    """Where snapshots are kept, by position. Who writes sees to it that it is the leader;
    whoever reads changes nothing."""

    async def positions(self) -> list[Position]:
        """What is there, oldest first, also what is torn. Raises SnapshotFailed."""
        ...

    async def head(self, position: Position) -> Head:
        """What one says of itself. Raises SnapshotUnreadable, SnapshotFailed."""
        ...

    async def load(self, position: Position) -> Snapshot:
        """Raises SnapshotUnreadable, SnapshotFailed."""
        ...

    async def keep(self, snapshot: Snapshot) -> None:
        """Stores it whole, or as something that ``load`` refuses; durable when it returns.
        Takes the place of one at the same position. Raises SnapshotFailed."""
        ...

    async def drop(self, position: Position) -> None:
        """Removes one, if it is there. Raises SnapshotFailed."""
        ...


class MemorySnapshots:
    """A store that lives as long as the object."""

    def __init__(self) -> None:
        self.kept: dict[Position, Snapshot] = {}

    async def positions(self) -> list[Position]:
        return sorted(self.kept)

    async def head(self, position: Position) -> Head:
        return (await self.load(position)).head

    async def load(self, position: Position) -> Snapshot:
        if position not in self.kept:
            raise SnapshotUnreadable("it is gone")
        return self.kept[position]

    async def keep(self, snapshot: Snapshot) -> None:
        self.kept[Position(snapshot.head.position)] = snapshot

    async def drop(self, position: Position) -> None:
        self.kept.pop(position, None)
