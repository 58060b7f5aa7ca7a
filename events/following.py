"""Reading the published event records, from anywhere in the past and on into the future.

What lives here: a reader of ``SLOTBUS_EVENT`` that survives a lost link, a restarted
server and its own slowness without a gap, and drops what it has shown before. What may
not: writing events (the leader does), and what they mean.

Of each record every subject that it concerns has the facts that concern it, at least once.
Readers get each fact once, by the record's position in the event log and the fact's place in
it; who reads all subjects gets the record whole again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Container
from datetime import datetime
from typing import ClassVar, Final

import msgspec
import nats.errors
import nats.js.errors
from msgspec import Raw, Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from events.asking import LinkClosed, link_error
from events.denials import Denials
from events.errors import Invalid, SlotbusError
from events.facts import SCHEMA_VERSION, AnyFact
from events.ids import Position

IDLE_HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 3.0
"""Without even a heartbeat for so long, the consumer is gone: make another."""

RETRY_S: Final = 0.5
SETUP_TIMEOUT_S: Final = 5.0
INACTIVE_S: Final = 30.0
"""The server forgets our consumer after so long without us."""

MAX_PENDING: Final = 8_192
REMEMBERED: Final = 8_192
"""Positions remembered against duplicates; the stream is in order but for a new leader's
repetition of its predecessor's last few."""


class NoEvents(SlotbusError):
    """There is no stream of events on this server (yet)."""

    code: ClassVar[str] = "no_events"
    status: ClassVar[int] = 404


class NoJetStream(SlotbusError):
    """The server or our account has no JetStream, so nothing is kept there."""

    code: ClassVar[str] = "no_jetstream"
    status: ClassVar[int] = 503


class EventRecord(Struct, kw_only=True, frozen=True):
    """A record of the event log, or the part of it that concerns who was asked about.
    ``unknown``: types of facts in it that this version does not know; ``body``: as JSON, for
    those who do."""

    position: int
    at: datetime
    epoch: int
    cause: str
    events: list[AnyFact]
    unknown: list[str]
    body: bytes


class _Message(Struct, gc=False):
    position: int
    at: datetime
    epoch: int
    cause: str
    events: list[Raw]
    v: int = SCHEMA_VERSION
    of: int | None = None
    part: list[int] | None = None


class _Tag(Struct):
    type: str


_MESSAGE: Final = msgspec.json.Decoder(_Message)
_FACT: Final[msgspec.json.Decoder[AnyFact]] = msgspec.json.Decoder(AnyFact)
_TAG: Final = msgspec.json.Decoder(_Tag)


class Piece:
    """What one message of the event subjects has of a record: facts by their places in it.
    Raises Invalid where it is none."""

    def __init__(self, body: bytes) -> None:
        try:
            self._message = _MESSAGE.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"not a published event record: {error}") from error
        events, part = self._message.events, self._message.part
        places = range(len(events)) if part is None else part
        if len(places) != len(events):
            raise Invalid("not a published event record: its facts are not those it names")
        self.position = self._message.position
        self.of = len(events) if self._message.of is None else self._message.of
        self.facts: dict[int, Raw] = dict(zip(places, events, strict=True))
        self._body: bytes | None = body

    def take(self, other: Piece) -> None:
        """Has the facts of another piece of the same record, too."""
        self.facts |= other.facts
        self._body = None

    def leave_out(self, shown: Container[int]) -> None:
        """Does not have the facts at these places any more."""
        kept = {place: fact for place, fact in self.facts.items() if place not in shown}
        if len(kept) < len(self.facts):
            self.facts, self._body = kept, None

    def record(self) -> EventRecord:
        """What it comes to. Raises Invalid for a fact that is none."""
        facts: list[AnyFact] = []
        unknown: list[str] = []
        for _, raw in sorted(self.facts.items()):
            try:
                facts.append(_FACT.decode(raw))
            except msgspec.ValidationError:
                unknown.append(_type_of(raw))
        message = self._message
        return EventRecord(
            position=self.position,
            at=message.at,
            epoch=message.epoch,
            cause=message.cause,
            events=facts,
            unknown=unknown,
            body=self._body or self._as_message(),
        )

    def _as_message(self) -> bytes:
        """As a leader would publish these facts together."""
        message = self._message
        tree: dict[str, object] = {"position": self.position}
        if len(self.facts) < self.of:
            tree |= {"of": self.of, "part": sorted(self.facts)}
        tree |= {"v": message.v, "at": message.at, "epoch": message.epoch, "cause": message.cause}
        tree["events"] = [raw for _, raw in sorted(self.facts.items())]
        return msgspec.json.encode(tree)


def _type_of(raw: Raw) -> str:
    try:
        return _TAG.decode(raw).type
    except msgspec.DecodeError as error:
        raise Invalid(f"not a published event record: {error}") from error


def decode_event(body: bytes) -> EventRecord:
    """Reads one message of the event subjects. Raises Invalid where it is none."""
    return Piece(body).record()


class Joining:
    """From pieces to what a reader is shown: each fact once. ``whole``: who reads all subjects
    gets a record once it is complete, or once what follows shows that it won't be."""

    def __init__(self, *, after: int = 0, whole: bool) -> None:
        self._whole = whole
        self._after = after
        self._shown: dict[int, set[int]] = {}
        self._open: Piece | None = None

    def add(self, piece: Piece) -> list[Piece]:
        """What can be shown now."""
        if piece.position <= self._after:
            return []
        shown = self._shown_of(piece.position)
        piece.leave_out(shown)
        if not piece.facts:
            return []
        shown.update(piece.facts)
        if not self._whole:
            return [piece]
        ready: list[Piece] = []
        if self._open is not None and self._open.position == piece.position:
            self._open.take(piece)
        else:
            ready = self.rest()
            self._open = piece
        return ready + self.rest() if len(shown) >= piece.of else ready

    def rest(self) -> list[Piece]:
        """What was held back."""
        piece, self._open = self._open, None
        return [] if piece is None else [piece]

    def _shown_of(self, position: int) -> set[int]:
        """Places whose facts were shown; remembered for the last ``REMEMBERED`` positions."""
        if position not in self._shown:
            self._shown[position] = set()
            if len(self._shown) > REMEMBERED:
                gone = next(iter(self._shown))
                del self._shown[gone]
                self._after = max(self._after, gone)
        return self._shown[position]


class Start(Struct, frozen=True, kw_only=True):
    """From where to read: all that is kept, from a time on, or after a position."""

    time: datetime | None = None
    after: Position = Position(0)


class Follower:
    """One reader of the event stream; iterate over ``records()`` once."""

    def __init__(
        self,
        nc: Client,
        stream: str,
        subject: str,
        *,
        start: Start,
        follow: bool,
        denials: Denials | None = None,
    ) -> None:
        self._nc = nc
        self._denials = denials or Denials()
        self._stream = stream
        self._subject = subject
        self._start = start
        self._follow = follow
        self._last_stream_seq = 0
        self._last_consumer_seq = 0
        self._found = False
        self._ended = False

    async def records(self) -> AsyncGenerator[EventRecord]:
        """Yields each record once, in order. Without ``follow`` it ends with the last one
        that was stored at the call. Once it has begun, a lost link is waited for. Raises
        NoEvents, NoJetStream, Denied, LinkDown, LinkClosed, Invalid."""
        whole = self._subject.endswith(">")
        joining = Joining(after=self._start.after, whole=whole)
        async with contextlib.aclosing(self._messages()) as messages:
            async for message in messages:
                for piece in joining.add(Piece(message.data)):
                    yield piece.record()
        for piece in joining.rest():
            yield piece.record()

    async def _messages(self) -> AsyncGenerator[Msg]:
        while not self._ended:
            try:
                async with contextlib.aclosing(self._one_consumer()) as messages:
                    async for message in messages:
                        yield message
            except nats.errors.Error as error:
                problem = self._problem(error)
                if isinstance(problem, LinkClosed) or not self._found:
                    raise problem from error
                await asyncio.sleep(RETRY_S)

    def _problem(self, error: nats.errors.Error) -> SlotbusError:
        if isinstance(error, nats.js.errors.NotFoundError):
            return NoEvents(
                "no events are kept on this NATS server: no controller was ever here, "
                f"or under another root (there is no stream {self._stream})",
                stream=self._stream,
            )
        if isinstance(error, nats.js.errors.ServiceUnavailableError):
            return NoJetStream(
                "JetStream is not enabled on this NATS server, or not for this account: events "
                "are kept there"
            )
        if isinstance(error, nats.js.errors.Error):
            return NoEvents(f"events can't be read from this NATS server: {error}")
        return link_error(error)

    async def _one_consumer(self) -> AsyncGenerator[Msg]:
        """Messages after the last one seen, until something is missing."""
        inbox = self._nc.new_inbox()
        subscription = await self._nc.subscribe(inbox, pending_msgs_limit=MAX_PENDING)
        try:
            left = await self._make_consumer(inbox)
            self._ended = not self._follow and left == 0
            while not self._ended:
                message = await self._next(subscription)
                if message is None:
                    return
                meta = message.metadata
                self._last_stream_seq = meta.sequence.stream
                self._last_consumer_seq = meta.sequence.consumer
                left -= 1
                self._ended = not self._follow and left == 0
                yield message
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _make_consumer(self, inbox: str) -> int:
        """Returns how many messages are stored for it."""
        config = ConsumerConfig(
            deliver_subject=inbox,
            ack_policy=AckPolicy.NONE,
            filter_subject=self._subject,
            flow_control=True,
            idle_heartbeat=IDLE_HEARTBEAT_S,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        if self._last_stream_seq:
            config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = self._last_stream_seq + 1
        elif self._start.time is not None:
            config.deliver_policy = DeliverPolicy.BY_START_TIME
            config.opt_start_time = self._start.time
        js = self._nc.jetstream(timeout=SETUP_TIMEOUT_S)
        info = await self._denials.unless_denied(
            js.add_consumer(self._stream, config), f"$JS.API.CONSUMER.CREATE.{self._stream}"
        )
        self._found = True
        self._last_consumer_seq = 0
        delivered = info.delivered.consumer_seq if info.delivered else 0
        return (info.num_pending or 0) + delivered

    async def _next(self, subscription: Subscription) -> Msg | None:
        """The next message in sequence; None where one is missing or nobody sends."""
        while True:
            try:
                message = await subscription.next_msg(timeout=SILENCE_S)
            except nats.errors.TimeoutError:
                return None
            headers = message.headers or {}
            if headers.get("Status") != "100" or message.data:
                follows = message.metadata.sequence.consumer == self._last_consumer_seq + 1
                return message if follows else None
            if message.reply:  # flow control: the server waits for this before it sends more
                await self._nc.publish(message.reply)
            elif int(headers.get("Nats-Last-Consumer", "0")) > self._last_consumer_seq:
                return None
