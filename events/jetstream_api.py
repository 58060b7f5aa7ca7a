"""JetStream's own requests, typed: streams, single messages, consumers, purges.

What lives here: asking over the connection, again and again until a deadline, and what
the answers mean. What may not: what slotbus keeps in a stream (``events.jetstream``,
``events.projection``).

nats-py's manager is not used for this: it loses the fields we check (a stream's creation
time in full), and its time-out is one for everything.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec
import nats.errors
from msgspec import Raw, Struct, field
from nats.aio.client import Client

from events.connection import request
from events.log import LogError, LogUnsettled

ATTEMPT_TIMEOUT_S: Final = 2.0
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0
STREAM_NOT_FOUND: Final = 10059
NO_MESSAGE: Final = 10037
NAME_IN_USE: Final = 10058
UNAVAILABLE: Final = 503
NANOSECONDS: Final = 1_000_000_000

GONE: Final = (
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.AuthorizationError,
)
"""After these the connection is of no use any more."""

_LIMITS: Final = {
    10027: ": the account may have no more streams, and slotbus needs four of its own",
    10028: ": the server gives JetStream no more storage",
    10039: ": JetStream is not enabled for this account",
    10047: ": the server or the account gives less storage than log_max_bytes asks for",
    10076: ": JetStream is not enabled on this server",
}
"""What a refusal on account of a limit means here, by JetStream's err_code."""

_NEVER: Final = frozenset({10039, 10076})
"""Unavailable, and not only for the moment: JetStream is not enabled."""

T = TypeVar("T")


class ApiError(Struct, frozen=True):
    """What JetStream says when it refuses."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class ApiRefused(LogError):
    """JetStream answered, and the answer is no. ``err_code`` is JetStream's."""

    def __init__(self, what: str, error: ApiError) -> None:
        super().__init__(
            f"JetStream refused {what}: {error.description} ({error.err_code})"
            + _LIMITS.get(error.err_code, ""),
            err_code=error.err_code,
        )
        self.err_code = error.err_code


class StreamConfig(Struct, frozen=True, kw_only=True):
    """The part of a stream's configuration that slotbus sets or looks at. Nanoseconds and
    bytes; -1 is no limit, as is an age of 0. ``persist_mode`` (nats-server 2.12, for life):
    "async" acknowledges before the disk has it, and is for one replica only."""

    name: str
    subjects: list[str] = []
    retention: str = "limits"
    storage: str = "file"
    discard: str = "old"
    max_bytes: int = -1
    max_msgs: int = -1
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    max_age: int = 0
    num_replicas: int = 1
    duplicate_window: int = 120 * NANOSECONDS
    allow_direct: bool = False
    deny_delete: bool = False
    sealed: bool = False
    persist_mode: str = "default"


class StreamState(Struct, frozen=True):
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    last_ts: str = ""


class StreamInfo(Struct, frozen=True):
    """``created`` tells two streams of one name apart; ``raw`` is the whole configuration."""

    created: str
    state: StreamState
    raw: Raw = field(name="config")

    @property
    def config(self) -> StreamConfig:
        return msgspec.json.decode(self.raw, type=StreamConfig)


class StoredMessage(Struct, frozen=True):
    seq: int
    data: bytes
    headers: dict[str, str]


class _Reply(Struct):
    error: ApiError | None = None


class _Subjects(Struct):
    subjects: dict[str, int] = {}


class _CountsReply(Struct):
    state: _Subjects


class _MessageBody(Struct):
    seq: int
    data: str = ""
    hdrs: str = ""


class _MessageReply(Struct):
    message: _MessageBody


class Deadline:
    """A point in the loop's time, and waits that grow towards it, never in step."""

    def __init__(self, timeout_s: float, *, longest_wait_s: float = BACKOFF_MAX_S) -> None:
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._at = self._clock() + timeout_s
        self._longest_wait_s = longest_wait_s
        self._wait = BACKOFF_FIRST_S

    @property
    def left_s(self) -> float:
        return max(0.0, self._at - self._clock())

    def attempt_s(self, longest: float = ATTEMPT_TIMEOUT_S) -> float:
        """How long one attempt may take, in seconds: not nothing, so that the last counts."""
        return max(0.001, min(longest, self.left_s))

    async def back_off(self) -> None:
        await asyncio.sleep(min(self.left_s, self._wait * random.uniform(0.5, 1.5)))
        self._wait = min(self._longest_wait_s, self._wait * 2)


class JetStreamApi:
    """Requests to JetStream over one connection. Each takes a deadline and raises
    LogUnsettled when there is no answer by then, ApiRefused for a no."""

    def __init__(self, nc: Client, *, prefix: str = "$JS.API") -> None:
        self.nc = nc
        self.prefix = prefix

    async def info(self, stream: str, deadline: Deadline) -> StreamInfo | None:
        """None: there is no such stream."""
        try:
            reply = await self._ask(f"STREAM.INFO.{stream}", b"", deadline)
        except ApiRefused as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise
        return _decode(reply, StreamInfo)

    async def ensure(self, config: StreamConfig, deadline: Deadline) -> StreamInfo:
        """The stream of this name, made if there is none; an existing one is left as it is."""
        while True:
            found = await self.info(config.name, deadline)
            if found is not None:
                return found
            try:
                body = msgspec.json.encode(config)
                reply = await self._ask(f"STREAM.CREATE.{config.name}", body, deadline)
            except ApiRefused as error:
                if error.err_code != NAME_IN_USE:
                    raise
                await deadline.back_off()  # somebody else was faster: look again
            else:
                return _decode(reply, StreamInfo)

    async def widen(self, info: StreamInfo, max_bytes: int, deadline: Deadline) -> StreamInfo:
        """The same stream with another ``max_bytes`` and nothing else changed."""
        return await self.change(info, {"max_bytes": max_bytes}, deadline)

    async def change(
        self, info: StreamInfo, fields: Mapping[str, object], deadline: Deadline
    ) -> StreamInfo:
        """The same stream with other values of these fields of its configuration."""
        config = msgspec.json.decode(info.raw, type=dict[str, object])
        config.update(fields)
        body = msgspec.json.encode(config)
        return _decode(
            await self._ask(f"STREAM.UPDATE.{info.config.name}", body, deadline), StreamInfo
        )

    async def counts(self, stream: str, subjects: str, deadline: Deadline) -> dict[str, int]:
        """How many messages the stream holds on each subject that matches; none without it."""
        try:
            body = msgspec.json.encode({"subjects_filter": subjects})
            reply = await self._ask(f"STREAM.INFO.{stream}", body, deadline)
        except ApiRefused as error:
            if error.err_code == STREAM_NOT_FOUND:
                return {}
            raise
        return _decode(reply, _CountsReply).state.subjects

    async def message(self, stream: str, seq: int, deadline: Deadline) -> StoredMessage | None:
        """What the stream's leader holds at ``seq``; None: nothing."""
        return await self._message(stream, {"seq": seq}, deadline)

    async def last_message(
        self, stream: str, subject: str, deadline: Deadline
    ) -> StoredMessage | None:
        """The last one on a subject; None: there is none."""
        return await self._message(stream, {"last_by_subj": subject}, deadline)

    async def _message(
        self, stream: str, which: Mapping[str, int | str], deadline: Deadline
    ) -> StoredMessage | None:
        try:
            body = msgspec.json.encode(which)
            reply = await self._ask(f"STREAM.MSG.GET.{stream}", body, deadline)
        except ApiRefused as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        message = _decode(reply, _MessageReply).message
        try:
            data, head = base64.b64decode(message.data), base64.b64decode(message.hdrs)
        except binascii.Error as error:
            raise LogError(
                f"JetStream's answer about message {message.seq} can't be read"
            ) from error
        return StoredMessage(message.seq, data, _headers(head))

    async def purge(self, stream: str, before_seq: int, deadline: Deadline) -> None:
        """Removes the messages below ``before_seq``."""
        body = msgspec.json.encode({"seq": before_seq})
        await self._ask(f"STREAM.PURGE.{stream}", body, deadline)

    async def purge_subject(self, stream: str, subject: str, deadline: Deadline) -> None:
        """Removes the messages on one subject."""
        body = msgspec.json.encode({"filter": subject})
        await self._ask(f"STREAM.PURGE.{stream}", body, deadline)

    async def create_reader(
        self, stream: str, name: str, start_seq: int, lifetime_s: float, deadline: Deadline
    ) -> None:
        """A pull consumer without acknowledgements that ends by itself when unused."""
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": start_seq,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(lifetime_s * NANOSECONDS),
        }
        body = msgspec.json.encode({"stream_name": stream, "config": config})
        await self._ask(f"CONSUMER.CREATE.{stream}.{name}", body, deadline)

    async def delete_reader(self, stream: str, name: str, deadline: Deadline) -> None:
        await self._ask(f"CONSUMER.DELETE.{stream}.{name}", b"", deadline)

    async def _ask(self, what: str, body: bytes, deadline: Deadline) -> bytes:
        cause = ""
        while True:
            try:
                reply = await request(self.nc, f"{self.prefix}.{what}", body, deadline.attempt_s())
            except GONE as error:
                raise LogUnsettled(f"the connection to NATS is over: {error}") from error
            except nats.errors.Error as error:
                cause = said(error, cause)
            else:
                refused = _decode(reply.data, _Reply).error
                if refused is None:
                    return reply.data
                if refused.code != UNAVAILABLE or refused.err_code in _NEVER:
                    raise ApiRefused(what, refused)
                cause = refused.description
            if deadline.left_s <= 0:
                raise LogUnsettled(f"JetStream did not answer to {what} in time: {cause}")
            await deadline.back_off()


def said(error: Exception, before: str) -> str:
    """Why an attempt failed, in words. That the last one had no time left says less than
    what the attempts ``before`` ran into."""
    if isinstance(error, nats.errors.TimeoutError) and before:
        return before
    if isinstance(error, nats.errors.NoRespondersError):
        return "no JetStream there (is it enabled?)"
    return str(error) or type(error).__name__


def _decode(reply: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(reply, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogError(f"an answer of JetStream can't be read: {error}") from error


def _headers(block: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in block.decode(errors="replace").split("\r\n")[1:]:
        name, found, value = line.partition(":")
        if found:
            headers[name.strip()] = value.strip()
    return headers
