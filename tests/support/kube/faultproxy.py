"""A proxy in front of an API server that breaks requests on purpose and counts them all.

What lives here: ``FaultProxy``, which is asked beforehand (``inject``), and ``Stream``, a
watch that is under way. What may not: what the faults are (``faults``).

It speaks plain HTTP, passes the users' tokens on, and its port stays while it is closed.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp
from aiohttp import web
from yarl import URL

from tests.support.kube.faults import (
    WATCH,
    Answer,
    CutStream,
    Delay,
    Drop,
    EndStream,
    ErrorEvent,
    Fault,
    Hang,
    Repeat,
    Silence,
    Stale,
    StreamFault,
    unauthorized,
)
from tests.support.kube.program import LOCALHOST
from tests.support.kube.rest import WATCH_BUFFER_BYTES

PASSED_ON: Final = ("Accept", "Authorization", "Content-Type", "User-Agent")
PASSED_BACK: Final = ("Content-Type", "Retry-After", "Warning")
_PATH_RE: Final = re.compile(
    r"/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>.+))?)?"
)
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_STREAM_FAULTS: Final = (EndStream, CutStream, Silence, ErrorEvent, Repeat, Stale)


@dataclass
class Seen:
    """One request. ``verb`` and ``resource`` as in RBAC: list, watch, ``pods/status``."""

    verb: str
    resource: str
    namespace: str
    name: str
    query: dict[str, str]
    at: float
    """Of the loop's clock, in seconds."""

    status: int = 0
    """What the client was told; 0 if nothing."""


@dataclass(eq=False)
class Rule:
    """A fault for the requests that fit; ``hits`` of them were broken so far."""

    fault: Fault
    verb: str | None
    resource: str | None
    times: int | None
    skip: int
    hits: int = 0
    hit: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first."""

    def fits(self, seen: Seen) -> bool:
        if self.verb not in (None, seen.verb) or self.resource not in (None, seen.resource):
            return False
        if isinstance(self.fault, _STREAM_FAULTS) and seen.verb != WATCH:
            return False
        if self.skip:
            self.skip -= 1
            return False
        return self.times is None or self.hits < self.times

    def stop(self) -> None:
        self.times = 0


class Stream:
    """A watch under way. ``lines`` is what the client was given, whole events only."""

    def __init__(self, seen: Seen, request: web.Request, response: web.StreamResponse) -> None:
        self.seen = seen
        self.lines: list[bytes] = []
        self._request = request
        self._response = response
        self._over = asyncio.Event()
        self._silent = False

    async def send(self, line: bytes) -> None:
        if not self._silent and not self._over.is_set():
            await self._response.write(line)
            self.lines.append(line)

    async def end(self) -> None:
        """Ends it properly, as the server's time-out does."""
        self._over.set()

    async def error(self, event: ErrorEvent | None = None) -> None:
        """An ERROR event, by default 410, and the end."""
        await self.send((event or ErrorEvent()).line())
        self._over.set()

    async def cut(self, part: bytes = b'{"type":"MODIFIED","object":{"kin') -> None:
        """Breaks the connection, within an event unless ``part`` is empty."""
        if part:
            await self._response.write(part)
        _abort(self._request)
        self._over.set()

    def silence(self) -> None:
        """Says nothing more and stays open, as behind a router that was switched off."""
        self._silent = True

    async def replay(self) -> None:
        """Gives all its events once more, oldest first."""
        for line in list(self.lines):
            await self._response.write(line)

    async def pump(self, source: aiohttp.StreamReader, faults: list[StreamFault]) -> None:
        """Passes events on until either side, or a fault, ends it."""
        over = asyncio.create_task(self._over.wait())
        reading: asyncio.Task[bytes] | None = None
        try:
            while not self._over.is_set():
                await self._inject_due(faults)
                reading = asyncio.create_task(source.readline())
                await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
                if self._over.is_set():
                    return
                line = reading.result()
                if not line:
                    if self._silent:
                        await over
                    return
                await self._pass_on(line, faults)
        finally:
            tasks = [task for task in (over, reading) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _inject_due(self, faults: list[StreamFault]) -> None:
        for fault in faults:
            match fault:
                case EndStream(after) if len(self.lines) >= after:
                    await self.end()
                case ErrorEvent(after=after) if len(self.lines) >= after:
                    await self.error(fault)
                case Silence(after) if len(self.lines) >= after:
                    self.silence()
                case CutStream(after, mid_event=False) if len(self.lines) >= after:
                    await self.cut(b"")

    async def _pass_on(self, line: bytes, faults: list[StreamFault]) -> None:
        for fault in faults:
            if isinstance(fault, CutStream) and len(self.lines) >= fault.after:
                await self.cut(line[: len(line) // 2])
                return
        earlier = list(self.lines)
        await self.send(line)
        for fault in faults:
            match fault:
                case Repeat(times):
                    for _ in range(times - 1):
                        await self._response.write(line)
                case Stale():
                    for old in earlier:
                        await self._response.write(old)


class FaultProxy:
    """Use it as a context manager; ``url`` is where clients go."""

    def __init__(self, server_url: str, tls: ssl.SSLContext | None) -> None:
        self.port = 0
        self.seen: list[Seen] = []
        self.streams: list[Stream] = []
        """The watches that are open, oldest first."""

        self.valid_tokens: set[str] | None = None
        """If set, every other token is refused with 401."""

        self._server_url = URL(server_url)
        self._tls = tls
        self._rules: list[Rule] = []

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self.port}"

    def inject(
        self,
        fault: Fault,
        *,
        verb: str | None = None,
        resource: str | None = None,
        times: int | None = 1,
        skip: int = 0,
    ) -> Rule:
        """Breaks the next ``times`` fitting requests after ``skip`` others; None: all, until
        ``Rule.stop``. Several rules may hold for one request."""
        rule = Rule(fault, verb, resource, times, skip)
        self._rules.append(rule)
        return rule

    def count(self, verb: str | None = None, resource: str | None = None) -> int:
        return sum(
            verb in (None, seen.verb) and resource in (None, seen.resource) for seen in self.seen
        )

    def counts(self) -> Counter[tuple[str, str]]:
        """Requests by verb and resource."""
        return Counter((seen.verb, seen.resource) for seen in self.seen)

    async def refuse(self) -> None:
        """Closes the port and breaks every connection, as if the server were gone."""
        await self._site.stop()
        self._abort_all()

    async def accept(self) -> None:
        """Opens the port again."""
        self._site = web.TCPSite(self._runner, LOCALHOST, self.port, reuse_address=True)
        await self._site.start()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=WATCH_BUFFER_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=True if self._tls is None else self._tls, limit=0),
            read_bufsize=WATCH_BUFFER_BYTES,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._site = web.TCPSite(self._runner, LOCALHOST, 0)
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._abort_all()
        await self._runner.cleanup()
        await self._client.close()

    def _abort_all(self) -> None:
        server = self._runner.server
        assert server is not None
        for connection in list(server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    # --- a request ----------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = _classify(request)
        self.seen.append(seen)
        body = await request.read()
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.valid_tokens is not None and token not in self.valid_tokens:
            return self._refusal(seen, unauthorized())
        on_stream: list[StreamFault] = []
        for rule in [rule for rule in self._rules if rule.fits(seen)]:
            rule.hits += 1
            rule.hit.set()
            match rule.fault:
                case Delay(seconds):
                    await asyncio.sleep(seconds)
                case Answer() | Hang() | Drop() as fault:
                    return await self._break(request, seen, body, fault)
                case fault:
                    on_stream.append(fault)
        return await self._forward(request, seen, body, on_stream)

    async def _break(
        self, request: web.Request, seen: Seen, body: bytes, fault: Answer | Hang | Drop
    ) -> web.StreamResponse:
        if fault.carry_out:
            async with self._ask(request, body) as answer:
                await answer.read()
        match fault:
            case Answer():
                return self._refusal(seen, fault)
            case Hang():
                await asyncio.Event().wait()  # until the client goes
            case Drop():
                _abort(request)
        return web.Response(status=502)

    def _refusal(self, seen: Seen, fault: Answer) -> web.Response:
        seen.status = fault.status
        again = fault.retry_after_s
        headers = {} if again is None else {"Retry-After": str(again)}
        return web.Response(
            body=fault.body(),
            status=fault.status,
            headers=headers,
            content_type="application/json",
        )

    async def _forward(
        self, request: web.Request, seen: Seen, body: bytes, faults: list[StreamFault]
    ) -> web.StreamResponse:
        try:
            async with self._ask(request, body) as answer:
                seen.status = answer.status
                headers = {k: v for k in PASSED_BACK if (v := answer.headers.get(k)) is not None}
                if seen.verb == WATCH and answer.status == 200:
                    response = web.StreamResponse(headers=headers)
                    await response.prepare(request)
                    await self._stream(Stream(seen, request, response), answer, faults)
                    return response
                text = await answer.read()
                return web.Response(body=text, status=answer.status, headers=headers)
        except (aiohttp.ClientError, ConnectionError):
            # The server went away, or the client did: the other one learns it like this.
            _abort(request)
            return web.Response(status=502)

    async def _stream(
        self, stream: Stream, answer: aiohttp.ClientResponse, faults: list[StreamFault]
    ) -> None:
        self.streams.append(stream)
        try:
            await stream.pump(answer.content, faults)
        finally:
            self.streams.remove(stream)

    def _ask(
        self, request: web.Request, body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        url = self._server_url.join(URL(request.raw_path, encoded=True))
        headers = {k: v for k in PASSED_ON if (v := request.headers.get(k)) is not None}
        return self._client.request(request.method, url, data=body or None, headers=headers)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _classify(request: web.Request) -> Seen:
    query = dict(request.query)
    at = asyncio.get_running_loop().time()
    match = _PATH_RE.fullmatch(request.path)
    if match is None:
        return Seen("get", request.path, "", "", query, at)
    resource, name, part = match["resource"], match["name"] or "", match["part"]
    verb = _VERBS.get(request.method, "get" if name else "list")
    if verb == "list" and query.get("watch", "").lower() in ("1", "true"):
        verb = WATCH
    if verb == "delete" and not name:
        verb = "deletecollection"
    whole = f"{resource}/{part}" if part else resource
    return Seen(verb, whole, match["namespace"] or "", name, query, at)
