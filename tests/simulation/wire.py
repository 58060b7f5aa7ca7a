"""The way between a process and the NATS server: nats-py's client over a modelled wire.

What lives here: ``SimClient``, which is nats-py's own client (requests, subscriptions, inboxes)
with another wire below it, and ``Line``, one connection of it. What may not: routing and
streams (``hub``, ``streams``).

A line keeps the order of what it carries, as TCP does. It may be slow, stand still in either
direction (and later deliver all of it late, or lose it with the connection), or break.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import ParseResult, urlparse

import nats.errors
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tests.simulation.loop import Proc, State, current

if TYPE_CHECKING:
    from tests.simulation.hub import Hub

MAX_PAYLOAD: Final = 1024 * 1024
DIAL_TIMEOUT_S: Final = 2.0
NOTICED_S: Final = (20.0, 30.0)
"""When the client's pings tell that nothing comes any more."""

STALE_S: Final = (60.0, 120.0)
"""When the server finds out that a client is gone that did not say so."""

DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Sub(Struct, frozen=True):
    sid: int
    subject: str
    queue: str


class Unsub(Struct, frozen=True):
    sid: int


class Pub(Struct, frozen=True):
    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


class Ping(Struct, frozen=True):
    number: int


Frame = Sub | Unsub | Pub | Ping


class Refused(OSError):
    """Nobody listens at the server's address."""


class _Nuid:
    """As nats-py's: 22 characters that nobody else has."""

    def __init__(self, proc: Proc) -> None:
        self._prefix = "".join(proc.rng.choices(DIGITS, k=12)).encode()
        self._made = 0

    def next(self) -> bytearray:
        self._made += 1
        return bytearray(self._prefix + b"%010d" % self._made)


class Line:
    """One connection. ``held_up``/``held_down``: a direction that stands still."""

    def __init__(self, hub: Hub, client: SimClient, number: int, seed: str) -> None:
        self.hub = hub
        self.rng = Random(seed)
        """Of its own, so that what is left out elsewhere changes nothing here."""
        self.client = client
        self.proc = client.proc
        self.number = number
        self.here = True
        """Whether the client's side is open."""
        self.there = True
        """Whether the server's side is open."""
        self.subs: dict[int, Sub] = {}
        self.held_up = self.held_down = False
        self._waiting_up: deque[Frame] = deque()
        self._waiting_down: deque[Callable[[], None]] = deque()
        self._up_at = self._down_at = 0.0

    # --- the client's side --------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        if not self.here:
            return
        if self.held_up:
            self._waiting_up.append(frame)
            return
        self._up_at = max(self._up_at, self.hub.now() + self.hub.delay(self))
        self.hub.proc.post_at(self._up_at, self._arrive, frame)

    def _arrive(self, frame: Frame) -> None:
        if self.there:
            self.hub.take(self, frame)

    # --- the server's side --------------------------------------------------------------

    def deliver(self, sid: int, pub: Pub, extra_s: float = 0.0) -> None:
        self._send_down(lambda: self.client.arrived(self, sid, pub), extra_s)

    def pong(self, number: int) -> None:
        self._send_down(lambda: self.client.ponged(self, number))

    def _send_down(self, happen: Callable[[], None], extra_s: float = 0.0) -> None:
        if not self.there:
            return
        if self.held_down:
            self._waiting_down.append(happen)
            return
        self._down_at = max(self._down_at, self.hub.now() + self.hub.delay(self) + extra_s)
        self.proc.post_at(self._down_at, self._come, happen)

    def _come(self, happen: Callable[[], None]) -> None:
        if self.here:
            happen()

    # --- its troubles -------------------------------------------------------------------

    def hold(self, *, up: bool, down: bool) -> None:
        """Nothing gets through, and nobody is told; in time the ends notice."""
        self.held_up, self.held_down = self.held_up or up, self.held_down or down
        if self.held_down:
            self.proc.post_at(self.hub.now() + self.rng.uniform(*NOTICED_S), self._notice)
        if self.held_up:
            self.hub.proc.post_at(self.hub.now() + self.rng.uniform(*STALE_S), self._find_stale)

    def _notice(self) -> None:
        if self.held_down and self.here:
            self.drop_here()

    def _find_stale(self) -> None:
        if self.held_up or not self.here:
            self.drop_there()

    def let_go(self) -> None:
        """What waited gets through, late, where the connection has lived so long."""
        self.held_up = self.held_down = False
        up, self._waiting_up = self._waiting_up, deque()
        down, self._waiting_down = self._waiting_down, deque()
        for frame in up:
            self.send(frame)
        for happen in down:
            self._send_down(happen)

    def leave_late(self, late_s: float) -> None:
        """The client dials anew, while what it sent last is still under way: it arrives
        ``late_s`` seconds later, after what comes over the next connection."""
        if not self.here:
            return
        waiting, self._waiting_up, self.held_up = self._waiting_up, deque(), False
        self._up_at = max(self._up_at, self.hub.now() + late_s)
        for frame in waiting:
            self.send(frame)
        self.drop_here()

    def break_off(self) -> None:
        """A reset: both ends know at once, what is under way is lost."""
        self.drop_there()
        self.proc.post(self.drop_here)

    def drop_here(self) -> None:
        if self.here:
            self.here = False
            if not self.held_up and self.there:
                at = self.hub.now() + self.hub.delay(self)
                self.hub.proc.post_at(max(at, self._up_at), self.drop_there)
            self.client.lost(self)

    def close_here(self) -> None:
        """The client hangs up: what it sent before still arrives."""
        if self.here:
            self.here = False
            at = self.hub.now() + self.hub.delay(self)
            self.hub.proc.post_at(max(at, self._up_at), self.drop_there)

    def drop_there(self) -> None:
        if self.there:
            self.there = False
            self.hub.forget(self)


class SimClient(Client):
    """nats-py's client on a modelled wire; belongs to the process that makes it."""

    hub: Hub
    """Set by ``seams`` for the length of a story."""

    def __init__(self) -> None:
        super().__init__()
        self.proc = current()
        self._nuid = _Nuid(self.proc)  # type: ignore[assignment]
        self.line: Line | None = None
        self._pings: dict[int, asyncio.Future[None]] = {}
        self._redial: asyncio.Task[None] | None = None
        self._on_error: Callable[[Exception], Awaitable[None]] = _ignore
        self._on_return: Callable[[], Awaitable[None]] = _nothing

    async def connect(  # type: ignore[override]  # what slotbus gives is enough
        self, servers: Any = (), **options: Any
    ) -> None:
        """Dials until it works, as nats-py does."""
        self._on_error = self._error_cb = options["error_cb"]
        self._disconnected_cb = options["disconnected_cb"]
        self._on_return = options["reconnected_cb"]
        self._closed_cb = options["closed_cb"]
        self._max_pending_size = options["pending_size"]
        self._wait_s: float = options["reconnect_time_wait"]
        self._status = Client.CONNECTING
        await self._dial()
        self._status = Client.CONNECTED

    async def _dial(self) -> None:
        while True:
            try:
                self.line = await self.hub.dial(self)
            except (Refused, TimeoutError) as error:
                await self._on_error(error)
                await asyncio.sleep(self._wait_s)
            else:
                return

    @property
    def connected_url(self) -> ParseResult | None:
        return urlparse("nats://simulated:4222")

    # --- what nats-py would write to its socket -----------------------------------------

    async def _send_publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        payload_size: int,
        headers: dict[str, Any] | None,
    ) -> None:
        self.hub.watch.sent(self.proc, subject, bytes(payload))
        self._send(Pub(subject, reply, bytes(payload), dict(headers) if headers else None))

    async def _send_subscribe(self, sub: Subscription) -> None:
        self._send(Sub(sub._id, sub._subject, sub._queue or ""))

    async def _send_unsubscribe(self, sid: int, limit: int = 0) -> None:
        if not limit:
            self._send(Unsub(sid))

    async def _flush_pending(self, force_flush: bool = False) -> None:
        return None

    async def flush(self, timeout: int = 10) -> None:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        number = len(self._pings) + 1
        while number in self._pings:
            number += 1
        pong = self._pings[number] = asyncio.get_running_loop().create_future()
        self._send(Ping(number))
        try:
            await asyncio.wait_for(pong, timeout)
        except TimeoutError:
            raise nats.errors.FlushTimeoutError from None
        finally:
            self._pings.pop(number, None)

    def _send(self, frame: Frame) -> None:
        if self.line is not None:
            self.line.send(frame)

    # --- what comes ---------------------------------------------------------------------

    def arrived(self, line: Line, sid: int, pub: Pub) -> None:
        sub = self._subs.get(sid)
        if sub is None or line is not self.line:
            return
        self.hub.watch.heard(self.proc, pub.subject, pub.data)
        sub._received += 1
        sub._pending_size += len(pub.data)
        headers = dict(pub.headers) if pub.headers else None
        sub._pending_queue.put_nowait(
            Msg(
                _client=self,
                subject=pub.subject,
                reply=pub.reply,
                data=pub.data,
                headers=headers,
                _sid=sid,
            )
        )

    def ponged(self, line: Line, number: int) -> None:
        pong = self._pings.get(number)
        if pong is not None and not pong.done() and line is self.line:
            pong.set_result(None)

    def lost(self, line: Line) -> None:
        """The connection is over, and nats-py dials again."""
        if line is self.line and self.is_connected:
            self.line = None
            self._status = Client.RECONNECTING
            self._redial = asyncio.get_running_loop().create_task(self._come_back())

    async def _come_back(self) -> None:
        if self._disconnected_cb is not None:
            await self._disconnected_cb()
        while not self.is_closed:
            await self._dial()
            for sub in list(self._subs.values()):
                await self._send_subscribe(sub)
            self._status = Client.CONNECTED
            try:
                await self.flush()
            except nats.errors.Error:
                if self._redial is not asyncio.current_task():
                    return  # lost again, and somebody else dials by now
                continue
            await self._tell_back()
            return

    async def _tell_back(self) -> None:
        if self.is_connected:
            await self._on_return()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if self.is_closed:
            return
        self._status = Client.CLOSED
        if self._redial is not None:
            self._redial.cancel()
        if self.line is not None:
            self.line.close_here()
        await asyncio.sleep(0)
        for sub in self._subs.values():
            sub._stop_processing()
        self._subs.clear()
        if do_cbs and self._disconnected_cb is not None:
            await self._disconnected_cb()
        if do_cbs and self._closed_cb is not None:
            await self._closed_cb()
        self._resp_sub_prefix = None


async def _ignore(_error: Exception) -> None:
    return None


async def _nothing() -> None:
    return None


def alive(line: Line) -> bool:
    """Whether anybody is at the client's end."""
    return line.here and line.proc.state is not State.DEAD
