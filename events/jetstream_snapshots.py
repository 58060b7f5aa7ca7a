"""Snapshots in a JetStream stream of their own, beside the event log's.

What lives here: how a snapshot becomes messages, and is found and checked again. What may
not: what is in it (``events.snapshots``), requests to JetStream (``events.jetstream_api``).

All messages of a snapshot are on one subject, ``<root>.snapshot.<position>``: chunks that
fit into a message, then its head. Each is stored under the stream's expected last
sequence, so that no other writer's come in between, and a snapshot is there once its head
is. One subject is purged at a time. An object store would do as well, but for what it
can't say: which of two writers was first, and which objects there are without reading all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import aclosing
from typing import Final

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.client import Client

from events.connection import request
from events.ids import MAX_LOG_MESSAGE_BYTES, Position
from events.jetstream_api import ApiError, ApiRefused, Deadline, JetStreamApi
from events.jetstream_messages import RESERVED_BYTES
from events.jetstream_read import read_stream
from events.log import LogError
from events.snapshots import (
    Head,
    Snapshot,
    SnapshotFailed,
    SnapshotUnreadable,
    decode_head,
    encode_head,
)
from events.streams import snapshot_stream
from events.subjects import Subjects

CHUNKS_HEADER: Final = "Slotbus-Chunks"
"""On a head alone: how many messages right before it are its snapshot's."""

TIMEOUT_S: Final = 5.0
"""For each request, and for a stretch of the stream to begin to come."""


class _Ack(Struct, frozen=True):
    seq: int = 0
    error: ApiError | None = None


class _Place(Struct, frozen=True):
    """Where a snapshot is: its chunks from sequence ``first`` up to its head at ``seq``."""

    head: Head
    first: int
    seq: int


class JetStreamSnapshots:
    """A ``SnapshotStore`` in the stream ``subjects.snapshot_stream``, which is made with the
    first snapshot. The connection stays the caller's."""

    def __init__(
        self, nc: Client, subjects: Subjects, *, replicas: int = 1, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._nc = nc
        self._api = JetStreamApi(nc)
        self._subjects = subjects
        self._config = snapshot_stream(subjects, replicas=replicas)
        self._timeout_s = timeout_s

    # --- reading ----------------------------------------------------------------------------

    async def positions(self) -> list[Position]:
        with _failing("looking for snapshots"):
            counts = await self._api.counts(
                self._config.name, self._subjects.snapshot("*"), self._deadline()
            )
        tokens = [subject.rpartition(".")[2] for subject in counts]
        return sorted(Position(int(t)) for t in tokens if t.isascii() and t.isdigit())

    async def head(self, position: Position) -> Head:
        return (await self._place(position)).head

    async def load(self, position: Position) -> Snapshot:
        place = await self._place(position)
        bodies: list[bytes] = []
        with _failing("reading a snapshot"):
            reading = read_stream(
                self._api, self._config.name, place.first, place.seq - 1, stall_s=self._timeout_s
            )
            async with aclosing(reading):
                async for messages in reading:
                    bodies += [message.data for message in messages]
        if len(bodies) != place.seq - place.first:
            raise SnapshotUnreadable("some of its messages are gone")
        return Snapshot(head=place.head, data=b"".join(bodies))

    async def _place(self, position: Position) -> _Place:
        """By the last message on its subject. Raises SnapshotUnreadable."""
        subject = self._subjects.snapshot(position)
        with _failing("reading a snapshot's head"):
            message = await self._api.last_message(self._config.name, subject, self._deadline())
        if message is None:
            raise SnapshotUnreadable("it is gone")
        chunks = message.headers.get(CHUNKS_HEADER, "")
        if not chunks.isascii() or not chunks.isdigit():
            raise SnapshotUnreadable("it was never finished")
        head = decode_head(message.data)
        if head.position != position:
            raise SnapshotUnreadable(f"its subject holds the one at {head.position}")
        return _Place(head, message.seq - int(chunks), message.seq)

    # --- writing ----------------------------------------------------------------------------

    async def keep(self, snapshot: Snapshot) -> None:
        position = Position(snapshot.head.position)
        subject = self._subjects.snapshot(position)
        with _failing("keeping a snapshot"):
            info = await self._api.ensure(self._config, self._deadline())
            if info.config.subjects != self._config.subjects:
                raise SnapshotFailed(f"stream {info.config.name} is for {info.config.subjects}")
            if position in await self.positions():
                await self.drop(position)
            seq = info.state.last_seq
            chunks = list(_chunks(snapshot.data, self._nc.max_payload))
            for chunk in chunks:
                seq = await self._publish(subject, chunk, {}, seq)
            headers = {CHUNKS_HEADER: str(len(chunks))}
            await self._publish(subject, encode_head(snapshot.head), headers, seq)

    async def drop(self, position: Position) -> None:
        with _failing("dropping a snapshot"):
            await self._api.purge_subject(
                self._config.name, self._subjects.snapshot(position), self._deadline()
            )

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str], last: int) -> int:
        """Stores a message behind the one at ``last``; its sequence."""
        expected = {
            **headers,
            "Nats-Expected-Stream": self._config.name,
            "Nats-Expected-Last-Sequence": str(last),
        }
        reply = await request(self._nc, subject, body, self._timeout_s, expected)
        try:
            ack = msgspec.json.decode(reply.data, type=_Ack)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SnapshotFailed(f"an acknowledgement can't be read: {error}") from error
        if ack.error is not None:
            raise ApiRefused("a part of a snapshot", ack.error)
        return ack.seq

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s)


def _chunks(data: bytes, max_payload: int) -> Iterator[bytes]:
    size = min(MAX_LOG_MESSAGE_BYTES, max_payload - RESERVED_BYTES)
    for at in range(0, len(data), size):
        yield data[at : at + size]


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Whatever goes wrong with the link or with JetStream is one error of the store."""
    try:
        yield
    except (LogError, nats.errors.Error) as error:
        raise SnapshotFailed(f"{what}: {str(error) or type(error).__name__}") from error
