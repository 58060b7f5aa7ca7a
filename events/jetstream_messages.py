"""How records become messages of the log's stream, and what a message tells.

What lives here: pure functions over bytes and headers. What may not: asking or telling
anything over a connection.

A message holds one or more records, a line of JSON each, and in ``Slotbus-Position`` the
position of its first: sequences count messages, positions count records, and after a
purge only the header knows how many went before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from nats.aio.msg import Msg

from events.errors import TooLarge
from events.facts import Record
from events.ids import MAX_LOG_MESSAGE_BYTES
from events.jetstream_api import StreamConfig
from events.log import LogError, LogPurged, LogUnreadable, encode_record

POSITION_HEADER: Final = "Slotbus-Position"
MSG_ID: Final = "Nats-Msg-Id"
RESERVED_BYTES: Final = 2_048
"""Of a message's largest size: for headers here, and for what the event subjects add."""


BLOCK_BYTES: Final = 60_000
"""Decoded at once: few enough to be in the processor's cache still when they are folded."""


class Chunk(Struct, frozen=True):
    """Records that travel as one message."""

    body: bytes
    count: int


def gather(records: Sequence[Record], expected: int, max_payload: int) -> list[Chunk]:
    """Puts records together, as many as a message may hold. Raises TooLarge."""
    limit = max_payload - RESERVED_BYTES
    target = min(MAX_LOG_MESSAGE_BYTES, limit)
    chunks: list[Chunk] = []
    lines: list[bytes] = []
    size = 0
    for number, record in enumerate(records, expected + 1):
        line = encode_record(record)
        if len(line) > limit:
            raise TooLarge(
                f"record {number} has {len(line)} bytes; the NATS server takes {limit}",
                limit=limit,
                unit="bytes",
            )
        if lines and size + len(line) + 1 > target:
            chunks.append(Chunk(b"\n".join(lines), len(lines)))
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        chunks.append(Chunk(b"\n".join(lines), len(lines)))
    return chunks


def position_of(headers: dict[str, str] | None, seq: int) -> int:
    text = (headers or {}).get(POSITION_HEADER, "")
    if text.isascii() and text.isdigit() and int(text[:19]) > 0:
        return int(text[:19])
    raise LogUnreadable(
        f"message {seq} of the event log has no {POSITION_HEADER}: slotbus did not write it",
        seq=seq,
    )


def check_order(begin: int, last: int | None, after: int, seq: int) -> None:
    """Whether the message that begins at ``begin`` may come here."""
    due = after + 1 if last is None else last + 1
    if begin == due or (last is None and begin < due):
        return
    if last is None:
        raise LogPurged(
            f"the event log begins at record {begin}: those after {after} were purged, start "
            "from a snapshot",
            first=begin,
        )
    raise LogUnreadable(
        f"message {seq} of the event log begins with record {begin} where {due} was due",
        position=due,
        seq=seq,
    )


def stream_seq(message: Msg) -> int:
    """A delivered message's sequence in its stream, from its acknowledgement subject:
    ``$JS.ACK.<stream>.<consumer>.<delivered>.<seq>...``, or with domain and account."""
    tokens = message.reply.split(".")
    return int(tokens[5] if len(tokens) == 9 else tokens[7])


def stored_at(message: Msg) -> str:
    """When the server stored a delivered message, in nanoseconds: with its sequence it tells
    the message from one that took its place after the stream had lost its end."""
    tokens = message.reply.split(".")
    return tokens[7] if len(tokens) == 9 else tokens[9]


class Block(Struct, frozen=True):
    """Lines of one or more messages, the first of which is the record at ``begin``."""

    begin: int
    count: int
    data: bytes


def blocks_of(messages: Sequence[Msg], begin: int) -> Iterator[Block]:
    """The records of messages that follow one another, the first of which begins at
    ``begin``, in blocks of about BLOCK_BYTES. Raises LogUnreadable where one is missing, or
    not slotbus's."""
    bodies: list[bytes] = []
    size, due = 0, begin
    for message in messages:
        if (message.headers or {}).get(POSITION_HEADER) != str(due):
            seq = stream_seq(message)
            check_order(position_of(message.headers, seq), due - 1, 0, seq)
        *whole, rest = _pieces(message.data)
        for lines in whole:
            bodies.append(lines)
            due += lines.count(b"\n") + 1
            yield Block(begin, due - begin, b"\n".join(bodies))
            begin, bodies, size = due, [], 0
        bodies.append(rest)
        due += rest.count(b"\n") + 1
        size += len(rest)
        if size >= BLOCK_BYTES:
            yield Block(begin, due - begin, b"\n".join(bodies))
            begin, bodies, size = due, [], 0
    if bodies:
        yield Block(begin, due - begin, b"\n".join(bodies))


def _pieces(data: bytes) -> list[bytes]:
    """Whole lines, cut into pieces of about BLOCK_BYTES."""
    pieces: list[bytes] = []
    at = 0
    while len(data) - at > BLOCK_BYTES and (end := data.find(b"\n", at + BLOCK_BYTES)) >= 0:
        pieces.append(data[at:end])
        at = end + 1
    pieces.append(data[at:])
    return pieces


def check_config(found: StreamConfig, wanted: StreamConfig) -> None:
    """Whether a stream keeps what is put into it. Raises LogError, naming what to change."""
    for name in (
        *("subjects", "retention", "storage", "discard"),
        *("max_age", "max_msgs", "max_msgs_per_subject", "max_msg_size", "sealed"),
    ):
        value, needed = getattr(found, name), getattr(wanted, name)
        if value != needed:
            raise LogError(
                f"stream {found.name} has {name} {value!r} and needs {needed!r} to hold an "
                f"event log: change it (nats stream edit {found.name}) or use another root",
                field=name,
            )
