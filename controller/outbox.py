"""The outbox: answers on their way out, each checked against the lease as it leaves.

What lives here: a bounded queue and the one task that sends from it; how replies and errors
become bodies and headers; the counts of what came and went. What may not: who is answered
with what.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

import nats.errors
import structlog
from msgspec import Struct, field
from msgspec.structs import replace
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from events.codec import encode
from events.errors import Fact, Invalid, SlotbusError, TooLarge
from schedulers.decide.messages import Inbound, Reply

QUEUE_LIMIT: Final = 20_000
REASON_LENGTH: Final = 300
"""Characters of an error's message that go into a header; the body has all of it."""

HEADER_BYTES: Final = 2_048
"""What headers may need beside a body in one NATS message."""

Outcome: TypeAlias = Reply | SlotbusError
Answer: TypeAlias = Callable[[Outcome], None]

_log = structlog.get_logger("slotbus.inbox")


class Respond(Protocol):
    """Sends one answer to where it was asked for."""

    def __call__(
        self, data: bytes, /, *, headers: dict[str, str] | None = None
    ) -> Awaitable[None]: ...


class Offers(Protocol):
    """What those who listen need of the engine; ``len`` is how much waits in it."""

    def offer(self, message: Inbound, answer: Answer | None = None) -> None:
        """As ``schedulers.engine.Engine.offer``."""

    def __len__(self) -> int: ...


class InboxStats(Struct):
    """Counts over all leaderships of this process, for metrics.

    ``received``: messages by kind; ``errors``: answers by ``(kind, code)``; ``dropped``:
    answers that were not sent, by reason; ``faults``: errors of ours in handlers.
    """

    received: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    invalid: int = 0
    faults: int = 0

    def refused(self, kind: str, error: SlotbusError) -> None:
        """A message of this kind led to an error."""
        self.errors[kind, error.code] += 1
        self.invalid += error.code == Invalid.code


class _Sending(Struct, frozen=True):
    respond: Respond
    body: bytes
    headers: dict[str, str] | None = None


class Outbox:
    """Sends answers in order. ``may_answer()`` is asked right before each send; what may
    not be sent any more is dropped, and counted by reason."""

    def __init__(
        self,
        *,
        may_answer: Callable[[], bool],
        max_payload: Callable[[], int],
        stats: InboxStats,
        limit: int = QUEUE_LIMIT,
    ) -> None:
        self._may_answer = may_answer
        self._max_payload = max_payload
        self._stats = stats
        self._limit = limit
        self._queue: deque[_Sending] = deque()
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begins to send."""
        self._task = asyncio.create_task(self._run(), name="outbox")

    async def close(self) -> None:
        """Sends nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._stats.dropped["closed"] += len(self._queue)
        self._queue.clear()
        self._empty.set()

    async def until_empty(self, timeout_s: float) -> bool:
        """Waits until all that was queued is handed to the connection."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def put(self, kind: str, respond: Respond, outcome: Outcome, warnings: list[str]) -> None:
        """Queues the answer to a message; one that is too large becomes an error."""
        if isinstance(outcome, SlotbusError):
            self._put_error(kind, respond, outcome, warnings)
            return
        if warnings and hasattr(outcome, "warnings"):
            outcome = _with_warnings(outcome, warnings)
        body = encode(outcome)
        most = self._max_payload() - HEADER_BYTES
        if len(body) > most:
            error = TooLarge(
                f"the answer has {len(body)} bytes, this NATS server carries {most}: "
                "ask for less with `limit`",
                limit=most,
                unit="bytes",
            )
            self._put_error(kind, respond, error, warnings)
            return
        self._put(_Sending(respond, body))

    def _put_error(
        self, kind: str, respond: Respond, error: SlotbusError, warnings: list[str]
    ) -> None:
        self._stats.refused(kind, error)
        body: dict[str, dict[str, Fact] | list[str]] = {**error.body()}
        if warnings:
            body["warnings"] = warnings
        headers = {
            ERROR_HEADER: error.message[:REASON_LENGTH] or error.code,
            ERROR_CODE_HEADER: str(error.status),
        }
        self._put(_Sending(respond, encode(body), headers))

    def _put(self, sending: _Sending) -> None:
        if len(self._queue) >= self._limit:
            self._stats.dropped["queue_full"] += 1
            return
        self._queue.append(sending)
        self._empty.clear()
        self._filled.set()

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            while self._queue:
                await self._send(self._queue.popleft())
            self._filled.clear()
            self._empty.set()

    async def _send(self, sending: _Sending) -> None:
        if not self._may_answer():
            self._stats.dropped["lease_over"] += 1
            return
        try:
            await sending.respond(sending.body, headers=sending.headers)
        except ValueError:  # the services framework, where nobody asked for an answer
            self._stats.dropped["no_reply_subject"] += 1
        except (nats.errors.Error, OSError) as error:
            self._stats.dropped["not_sent"] += 1
            _log.warning("answer not sent", cause=str(error) or repr(error))


def _with_warnings(reply: Reply, warnings: list[str]) -> Reply:
    return replace(reply, warnings=[*getattr(reply, "warnings", []), *warnings])
