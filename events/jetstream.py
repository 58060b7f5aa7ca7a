"""The event log in a JetStream stream, under compare-and-swap by expected last sequence.

What lives here: what an append's answer (or its absence) means, reading, and the signs of a
log that was lost. What may not: requests to JetStream
(``events.jetstream_api``), how records become messages (``events.jetstream_messages``),
fast reading (``events.jetstream_read``).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.client import Client

from events.connection import request
from events.errors import TooLarge
from events.facts import Record
from events.ids import START, Position
from events.jetstream_api import (
    GONE,
    UNAVAILABLE,
    ApiError,
    ApiRefused,
    Deadline,
    JetStreamApi,
    StreamInfo,
    said,
)
from events.jetstream_messages import (
    MSG_ID,
    POSITION_HEADER,
    Chunk,
    blocks_of,
    check_config,
    check_order,
    gather,
    position_of,
    stream_seq,
)
from events.jetstream_read import read_stream
from events.log import (
    READ_BATCH,
    LogConflict,
    LogError,
    LogFull,
    LogLost,
    LogUnreadable,
    LogUnsettled,
    NoLog,
    conflict,
    decode_lines,
    lost,
)
from events.streams import log_stream
from events.subjects import Subjects

WRONG_LAST: Final = frozenset({10071, 10164})
"""Not the expected last sequence. Our own append whose acknowledgement was lost, too."""
FULL: Final = frozenset({10002, 10023, 10028, 10047, 10077})
"""Limits of the account, the server and the stream, and a disk that takes no more."""
TOO_LARGE: Final = frozenset({10054, 10097})
DEFAULT_STALL_S: Final = 15.0
APPEND_ATTEMPT_S: Final = 1.0
"""Without an acknowledgement for so long, the message is looked for."""
UNCONFIRMED: Final = "no acknowledgement in time (is the disk of the NATS server full?)"
"""A server that can't write sends no error: it says nothing."""
SETUP_TIMEOUT_S: Final = 10.0


class End(Struct, frozen=True):
    """Where the log ends: its last message, and the last record in it."""

    seq: int
    position: Position


class Extent(Struct, frozen=True):
    """What a log holds: its first and last record, 0 where there are none, and how many bytes
    its stream has."""

    first: int
    last: int
    bytes: int


class _Ack(Struct, frozen=True):
    seq: int = 0
    error: ApiError | None = None


class JetStreamLog:
    """An ``EventLog`` on the stream ``subjects.log_stream``, made at the first use.

    ``max_bytes`` (None: no limit) widens an existing stream, and never narrows it. Reading
    gives up after ``stall_s`` seconds without anything coming. The connection stays the
    caller's. An object that has seen its log lost goes on saying so: make another one.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        *,
        max_bytes: int | None = None,
        replicas: int = 1,
        create: bool = True,
        stall_s: float = DEFAULT_STALL_S,
        api_prefix: str = "$JS.API",
    ) -> None:
        self._nc = nc
        self._api = JetStreamApi(nc, prefix=api_prefix)
        self._create = create
        self._stall_s = stall_s
        self._config = log_stream(subjects, max_bytes=max_bytes, replicas=replicas)
        self._subject = subjects.eventlog
        self._writer = uuid.uuid4().hex
        self._writes = 0
        self._lock = asyncio.Lock()
        self._created: str | None = None
        self._loss: LogLost | None = None
        self._seen_seq = 0
        self._end: End | None = None
        """Where the next append goes; None: look, or an append is not settled."""

    # --- reading ----------------------------------------------------------------------------

    async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        deadline = Deadline(self._stall_s)
        info = await self._contact(deadline)
        end_seq = info.state.last_seq
        first = await self._seq_after(info, after, deadline) if info.state.messages else 1
        position: int | None = None
        last = end_seq if info.state.messages else 0
        name = self._config.name
        reading = read_stream(self._api, name, first, last, stall_s=self._stall_s)
        async with contextlib.aclosing(reading):
            async for messages in reading:
                seq = stream_seq(messages[0])
                begin = position_of(messages[0].headers, seq)
                check_order(begin, position, after, seq)
                for block in blocks_of(messages, begin):
                    position = block.begin + block.count - 1
                    records = decode_lines(block.data, block.count, Position(block.begin))
                    known = max(0, after + 1 - block.begin)
                    for at in range(known, len(records), READ_BATCH):
                        yield records[at : at + READ_BATCH]
        if position is None:  # nothing was left to read
            end = await self._find_end(Deadline(self._stall_s), info)
        else:
            end = End(end_seq, Position(position))
        if not self._lock.locked() and (self._end is None or self._end.seq < end.seq):
            self._end = end
        if end.position < after:
            raise lost(after, end.position)

    async def _contact(self, deadline: Deadline) -> StreamInfo:
        """Looks at the stream, makes it at first, and compares it with what was known."""
        if self._loss is not None:
            raise LogLost(self._loss.message, **self._loss.facts)
        name, seen_seq = self._config.name, self._seen_seq
        if self._created is None and self._create:
            info: StreamInfo | None = await self._api.ensure(self._config, deadline)
        else:
            info = await self._api.info(name, deadline)
        if info is None and self._created is None:
            raise NoLog(f"there is no stream {name}: no event log was ever written here")
        self._loss = self._evidence(info, seen_seq)
        if info is None or self._loss is not None:
            return await self._contact(deadline)
        if self._created is None:
            info = await self._adopt(info, deadline)
        self._seen_seq = max(self._seen_seq, info.state.last_seq)
        return info

    def _evidence(self, info: StreamInfo | None, seen_seq: int) -> LogLost | None:
        """What says that the log is not the one we knew, if anything does. ``seen_seq``: its end
        before it was asked for: an append beside it may be acknowledged first."""
        name = self._config.name
        if info is None:
            return LogLost(f"stream {name} is gone, and the event log with it")
        if self._created is not None and info.created != self._created:
            return LogLost(
                f"stream {name} was made anew at {info.created}: the event log that was made "
                f"at {self._created} is gone"
            )
        if info.state.last_seq < seen_seq:
            return LogLost(
                f"stream {name} ends at message {info.state.last_seq}, and {seen_seq} "
                "was there: the event log lost its tail",
                expected=seen_seq,
                found=info.state.last_seq,
            )
        return None

    async def _adopt(self, info: StreamInfo, deadline: Deadline) -> StreamInfo:
        """Checks a stream that we may not have made, and widens it where we want more."""
        check_config(info.config, self._config)
        wanted, limit = self._config.max_bytes, info.config.max_bytes
        if self._create and limit != -1 and (wanted == -1 or wanted > limit):
            info = await self._api.widen(info, wanted, deadline)
        self._created = info.created
        return info

    async def _seq_after(self, info: StreamInfo, after: Position, deadline: Deadline) -> int:
        """The message to begin with: the last that begins at or before ``after`` + 1."""
        low, high = info.state.first_seq, info.state.last_seq
        end = self._end
        if end is not None and end.position <= after and end.seq >= low:
            return end.seq + 1
        if after == START or info.state.messages == 0:
            return low
        while low < high:
            middle = (low + high + 1) // 2
            message = await self._api.message(self._config.name, middle, deadline)
            if message is not None and position_of(message.headers, middle) > after + 1:
                high = middle - 1
            else:
                low = middle
        return low

    async def _find_end(self, deadline: Deadline, info: StreamInfo | None = None) -> End:
        """Where the log ends, by its last message."""
        info = info or await self._contact(deadline)
        seq = info.state.last_seq
        known = self._end
        if known is not None and known.seq == seq:
            return known
        if seq == 0:
            return End(0, START)
        message = await self._api.message(self._config.name, seq, deadline)
        if message is None:
            raise LogLost(
                f"stream {self._config.name} was emptied by hand: nobody knows any more how "
                "many records it held"
            )
        begin = position_of(message.headers, seq)
        return End(seq, Position(begin + message.data.count(b"\n")))

    async def check(self, *, timeout_s: float = SETUP_TIMEOUT_S) -> None:
        """Raises LogLost if the stream is not the one that was read. An append can't tell
        two streams apart that end at the same sequence: call it now and then."""
        await self._contact(Deadline(timeout_s))

    async def extent(self, *, timeout_s: float = SETUP_TIMEOUT_S) -> Extent:
        """From where to where it goes, and how large it is. Raises LogError."""
        deadline = Deadline(timeout_s)
        info = await self._contact(deadline)
        if not info.state.messages:
            return Extent(0, 0, info.state.bytes)
        first = await self._api.message(self._config.name, info.state.first_seq, deadline)
        begin = 0 if first is None else position_of(first.headers, first.seq)
        end = await self._find_end(deadline, info)
        return Extent(begin, end.position, info.state.bytes)

    async def trim(self, upto: Position, *, timeout_s: float = SETUP_TIMEOUT_S) -> None:
        """Purges the messages whose records all lie at or before ``upto``, but for the last
        message, which knows the position. Keep a snapshot at ``upto`` first."""
        deadline = Deadline(timeout_s)
        info = await self._contact(deadline)
        before = await self._seq_after(info, upto, deadline)
        before = min(before, info.state.last_seq)
        if before > info.state.first_seq:
            await self._api.purge(self._config.name, before, deadline)

    # --- appending --------------------------------------------------------------------------

    async def append(
        self, records: Sequence[Record], *, expected: Position, timeout_s: float
    ) -> None:
        chunks = gather(records, expected, self._nc.max_payload)
        deadline = Deadline(timeout_s)
        async with self._lock:
            end = self._end or await self._find_end(deadline)
            if end.position != expected:
                self._end = None
                raise conflict(expected, end.position)
            start, self._end = end, None
            for chunk in chunks:
                try:
                    end = await self._store(chunk, end, deadline)
                except LogFull as error:
                    self._end = end
                    if end is start:
                        raise
                    raise LogUnsettled(
                        f"the log is full: only {end.position - expected} of {len(records)} "
                        "records were stored",
                        stored=end.position - expected,
                    ) from error
            self._end = end

    async def _store(self, chunk: Chunk, end: End, deadline: Deadline) -> End:
        """Publishes one message until it is known what became of it."""
        self._writes += 1
        msg_id = f"{self._writer}.{self._writes}"
        headers = {
            "Nats-Expected-Stream": self._config.name,
            "Nats-Expected-Last-Sequence": str(end.seq),
            MSG_ID: msg_id,
            POSITION_HEADER: str(end.position + 1),
        }
        following = End(end.seq + 1, Position(end.position + chunk.count))
        cause = ""
        while True:
            try:
                ack = await self._publish(chunk.body, headers, deadline)
            except GONE as error:
                raise LogUnsettled(f"the connection to NATS is over: {error}") from error
            except nats.errors.Error as error:
                ack, cause = _Ack(), said(error, cause or UNCONFIRMED)
            if ack.seq == following.seq or await self._stored(msg_id, end, deadline):
                self._seen_seq = max(self._seen_seq, following.seq)
                return following
            if ack.error is not None:
                cause = ack.error.description
                if deadline.left_s > 0:  # else it was not looked for
                    _raise_if_final(ack.error)
            if deadline.left_s <= 0:
                raise LogUnsettled(
                    f"nobody knows whether records after {end.position} were stored: {cause}",
                    expected=end.position,
                )
            await deadline.back_off()

    async def _publish(self, body: bytes, headers: dict[str, str], deadline: Deadline) -> _Ack:
        timeout_s = deadline.attempt_s(APPEND_ATTEMPT_S)
        reply = await request(self._nc, self._subject, body, timeout_s, headers)
        try:
            return msgspec.json.decode(reply.data, type=_Ack)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LogError(f"an acknowledgement can't be read: {error}") from error

    async def _stored(self, msg_id: str, end: End, deadline: Deadline) -> bool:
        """Whether our message follows ``end``. Raises LogConflict if another one does,
        LogLost if the stream is not what it was."""
        if deadline.left_s <= 0:
            return False
        info = await self._contact(deadline)
        seq = end.seq + 1
        if info.state.last_seq < seq:
            return False  # nothing there: it may still come
        found = await self._api.message(self._config.name, seq, deadline)
        if found is not None and found.headers.get(MSG_ID) == msg_id:
            return True
        try:
            other = await self._find_end(deadline, info)
        except LogUnreadable as error:
            raise LogConflict(
                f"message {seq} of stream {self._config.name} is not of this writer: "
                f"{error.message}",
                expected=end.position,
            ) from error
        raise conflict(end.position, other.position)

    async def close(self) -> None:
        return None


def _raise_if_final(error: ApiError) -> None:
    """Raises unless sending the same again may help. The message is known not to be stored."""
    if error.err_code in FULL:
        raise LogFull(
            f"the event log takes no more: {error.description} ({error.err_code})",
            err_code=error.err_code,
        )
    if error.err_code in TOO_LARGE:
        raise TooLarge(f"the event log refused a message: {error.description}", unit="bytes")
    if error.err_code not in WRONG_LAST and error.code != UNAVAILABLE:
        raise ApiRefused("an append", error)
