"""Commands and queries, as endpoints of the NATS services framework.

What lives here: the service ``slotbus`` that ``nats micro ls`` shows, decoding, the
``command_id`` and the warnings of a request, and which requests wait for an answer. What
may not: decisions, and waiting for the engine: the framework runs one handler at a time
per endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, get_args

import msgspec
import structlog
from msgspec import Struct
from nats.aio.client import Client
from nats.micro import add_service
from nats.micro.request import Handler, Request
from nats.micro.service import EndpointStats, Service, ServiceConfig

from controller.outbox import InboxStats, Offers, Outbox, Outcome, Respond
from events.asking import ROUTES
from events.codec import decode, unknown_fields
from events.errors import Internal, Invalid, NotLeader, Overloaded, SlotbusError
from events.ids import ID_RE
from events.messages import Command, Message
from events.subjects import Subjects

SERVICE: Final = "slotbus"
MESSAGE_ID: Final = "Nats-Msg-Id"
MAX_OPEN: Final = 8_192
"""Commands and queries that may wait for their answers at the same time."""

TURN: Final = 64
"""Requests to one endpoint after which the loop gets a turn: nats-py doesn't wait between
messages while it has more."""

MAX_WARNINGS: Final = 20
COMMANDS: Final = frozenset(get_args(Command))

M = TypeVar("M", bound=Message)

_log = structlog.get_logger("slotbus.inbox")


class _Asked(Struct, frozen=True):
    """A command or query that waits for its answer."""

    kind: str
    respond: Respond
    began: float
    warnings: list[str]


class Services:
    """The endpoints of one leadership.

    ``latency(kind, seconds)`` is told how long each command and query took to be answered.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        engine: Offers,
        outbox: Outbox,
        stats: InboxStats,
        *,
        epoch: int,
        version: str,
        latency: Callable[[str, float], None],
        max_open: int = MAX_OPEN,
    ) -> None:
        self._nc = nc
        self._subjects = subjects
        self._engine = engine
        self._outbox = outbox
        self._stats = stats
        self._epoch = epoch
        self._version = version
        self._latency = latency
        self._max_open = max_open
        self._stopping = False
        self._open: dict[int, _Asked] = {}
        self._count = 0
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._one_done = asyncio.Event()
        self._service: Service | None = None

    async def open(self) -> None:
        """Listens. Raises nats.errors.Error where the connection is closed."""
        self._service = await add_service(
            self._nc,
            ServiceConfig(
                name=SERVICE,
                version=self._version,
                description="starts, stops and watches the workers of pipelines",
                metadata={"epoch": str(self._epoch), "root": self._subjects.root},
                # Of this epoch alone: a frozen predecessor must not get a share.
                queue_group=f"{self._subjects.token}-{self._epoch}",
                stats_handler=self._errors_of,
            ),
        )
        for kind, route in ROUTES.items():
            await self._service.add_endpoint(
                name=name_of(kind),
                subject=route.subject(self._subjects),
                handler=self._handler(kind),
            )

    def _errors_of(self, endpoint: EndpointStats) -> dict[str, int]:
        """Errors by their codes. To the framework ours are answers, so its own count, which
        `nats micro stats` shows, misses them."""
        counts = self._stats.errors.items()
        codes = {code: count for (kind, code), count in counts if kind == endpoint.name}
        endpoint.num_errors += sum(codes.values())
        return codes

    async def settle(self, grace_s: float) -> None:
        """Waits for ``grace_s`` seconds until all that is under way now is answered; what
        comes meanwhile is taken as ever."""
        now = set(self._open)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while now & self._open.keys():
                    self._one_done.clear()
                    await self._one_done.wait()

    async def finish(self, grace_s: float) -> None:
        """Takes nothing more and lets what is under way end for ``grace_s`` seconds; who
        then still waits is told that another leader will answer."""
        self._stopping = True
        try:
            async with asyncio.timeout(grace_s):
                await self._none_open.wait()
        except TimeoutError:
            over = NotLeader("this controller stops: ask again under the same command_id")
            for number in list(self._open):
                self._answer(number, over)

    async def stop_listening(self) -> None:
        """The server sends no more requests; those that are on their way are still handled. In
        one round trip: the framework unsubscribes from one endpoint after the other, and drops
        what has come. Raises nats.errors.Error."""
        if self._service is None:
            return
        endpoints = list(self._service._endpoints)
        self._service._endpoints.clear()  # else it would unsubscribe again, which is an error
        drains = [each._subscription.drain() for each in endpoints if each._subscription]
        await asyncio.gather(*drains)

    async def close(self) -> None:
        """Stops listening. Raises nats.errors.Error where the connection is gone."""
        self._stopping = True
        self._open.clear()
        self._none_open.set()
        self._one_done.set()
        service, self._service = self._service, None
        if service is not None:  # which can't be stopped twice, also where that was cut short
            await service.stop()

    def _handler(self, kind: type[Message]) -> Handler:
        taken = 0

        async def handle(request: Request) -> None:
            nonlocal taken
            self._take(kind, request)
            taken += 1
            if taken % TURN == 0:
                await asyncio.sleep(0)

        return handle

    def _take(self, kind: type[Message], request: Request) -> None:
        name = name_of(kind)
        self._stats.received[name] += 1
        warnings: list[str] = []
        number = self._remember(_Asked(name, request.respond, time.monotonic(), warnings))
        try:
            self._refuse_where_needed()
            message = read_request(kind, request.data, request.headers, warnings)
            self._engine.offer(message, partial(self._answer, number))  # type: ignore[arg-type]
        except SlotbusError as error:
            self._answer(number, error)
        except Exception as error:  # noqa: BLE001  the edge: a fault of ours kills no loop
            self._stats.faults += 1
            _log.exception("request not handled", kind=name)
            self._answer(number, Internal(f"a fault of slotbus: {error!r}"))

    def _remember(self, asked: _Asked) -> int:
        self._count += 1
        self._open[self._count] = asked
        self._none_open.clear()
        return self._count

    def _refuse_where_needed(self) -> None:
        if self._stopping:
            raise NotLeader("this controller stops: ask again, the next leader will answer")
        if len(self._open) > self._max_open:
            raise Overloaded(
                f"{self._max_open} commands and queries wait already: try a little later",
                limit=self._max_open,
            )

    def _answer(self, number: int, outcome: Outcome) -> None:
        """Called by the engine; too late, after ``finish`` has answered, it does nothing."""
        asked = self._open.pop(number, None)
        self._one_done.set()
        if asked is None:
            return
        if not self._open:
            self._none_open.set()
        self._outbox.put(asked.kind, asked.respond, outcome, asked.warnings)
        self._latency(asked.kind, time.monotonic() - asked.began)


def name_of(kind: type[Message]) -> str:
    """The endpoint's name: ``cmd-start``, ``query-nodes``."""
    return f"{ROUTES[kind].family}-{ROUTES[kind].verb}"


def read_request(
    kind: type[M], body: bytes, headers: dict[str, str] | None, warnings: list[str]
) -> M:
    """Decodes a request; ``warnings`` gets a sentence for each field that it doesn't know,
    also where the request is then refused. Raises Invalid, TooLarge."""
    try:
        message = decode(body, kind)
    finally:
        warnings.extend(_unknown(kind, body) if kind in COMMANDS else ())
    return _with_id(message, headers)


def _with_id(message: M, headers: dict[str, str] | None) -> M:
    """A command's id: the body's, else the header's, else the engine makes one."""
    if not isinstance(message, Command) or message.command_id is not None:
        return message
    given = (headers or {}).get(MESSAGE_ID)
    if given is None:
        return message
    if not ID_RE.match(given):
        raise Invalid(
            f"the header {MESSAGE_ID} becomes the command_id: 1 to 128 of letters, digits, _ and -",
            path="$.command_id",
        )
    return msgspec.structs.replace(message, command_id=given)


def _unknown(kind: type[Message], body: bytes) -> list[str]:
    try:
        tree = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return []  # why it can't be read is said by the error itself
    return [
        f"unknown field {path}" + (f", did you mean {near}?" if near else "")
        for path, near in unknown_fields(tree, kind)
    ][:MAX_WARNINGS]
