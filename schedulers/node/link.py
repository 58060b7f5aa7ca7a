"""The agent's link to NATS: made again however it ends, and silence as one error.

What lives here: connecting, the one subscription for orders, requests and publishes. What
may not: what the messages say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from events.connection import Access, ConnectionFailed, Hooks, connect, request
from events.errors import SlotbusError
from schedulers.backoff import Backoff
from schedulers.node.stats import AgentStats

RETRY_FIRST_S: Final = 0.2
RETRY_MOST_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 3.0

_log = structlog.get_logger("slotbus.agent")


class Unanswered(SlotbusError):
    """No leader answered: not connected, nobody listens, or not in time."""

    code: ClassVar[str] = "timeout"
    status: ClassVar[int] = 503
    retriable: ClassVar[bool] = True


class NotConnected(Unanswered):
    """There is no connection to NATS at the moment, which the link itself has logged."""


class Link:
    """``run`` is a task of its owner. ``on_up`` is called in the loop whenever messages
    can flow (again)."""

    def __init__(
        self,
        server: str,
        *,
        name: str,
        access: Access,
        connect_timeout_s: float,
        subject: str,
        receive: Callable[[Msg], Awaitable[None]],
        on_up: Callable[[], None],
        stats: AgentStats,
    ) -> None:
        self._server = server
        self._name = name
        self._access = access
        self._connect_timeout_s = connect_timeout_s
        self._subject = subject
        self._receive = receive
        self._on_up = on_up
        self._stats = stats
        self._nc: Client | None = None
        self._orders: Subscription | None = None
        self._why = ""

    async def run(self) -> None:
        """Keeps a connection, until cancelled."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while True:
            try:
                await self._hold(backoff)
            except ConnectionFailed as error:
                self._say(error.message)
            except nats.errors.Error as error:
                self._say(str(error) or repr(error))
            await asyncio.sleep(backoff.next())

    async def deafen(self) -> None:
        """Takes no more orders; what was begun can still be answered."""
        if self._orders is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._orders.unsubscribe()

    async def ask(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        """The body of the answer. Raises Unanswered."""
        try:
            return (await request(self._client(), subject, body, timeout_s)).data
        except nats.errors.NoRespondersError as error:
            raise Unanswered("no controller listens") from error
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Unanswered(str(error) or repr(error)) from error

    async def publish(self, subject: str, body: bytes) -> None:
        """Raises Unanswered where it can't be sent now."""
        try:
            await self._client().publish(subject, body)
        except (nats.errors.Error, OSError) as error:
            raise Unanswered(str(error) or repr(error)) from error

    def _client(self) -> Client:
        if self._nc is None or not self._nc.is_connected:
            raise NotConnected("not connected to NATS")
        return self._nc

    async def _hold(self, backoff: Backoff) -> None:
        """One connection, from its first connect until nats-py gives it up."""
        closed = asyncio.Event()
        nc = await connect(
            self._server,
            name=self._name,
            access=self._access,
            connect_timeout_s=self._connect_timeout_s,
            hooks=Hooks(disconnected=self._down, reconnected=self._up, closed=closed.set),
        )
        try:
            self._orders = await nc.subscribe(self._subject, cb=self._receive)
            self._nc = nc
            backoff.reset()
            self._why = ""
            _log.info("connected to NATS", server=nc.connected_url and nc.connected_url.hostname)
            self._up()
            await closed.wait()
            self._say("the server ended the connection")
        finally:
            self._nc = self._orders = None
            self._down()
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await nc.close()

    def _up(self) -> None:
        self._stats.connected = True
        self._on_up()

    def _down(self) -> None:
        self._stats.connected = False

    def _say(self, why: str) -> None:
        """One line for each new reason, not one for each attempt."""
        if why != self._why:
            self._why = why
            _log.warning("no connection to NATS, trying again and again", cause=why)
