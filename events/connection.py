"""The connection to NATS, as every part of slotbus makes it.

What lives here: a first connect that is bounded and says why it failed, endless reconnects
afterwards, and what is worth a line of log about the link. What may not: subjects,
messages and anything that is done over the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from events.access import Access as Access
from events.access import AccessUnusable, client_options, has_expired
from events.errors import SlotbusError
from events.failures import ADVICE, NoTls, Why, classify

CONNECT_TIMEOUT_S: Final = 5.0
RECONNECT_WAIT_S: Final = 0.5
"""Between two attempts at the same server, give or take half of it."""
PING_INTERVAL_S: Final = 10
"""A silent peer is noticed after three of these; nats-py's own default takes six minutes."""

FLUSH_TIMEOUT_S: Final = 5

_log = structlog.get_logger("slotbus.connection")


class ConnectionFailed(SlotbusError):
    """The first connect failed; ``why`` says how, ``server`` where (without passwords)."""

    code: ClassVar[str] = "unreachable"
    status: ClassVar[int] = 503
    retriable: ClassVar[bool] = True

    def __init__(self, why: Why, server: str, cause: str) -> None:
        super().__init__(f"{server}: {ADVICE[why]} ({cause})", why=why, server=server)
        self.why: Why = why
        self.cause = cause


def _nothing() -> None:
    return None


def _ignore(_error: Exception) -> None:
    return None


@dataclass(frozen=True)
class Hooks:
    """What a part wants to hear about its link; called in the loop, must not block.

    ``denied``: the server refused a publish or a subscription (what waits for an answer
    will only time out). ``closed``: nats-py has given up for good, which it does when the
    server ends the connection with an error; connect again.
    """

    error: Callable[[Exception], None] = _ignore
    denied: Callable[[Exception], None] = _ignore
    disconnected: Callable[[], None] = _nothing
    reconnected: Callable[[], None] = _nothing
    closed: Callable[[], None] = _nothing


class _Swift(Client):
    """A client that reads headers in a third of the time.

    nats-py (2.16) looks at each character of a header's name, which takes half of the time in
    which a log is read; this gives the same.
    """

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in raw.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            if not colon or not name.isascii():
                continue
            key = name.strip().decode()
            if not key or key.split() == [key]:  # no white space in it
                found[key] = value.strip().decode("utf-8", "replace")
        return found


class _TlsOnly(_Swift):
    """A client that was told to use TLS, and so sends nothing to a server without.

    nats-py (2.16) would go on in the clear, credentials and all; it has no option against
    that, and looks at the server's greeting in this one place before it says anything.
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not info.get("tls_required"):
            raise NoTls
        await super()._process_info(info, initial_connection)


@dataclass
class _Link:
    """The callbacks of one connection, and what they saw before it was made."""

    name: str
    hooks: Hooks
    servers: int
    nc: Client
    made: bool = False
    down: bool = False
    failures: list[Exception] = field(default_factory=list)
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_error(self, error: Exception) -> None:
        if not self.made:
            self.failures.append(error)
            if len(self.failures) >= self.servers:
                self.failed.set()
            return
        if "permissions violation" in str(error).lower():
            _log.warning("permission denied by the NATS server", name=self.name, cause=str(error))
            self.hooks.denied(error)
        elif not self.down:
            _log.warning("NATS error", name=self.name, cause=str(error) or repr(error))
        self.hooks.error(error)

    async def on_disconnected(self) -> None:
        if not self.made or self.nc.is_closed:
            return
        self.down = True
        _log.warning("NATS connection lost, reconnecting", name=self.name)
        self.hooks.disconnected()
        # nats-py waits for this callback before its first attempt: a whole fleet that lost
        # the same server must not come back in the same millisecond.
        await asyncio.sleep(random.uniform(0, RECONNECT_WAIT_S / 2))

    async def on_reconnected(self) -> None:
        self.down = False
        _log.info("NATS connection is back", name=self.name)
        self.hooks.reconnected()

    async def on_closed(self) -> None:
        if self.made:
            self.hooks.closed()


async def connect(
    server: str,
    *,
    name: str,
    access: Access | None = None,
    hooks: Hooks | None = None,
    pending_size: int = 0,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ping_interval_s: int = PING_INTERVAL_S,
) -> Client:
    """Connects to ``server``, one address or several joined by commas.

    Fails when every address was tried once or ``connect_timeout_s`` seconds are over;
    once connected, reconnects forever. ``pending_size`` in bytes: how much may wait for a
    lost connection to come back; 0 means that what can't be sent now fails now (nats-py
    raises OutboundBufferLimitError).

    Raises ConnectionFailed.
    """
    servers = [part.strip() for part in server.split(",") if part.strip()]
    shown = ",".join(_without_password(part) for part in servers) or "(no address)"
    if not servers:
        raise ConnectionFailed("setup", shown, "give an address such as nats://127.0.0.1:4222")
    access = access or Access()
    client = _TlsOnly() if access.wants_tls else _Swift()
    link = _Link(name=name, hooks=hooks or Hooks(), servers=len(servers), nc=client)
    wait = random.uniform(RECONNECT_WAIT_S / 2, RECONNECT_WAIT_S * 1.5)
    try:
        options = client_options(access)
    except AccessUnusable as error:
        raise ConnectionFailed("setup", shown, str(error)) from error
    connecting = asyncio.create_task(
        link.nc.connect(
            servers,
            name=name,
            error_cb=link.on_error,
            disconnected_cb=link.on_disconnected,
            reconnected_cb=link.on_reconnected,
            closed_cb=link.on_closed,
            pending_size=pending_size,
            ping_interval=ping_interval_s,
            max_reconnect_attempts=-1,
            reconnect_time_wait=wait,  # type: ignore[arg-type]  # seconds, a float works
            **options,
        ),
        name=f"connect {name}",
    )
    try:
        await _first_connect(link, connecting, connect_timeout_s, shown)
    except ConnectionFailed as error:
        if error.why == "auth" and has_expired(access, time.time()):
            raise ConnectionFailed("expired", shown, error.cause) from error
        raise
    link.made = True
    return link.nc


async def flushed(nc: Client, timeout_s: int = FLUSH_TIMEOUT_S) -> None:
    """Waits until the server has taken all that was sent or subscribed so far.

    Twice, since nats-py (2.16) writes the PING of a flush ahead of what is still in its own
    buffer: one flush says nothing about the subscription made right before it. Raises
    nats.errors.Error.
    """
    await nc.flush(timeout_s)
    await nc.flush(timeout_s)


async def _first_connect(
    link: _Link, connecting: asyncio.Task[None], timeout_s: float, shown: str
) -> None:
    """Waits for ``connecting``, for a failure of every address, or for the time to end."""
    failing = asyncio.create_task(link.failed.wait(), name="connect failed")
    done: set[asyncio.Task[Any]] = set()
    try:
        done, _ = await asyncio.wait(
            {connecting, failing}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        failing.cancel()
        if connecting not in done:
            connecting.cancel()
        results = await asyncio.gather(connecting, failing, return_exceptions=True)
        if not (connecting in done and results[0] is None):
            # AssertionError: nats-py's close, where its connect never came to its queues
            with contextlib.suppress(nats.errors.Error, OSError, AssertionError):
                await link.nc.close()
    outcome = results[0] if connecting in done else None
    if connecting in done and outcome is None:
        return
    causes = [*link.failures]
    if isinstance(outcome, Exception):
        causes.append(outcome)
    why = classify(causes[-1]) if causes else "timeout"
    if why in ("other", "hung_up") and link.nc._server_info.get("auth_required"):
        why = "auth"  # the server hangs up so fast that its reason is often lost
    cause = str(causes[-1]) or repr(causes[-1]) if causes else f"waited {timeout_s:g} s"
    raise ConnectionFailed(why, shown, cause) from (causes[-1] if causes else None)


async def request(
    nc: Client,
    subject: str,
    body: bytes,
    timeout_s: float,
    headers: dict[str, str] | None = None,
) -> Msg:
    """``nc.request``, from which a task can be cancelled.

    Before Python 3.12, ``asyncio.wait_for`` inside nats-py swallows a cancellation that
    arrives together with the answer; a loop around it would then never end.
    """
    task = asyncio.current_task()
    cancelled = task.cancelling() if task is not None else 0
    try:
        return await nc.request(subject, body, timeout=timeout_s, headers=headers)
    finally:  # an answer may be an error, too: that nobody listens
        if task is not None and task.cancelling() > cancelled:
            raise asyncio.CancelledError


def _without_password(address: str) -> str:
    """The address without what stands before its ``@``."""
    scheme, found, rest = address.rpartition("://")
    return f"{scheme}{found}{rest.rpartition('@')[2]}"
