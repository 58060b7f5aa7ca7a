"""The event subjects: of each acknowledged record its facts, to everybody they concern.

What lives here: a task that follows the log, publishes into ``SLOTBUS_EVENT`` and never
holds anybody up. What may not: deciding what is in the log, or whom a record concerns
(``events.concerns``).

At least once: every message says in ``Slotbus-Settled`` up to which record all was stored
when it was sent, and a new leader goes on behind what the last message says. Within the
stream's window for duplicates the repeated ones are dropped by their Nats-Msg-Id. The
stream waits for no disk, so a server that died may have lost its end: each message says
after which it comes, and what is missing then is published again from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import nats.errors
import structlog
from msgspec import Struct
from nats.aio.client import Client

from events.concerns import Directory
from events.facts import Record
from events.ids import START, Position
from events.jetstream_api import Deadline, JetStreamApi, StreamInfo
from events.jetstream_messages import MSG_ID, POSITION_HEADER, RESERVED_BYTES
from events.jetstream_publish import Outgoing, Publisher
from events.log import EventLog, LogError, LogLost, LogPurged, encode_record
from events.streams import EVENT_MAX_AGE_S, event_stream
from events.subjects import Subjects

SETTLED_HEADER: Final = "Slotbus-Settled"
MAX_WAITING: Final = 10_000
"""Records kept in memory; what comes on top is read from the log again."""
FLUSH_RECORDS: Final = 200
"""A new leader may repeat so many after its predecessor, at the most."""
FLUSH_BYTES: Final = 4 * 1024 * 1024
LOOK_S: Final = 10.0
"""How often a projection with nothing to tell looks whether all that it told is there."""

EXPECTED: Final = "Nats-Expected-Last-Sequence"
SETUP_TIMEOUT_S: Final = 10.0
PUBLISH_TIMEOUT_S: Final = 5.0
RESTART_MAX_S: Final = 30.0

_log = structlog.get_logger("slotbus.projection")


class ProjectionStats(Struct):
    """Counts since the start. ``settled``: all up to this record is published.
    ``overflowed``: records that had to be read again; ``unresolved``: names in records
    that nobody knew; ``skipped``: records purged before they were published."""

    settled: int = 0
    published: int = 0
    failures: int = 0
    overflowed: int = 0
    unresolved: int = 0
    oversized: int = 0
    skipped: int = 0


class EventProjection:
    """Publishes the records of one leadership. ``run()`` belongs to the owner's task group;
    ``offer`` is called for each acknowledged record, in order, and only stores it.

    ``directory`` should know what the ledger does (``Directory.of``); ``max_bytes`` limits
    the event stream where this object makes it.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        log: EventLog,
        *,
        directory: Directory | None = None,
        max_age_s: float = EVENT_MAX_AGE_S,
        max_bytes: int = -1,
        replicas: int = 1,
        max_waiting: int = MAX_WAITING,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.stats = ProjectionStats()
        self._nc = nc
        self._api = JetStreamApi(nc)
        self._subjects = subjects
        self._source = log
        self._directory = directory or Directory()
        self._max_age_s = max_age_s
        self._max_waiting = max_waiting
        self._now = now
        self._config = event_stream(
            subjects, max_age_s=max_age_s, max_bytes=max_bytes, replicas=replicas
        )
        self._waiting: deque[tuple[Position, Record]] = deque()
        self._offered: int = START
        self._last_seq = 0
        """Of the stream, as far as it is known."""
        self._alone = False
        """Whether each message got the next place in the stream, of late."""
        self._more = asyncio.Event()
        self._caught_up = asyncio.Event()

    def offer(self, position: Position, record: Record) -> None:
        """Takes an acknowledged record; never waits."""
        self._offered = max(self._offered, position)
        if len(self._waiting) < self._max_waiting:
            self._waiting.append((position, record))
        else:
            self.stats.overflowed += 1
        self._caught_up.clear()
        self._more.set()

    async def until_settled(self, timeout_s: float) -> bool:
        """Waits until all that was offered is published; False when it took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._caught_up.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Publishes until it is cancelled. Failures are counted, logged and tried again."""
        wait = Deadline(float("inf"), longest_wait_s=RESTART_MAX_S)
        publisher = Publisher(self._nc)
        try:
            while True:
                try:
                    self.stats.settled = await self._resume()
                    await self._read_log(publisher)
                    wait = Deadline(float("inf"), longest_wait_s=RESTART_MAX_S)
                    await self._follow(publisher)
                except (LogError, nats.errors.Error) as error:
                    self.stats.failures += 1
                    _log.warning("event subjects lag behind", cause=str(error))
                    await wait.back_off()
        finally:
            await publisher.close()

    # --- where to go on -----------------------------------------------------------------------

    async def _resume(self) -> int:
        """Up to which record everything was published, as far as the stream knows."""
        deadline = Deadline(SETUP_TIMEOUT_S)
        info = await self._api.ensure(self._config, deadline)
        if info.config.subjects != self._config.subjects:
            raise LogError(f"stream {info.config.name} takes {info.config.subjects}")
        lost = info.state.last_seq < self._last_seq
        self._last_seq, self._alone = info.state.last_seq, False
        settled = await self._settled(info, deadline)
        return settled if lost else max(self.stats.settled, settled)

    async def _settled(self, info: StreamInfo, deadline: Deadline) -> int:
        if info.state.messages == 0:
            return START
        last = await self._api.message(info.config.name, info.state.last_seq, deadline)
        settled = (last.headers if last else {}).get(SETTLED_HEADER, "")
        return int(settled) if settled.isascii() and settled.isdigit() else START

    async def _look(self) -> None:
        """Raises LogLost where the stream is not what it was when it was last written."""
        info = await self._api.info(self._config.name, Deadline(SETUP_TIMEOUT_S))
        if info is None or info.state.last_seq < self._last_seq:
            raise LogLost("the end of what was published is gone")

    async def _read_log(self, publisher: Publisher) -> None:
        """Publishes what the log has behind the settled record."""
        anew = not self.stats.settled  # nothing is in the stream: leave out what would age out
        oldest = datetime.fromtimestamp(self._now(), UTC) - timedelta(seconds=self._max_age_s)
        position = self.stats.settled
        try:
            async with contextlib.aclosing(self._source.read(Position(position))) as reading:
                async for records in reading:
                    fresh: list[tuple[Position, Record]] = []
                    for record in records:
                        position += 1
                        if anew and record.at < oldest:
                            self._directory.concerns(record)  # to know its workers later
                            self.stats.settled = position
                        else:
                            fresh.append((Position(position), record))
                    await self._publish(publisher, fresh)
        except LogPurged as error:
            first = error.facts.get("first")
            begin = first if isinstance(first, int) else position + 1
            self.stats.skipped += max(0, begin - 1 - self.stats.settled)
            self.stats.settled = max(self.stats.settled, begin - 1)
            await self._read_log(publisher)
        except LogLost:
            if not self.stats.settled:
                raise
            _log.warning("the log is another one than was published", settled=position)
            self.stats.settled = START
            await self._read_log(publisher)

    async def _follow(self, publisher: Publisher) -> None:
        """Publishes what is offered, and reads the log where that has gaps."""
        while True:
            while self._waiting and self._waiting[0][0] <= self.stats.settled:
                self._waiting.popleft()
            if self._waiting and self._waiting[0][0] == self.stats.settled + 1:
                count = min(len(self._waiting), FLUSH_RECORDS)
                await self._publish(publisher, [self._waiting[i] for i in range(count)])
            elif self._waiting or self.stats.settled < self._offered:
                await self._read_log(publisher)
            else:
                self._caught_up.set()
                self._more.clear()
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._more.wait()
                except TimeoutError:
                    await self._look()

    # --- publishing ---------------------------------------------------------------------------

    async def _publish(
        self, publisher: Publisher, records: Sequence[tuple[Position, Record]]
    ) -> None:
        """Publishes records in order, in flushes of bounded size."""
        flush: list[Outgoing] = []
        size = 0
        done = self.stats.settled
        for number, (position, record) in enumerate(records, 1):
            messages = self._messages(position, record)
            flush += messages
            size += sum(len(message.body) for message in messages)
            done = position
            if size >= FLUSH_BYTES or number % FLUSH_RECORDS == 0:
                await self._flush(publisher, flush, done)
                flush, size = [], 0
        await self._flush(publisher, flush, done)

    async def _flush(self, publisher: Publisher, messages: list[Outgoing], done: int) -> None:
        for number, message in enumerate(messages):
            message.headers[SETTLED_HEADER] = str(self.stats.settled)
            # A repeated message gets no new place, so that the next one's can't be foretold.
            if self._alone or number == 0:
                message.headers[EXPECTED] = str(self._last_seq + number)
        await publisher.publish(messages, timeout_s=PUBLISH_TIMEOUT_S)
        self._last_seq = max(self._last_seq, publisher.last_seq)
        self._alone = not publisher.repeated
        self.stats.published += len(messages)
        self.stats.settled = done

    def _messages(self, position: Position, record: Record) -> list[Outgoing]:
        concerns = self._directory.concerns(record)
        self.stats.unresolved += len(concerns.unresolved)
        parts = {self._subjects.event_job(job): part for job, part in concerns.jobs.items()}
        parts |= {self._subjects.event_node(node): part for node, part in concerns.nodes.items()}
        if concerns.leader or not parts:
            parts[self._subjects.event_leader] = concerns.leader
        whole = b""
        messages: list[Outgoing] = []
        for subject, part in parts.items():
            if len(part) < len(record.events):
                body = _part(position, record, part)
            else:
                body = whole = whole or b'{"position":%d,' % position + encode_record(record)[1:]
            if len(body) > self._nc.max_payload - RESERVED_BYTES // 2:
                self.stats.oversized += 1
                _log.error("record too large for the event subjects", position=position)
                continue
            msg_id = f"{position}.{record.epoch}.{subject}"
            headers = {MSG_ID: msg_id, POSITION_HEADER: str(position)}
            messages.append(Outgoing(subject, body, headers))
        return messages


def _part(position: Position, record: Record, part: list[int]) -> bytes:
    """The facts at some places of a record, and which of how many they are."""
    some = Record(
        v=record.v,
        at=record.at,
        epoch=record.epoch,
        cause=record.cause,
        events=[record.events[at] for at in part],
    )
    head = b'{"position":%d,"of":%d,"part":%s,' % (
        position,
        len(record.events),
        msgspec.json.encode(part),
    )
    return head + encode_record(some)[1:]
