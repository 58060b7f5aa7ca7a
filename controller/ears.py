"""The leader's ears: a connection of its own for what nodes say without end.

What lives here: keeping that connection, from its opening to its end. What may not: what is
heard (``controller.nodetraffic``).

Over one connection everything comes in one row: a burst of heartbeats would stand before the
acknowledgements of the log, the renewals of the lease and every command, and end the lead.
Where more comes than we take, it waits in the server, which at last breaks this connection as a
slow consumer. So the row is measured, and while it is long every node gets a new full term, as
after a break: that we have not heard it yet says nothing about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import nats.errors
import structlog
from nats.aio.client import Client

from events.connection import Access, ConnectionFailed, Hooks, connect, flushed

CLOSE_TIMEOUT_S: Final = 2.0

SIGN_S: Final = 30
"""After so many seconds without a sign another one is asked for."""

RECEIVE_BYTES: Final = 32 * 1024
"""Of the socket's buffer: all that is in it is read in one turn of the loop, and commands wait
for the turn's end. Hundreds of heartbeats are enough for one."""

_log = structlog.get_logger("slotbus.inbox")


class Ears:
    """``run`` is a task of its owner, who begins it again where it raises; ``hear``
    subscribes on a connection. ``missed(reason)``: no node could be heard for a while, or
    ``late_s`` seconds later than it spoke."""

    def __init__(
        self,
        server: str,
        access: Access,
        connect_timeout_s: float,
        *,
        late_s: float,
        hear: Callable[[Client], Awaitable[None]],
        missed: Callable[[str], None],
    ) -> None:
        self._server = server
        self._access = access
        self._connect_timeout_s = connect_timeout_s
        self._late_s = late_s
        self._hear = hear
        self._missed = missed
        self._nc: Client | None = None
        self._sign: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._nc is not None and self._nc.is_connected

    async def until_open(self) -> None:
        """Waits for the first time that nodes can be heard. Raises ConnectionFailed."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._opened.wait()
        except TimeoutError as error:
            raise ConnectionFailed(
                "timeout", "NATS", "a second connection, for what nodes say, could not be opened"
            ) from error

    async def run(self) -> None:
        """Listens until the connection is closed for good. Raises ConnectionFailed,
        nats.errors.Error."""
        closed = asyncio.Event()
        nc = await connect(
            self._server,
            name="slotbus controller, nodes",
            access=self._access,
            hooks=Hooks(reconnected=self._back, closed=closed.set),
            connect_timeout_s=self._connect_timeout_s,
        )
        try:
            await self._hear(nc)
            await flushed(nc)
            self._nc = nc
            self._take_small_bites()
            if self._opened.is_set():
                self._back()
            self._opened.set()
            while not closed.is_set():
                await self._measure(nc, closed)
            _log.warning("the connection for nodes was closed")
        finally:
            self._nc = None
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await nc.close()

    async def _measure(self, nc: Client, closed: asyncio.Event) -> None:
        """Asks the server for a sign that comes behind all that waits in the row."""
        closing = asyncio.create_task(closed.wait(), name="ears closed")
        sign = self._sign = asyncio.create_task(nc.flush(SIGN_S), name="ears measured")
        try:
            done: set[asyncio.Task[Any]] = set()
            while not done:
                done, _ = await asyncio.wait(
                    {closing, sign}, timeout=self._late_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    self._missed("what nodes say is heard late")
            await asyncio.wait({closing}, timeout=self._late_s)
        finally:
            sign.cancel()
            closing.cancel()
            await asyncio.gather(sign, closing, return_exceptions=True)

    def _take_small_bites(self) -> None:
        writer = getattr(self._nc and self._nc._transport, "_io_writer", None)
        found = writer.get_extra_info("socket") if writer is not None else None
        if found is not None:
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)

    def _back(self) -> None:
        if self._sign is not None:
            self._sign.cancel()  # the row in which it stood is gone
        self._take_small_bites()
        self._missed("the connection for nodes was lost")
