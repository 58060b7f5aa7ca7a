"""An engine's door without an engine: tests hold each answer in their own hands.

What lives here: ``HeldEngine``, which keeps what it is offered. What may not: decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from events.errors import SlotbusError
from schedulers.decide.messages import Inbound, Reply
from tests.support.waiting import DEADLINE_S

Answer = Callable[[Reply | SlotbusError], None]


class Offered(Struct, frozen=True):
    message: Inbound
    answer: Answer | None


class HeldEngine:
    """Takes offers until told otherwise. ``refuse``: raised by the next offers; ``reply``:
    answers every offer at once."""

    def __init__(self) -> None:
        self.refuse: Exception | None = None
        self.reply: Callable[[Inbound], Reply | SlotbusError] | None = None
        self.waiting = 0
        self.offers: list[Offered] = []
        self._came = asyncio.Event()

    def __len__(self) -> int:
        return self.waiting

    def offer(self, message: Inbound, answer: Answer | None = None) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.offers.append(Offered(message, answer))
        self._came.set()
        if self.reply is not None and answer is not None:
            answer(self.reply(message))

    async def next(self, number: int = 1) -> Offered:
        """The ``number``-th offer from the start, once it has come."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.offers) < number:
                self._came.clear()
                await self._came.wait()
        return self.offers[number - 1]
