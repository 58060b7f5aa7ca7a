"""The queue of durable commands, read by the leader: in order, each once.

What lives here: reading ``SLOTBUS_QUEUE`` behind the ledger's cursor, putting aside what is
no command, and purging what is done. What may not: the rule of the cursor
(``schedulers.decide.queued``).

Nothing is acknowledged to JetStream. What the log has taken is done; whoever leads next goes
on behind it. The message at the cursor is kept, so that it can be seen whether it is still the
same: a server that crashed may have lost the end of the queue, and given its places to others.
Then all that is there is read again, under another name of the stream; what had been taken is
known by its command id.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import Raw, Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from events import codec
from events.entities import QueueCursor
from events.errors import Invalid, Overloaded, SlotbusError, TooLarge
from events.ids import ID_RE
from events.jetstream_api import Deadline, JetStreamApi, StreamInfo
from events.jetstream_messages import MSG_ID, stored_at, stream_seq
from events.jetstream_publish import Outgoing, Publisher
from events.jetstream_read import read_stream
from events.ledger import Ledger
from events.messages import COMMANDS
from events.queries import QueryLeader
from events.streams import aside_stream, queue_stream
from events.subjects import Subjects
from schedulers.decide.messages import Inbound, Queued, QueueMoved, Reply

LOOK_S: Final = 5.0
"""How often the queue is looked at where nobody said that something came."""

AT_ONCE: Final = 100
"""Messages given to the engine before the first is in the log."""

TIMEOUT_S: Final = 10.0
CODE_HEADER, REASON_HEADER = "Slotbus-Code", "Slotbus-Reason"
MAX_REASON: Final = 500

_log = structlog.get_logger("slotbus.queue")


class TakesQueued(Protocol):
    """The part of the engine that is needed."""

    @property
    def ledger(self) -> Ledger: ...

    async def submit(self, message: Inbound) -> Reply: ...


class QueueStats(Struct):
    """Counts since the start. ``waiting``: messages that were not taken yet, at the last
    look."""

    taken: int = 0
    set_aside: int = 0
    waiting: int = 0


class _Place(Struct, frozen=True):
    """Where to go on: behind ``done``, in the stream as it is called now."""

    stream: str
    done: int


class _End(Struct, frozen=True):
    """Of a stream; one that stays the same has neither got nor lost anything."""

    created: str
    last_seq: int
    last_ts: str


class QueueReader:
    """Feeds the engine from the queue, as long as ``run`` runs."""

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        engine: TakesQueued,
        stats: QueueStats,
        *,
        replicas: int = 1,
    ) -> None:
        self._nc = nc
        self._api = JetStreamApi(nc)
        self._publisher = Publisher(nc)
        self._subjects = subjects
        self._engine = engine
        self._stats = stats
        self._replicas = replicas
        self._came = asyncio.Event()
        self._looked_up: _End | None = None
        self._refused: dict[int, SlotbusError] = {}
        """Messages that the engine said are no commands."""

    async def run(self) -> None:
        """Reads until it is cancelled. Raises LogError, nats.errors.Error: begin again."""
        for config in (
            queue_stream(self._subjects, replicas=self._replicas),
            aside_stream(self._subjects, replicas=self._replicas),
        ):
            await self._api.ensure(config, Deadline(TIMEOUT_S))
        heard = await self._nc.subscribe(self._subjects.queues, cb=self._hear)
        try:
            while True:
                self._came.clear()
                await self._catch_up()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._came.wait()
        finally:
            if not self._nc.is_closed:
                await heard.unsubscribe()

    async def _hear(self, message: Msg) -> None:
        self._came.set()

    async def _catch_up(self) -> None:
        """Takes what is there now, and purges what is done."""
        info = await self._api.info(self._subjects.queue_stream, Deadline(TIMEOUT_S))
        if info is None:
            raise Overloaded(f"the stream {self._subjects.queue_stream} is gone")
        last = info.state.last_seq
        end = _End(info.created, last, info.state.last_ts)
        if end == self._looked_up:
            return
        place = await self._place(info)
        stream, done = place.stream, place.done
        self._stats.waiting = max(0, min(info.state.messages, last - done))
        while done < last:
            previous = done
            async for messages in read_stream(
                self._api, self._subjects.queue_stream, max(1, done), last, stall_s=TIMEOUT_S
            ):
                if stream_seq(messages[0]) == done:
                    self._check_cursor(messages.pop(0))
                for first in range(0, len(messages), AT_ONCE):
                    batch = messages[first : first + AT_ONCE]
                    previous = await self._take(stream, batch, previous)
            if self._done(stream) <= done:
                break  # deleted by somebody, or none of them is left
            done = self._done(stream)
        if done > info.state.first_seq:
            # The ledger is ahead of the log while an append is under way, which may fail: what
            # is asked now is answered when the log has it all, or not at all.
            await self._engine.submit(QueryLeader())
            await self._api.purge(self._subjects.queue_stream, done, Deadline(TIMEOUT_S))
        self._stats.waiting = max(0, last - done)
        self._refused.clear()
        self._looked_up = end

    def _done(self, stream: str) -> int:
        cursor: QueueCursor | None = self._engine.ledger.state.queue
        return cursor.sequence if cursor is not None and cursor.stream == stream else 0

    async def _place(self, info: StreamInfo) -> _Place:
        """By the ledger's cursor, if the stream still has what it stands at."""
        cursor: QueueCursor | None = self._engine.ledger.state.queue
        if cursor is None or cursor.stream.partition("+")[0] != info.created:
            return _Place(info.created, 0)
        if not await self._replaced(cursor, info):
            return _Place(cursor.stream, cursor.sequence)
        _log.warning(
            "the queue lost its end: what is there is read again", cursor=cursor.sequence,
            last=info.state.last_seq,
        )  # fmt: skip
        times = int(cursor.stream.partition("+")[2] or 0) + 1
        return _Place(f"{info.created}+{times}", 0)

    def _check_cursor(self, message: Msg) -> None:
        """Raises Overloaded where another message has taken the place meanwhile: look again."""
        cursor: QueueCursor | None = self._engine.ledger.state.queue
        if cursor is not None and cursor.stored not in ("", stored_at(message)):
            raise Overloaded("the queue lost its end while it was read")

    async def _replaced(self, cursor: QueueCursor, info: StreamInfo) -> bool:
        """Whether the message at the cursor was lost, or is another one by now. One that was
        deleted, as everything before it, is neither."""
        at = cursor.sequence
        if info.state.last_seq < at:
            return True
        if not cursor.stored or info.state.first_seq > at:
            return False
        name = self._subjects.queue_stream
        async for messages in read_stream(self._api, name, at, at, stall_s=TIMEOUT_S):
            return stored_at(messages[0]) != cursor.stored
        return False

    async def _take(self, stream: str, messages: list[Msg], previous: int) -> int:
        """Has the engine take messages in their order; the sequence of the last one taken.
        Raises Overloaded where one was refused: those behind it were, too."""
        queued = []
        for message in messages:
            entry = self._queued(stream, message, previous)
            if entry.code:
                await self._put_aside(entry, message)
            queued.append(entry)
            previous = entry.sequence
        answers = await asyncio.gather(
            *(self._engine.submit(entry) for entry in queued), return_exceptions=True
        )
        for entry, answer in zip(queued, answers, strict=True):
            if isinstance(answer, Invalid | TooLarge):
                self._refused[entry.sequence] = answer
                return await self._retake(stream, messages, entry)
            if isinstance(answer, BaseException):
                raise answer
            assert isinstance(answer, QueueMoved), answer
            self._stats.set_aside += bool(entry.code)
            self._stats.taken += not entry.code
        return previous

    async def _retake(self, stream: str, messages: list[Msg], refused: Queued) -> int:
        """From a message on that turned out to be no command."""
        rest = [m for m in messages if stream_seq(m) >= refused.sequence]
        return await self._take(stream, rest, refused.previous)

    def _queued(self, stream: str, message: Msg, previous: int) -> Queued:
        sequence = stream_seq(message)
        verb = message.subject.removeprefix(self._subjects.queue(""))
        entry = Queued(
            stream=stream,
            sequence=sequence,
            previous=previous,
            verb=verb[:MAX_REASON],
            stored=stored_at(message),
        )
        try:
            if sequence in self._refused:
                raise self._refused[sequence]
            body = _body(verb, message, f"q-{sequence}-{_token(entry.stored)}")
        except SlotbusError as error:
            path = error.facts.get("path")
            why = (error.message + (f" at {path}" if path else ""))[:MAX_REASON]
            return msgspec.structs.replace(entry, code=error.code, reason=why)
        return msgspec.structs.replace(entry, body=body)

    async def _put_aside(self, entry: Queued, message: Msg) -> None:
        """Before the log says so: else it could be purged and be nowhere."""
        name = f"aside-{_token(entry.stored)}-{entry.sequence}"
        headers = {MSG_ID: name, CODE_HEADER: entry.code, REASON_HEADER: _line(entry.reason)}
        subject = self._subjects.aside(entry.verb)
        told = Outgoing(subject, message.data, headers)
        await self._publisher.publish([told], timeout_s=TIMEOUT_S)
        _log.warning("put aside", sequence=entry.sequence, verb=entry.verb, cause=entry.reason)


def _body(verb: str, message: Msg, default_id: str) -> Raw:
    """The command of a message, with an id. Raises Invalid, TooLarge."""
    kind = COMMANDS.get(verb)
    if kind is None:
        known = ", ".join(COMMANDS)
        raise Invalid(f"{verb!r} can't be queued, only {known}", path="subject")
    command = codec.decode(message.data, kind)
    if command.command_id is None:
        given = (message.headers or {}).get(MSG_ID, "")
        command_id = given if ID_RE.match(given) else default_id
        command = msgspec.structs.replace(command, command_id=command_id)
    return Raw(codec.encode(command))


def _token(stored: str) -> str:
    """What tells a message from another one in the same place, for an id."""
    return hashlib.sha256(stored.encode()).hexdigest()[:8]


def _line(text: str) -> str:
    """As a header may hold it."""
    return " ".join(text.split()).encode("ascii", "replace").decode()
