"""The inbox: all that one leadership listens to, opened and closed as one.

What lives here: the order in which listening begins and ends. What may not: what is
listened to (``controller.services``, ``controller.nodetraffic``), and decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client

from controller.nodetraffic import NodeTraffic
from controller.outbox import InboxStats, Offers, Outbox
from controller.services import MAX_OPEN, Services
from events.connection import flushed
from events.subjects import Subjects

SEND_OUT_S: Final = 1.0
"""How long the last answers may take to be handed to the connection."""

STOP_LISTENING_S: Final = 2.0
"""For the round trips of ending subscriptions; more only where there is no connection."""

_log = structlog.get_logger("slotbus.inbox")


def _unmeasured(_kind: str, _seconds: float) -> None:
    return None


class NatsInbox:
    """One leadership's ears and mouth. Open it once the engine leads; ``close`` it, or
    ``cut`` it where the lead is lost, before anything else of the leadership.

    ``may_answer()``: whether the lease still holds, asked before each answer.
    ``latency(kind, seconds)`` is told how long each command and query took. ``with_nodes``
    False: somebody else has ``hear_nodes`` listen, on another connection.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        engine: Offers,
        *,
        epoch: int,
        may_answer: Callable[[], bool],
        stats: InboxStats | None = None,
        latency: Callable[[str, float], None] = _unmeasured,
        version: str = "0.0.0",
        max_open: int = MAX_OPEN,
        with_nodes: bool = True,
    ) -> None:
        self.stats = stats or InboxStats()
        self._nc = nc
        self._with_nodes = with_nodes
        self._cut = False
        self._outbox = Outbox(
            may_answer=lambda: not self._cut and may_answer(),
            max_payload=lambda: nc.max_payload,
            stats=self.stats,
        )
        self._nodes = NodeTraffic(nc, subjects, engine, self._outbox, self.stats)
        self._services = Services(
            nc,
            subjects,
            engine,
            self._outbox,
            self.stats,
            epoch=epoch,
            version=version,
            latency=latency,
            max_open=max_open,
        )

    async def open(self) -> None:
        """Listens to nodes first, then to clients. Raises nats.errors.Error."""
        self._outbox.open()
        await self._nodes.open()
        if self._with_nodes:
            await self._nodes.hear(self._nc)
        await self._services.open()
        await flushed(self._nc)

    async def hear_nodes(self, nc: Client) -> None:
        """Listens to registrations and heartbeats on a connection of their own, before
        ``open`` or after. Raises nats.errors.Error."""
        await self._nodes.hear(nc)

    async def settle(self, grace_s: float) -> None:
        """Serves on, until what is under way now has ended, for ``grace_s`` seconds."""
        await self._services.settle(grace_s)

    async def finish(self, grace_s: float) -> None:
        """Takes no more commands, lets what is under way end for ``grace_s`` seconds, and
        answers everybody: nobody who has asked is left without an answer."""
        await self._services.finish(grace_s)
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(STOP_LISTENING_S):
                await self._services.stop_listening()
        await self._outbox.until_empty(SEND_OUT_S)

    async def close(self, grace_s: float) -> None:
        """``finish``, and stops listening."""
        await self.finish(grace_s)
        await self.cut()

    async def cut(self) -> None:
        """Nothing goes out from here on; stops listening."""
        self._cut = True
        await self._outbox.close()
        for part in (self._services, self._nodes):
            try:
                async with asyncio.timeout(STOP_LISTENING_S):
                    await part.close()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                # Without a connection there is nothing to stop listening to.
                _log.info("connection gone while closing", cause=str(error) or repr(error))
