"""The inbox: what waits for the loop, in the order of receipt.

What lives here: entries, their bounded queue, and those who wait for a command's outcome.
What may not: decoding, deciding.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

from msgspec import Struct

from events.errors import CommandTimeout, Overloaded, SlotbusError
from schedulers.decide.messages import Inbound, Reply

Answer: TypeAlias = "Callable[[Reply | SlotbusError], None]"


class Entry(Struct, frozen=True):
    """A message as it was received: when, with a token for ids, and whom to answer."""

    message: Inbound
    at: datetime
    token: str
    answer: Answer | None = None


class Inbox:
    """A queue of at most ``limit`` messages from outside. What slotbus itself says
    (outcomes, timers) is always taken: it is bounded by the effects under way. ``entries``
    are for looking at."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.entries: deque[Entry] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, entry: Entry, *, inner: bool) -> None:
        """Raises Overloaded when it is full."""
        if not inner and len(self.entries) >= self._limit:
            raise Overloaded(
                f"{self._limit} messages wait already: try again a little later",
                limit=self._limit,
            )
        self.entries.append(entry)
        self._filled.set()

    async def take(self, most: int) -> list[Entry]:
        """Waits for at least one entry; all that wait, up to ``most``."""
        await self._filled.wait()
        taken = [self.entries.popleft() for _ in range(min(most, len(self.entries)))]
        if not self.entries:
            self._filled.clear()
        return taken

    def put_back(self, entries: list[Entry]) -> None:
        """Entries that were taken and not looked at are the next again."""
        if entries:
            self.entries.extendleft(reversed(entries))
            self._filled.set()

    def drain(self) -> list[Entry]:
        """Takes what is left."""
        left = list(self.entries)
        self.entries.clear()
        self._filled.clear()
        return left


class Waiters:
    """Who waits for the outcome of which command, and until when."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Answer, asyncio.TimerHandle]] = {}

    def add(self, command_id: str, answer: Answer, wait_s: float) -> None:
        """After ``wait_s`` seconds the answer is ``timeout``, while the work goes on."""
        timer = asyncio.get_running_loop().call_later(wait_s, self._late, command_id, answer)
        self._waiting.setdefault(command_id, {})[answer] = timer

    def settle(self, command_id: str, outcome: Reply | SlotbusError) -> None:
        """Answers all who wait for this command."""
        for answer, timer in self._waiting.pop(command_id, {}).items():
            timer.cancel()
            answer(outcome)

    def close(self, error: SlotbusError) -> None:
        """Answers everybody with an error."""
        for command_id in list(self._waiting):
            self.settle(command_id, error)

    def _late(self, command_id: str, answer: Answer) -> None:
        waiting = self._waiting.get(command_id, {})
        if waiting.pop(answer, None) is not None:
            if not waiting:
                del self._waiting[command_id]
            answer(
                CommandTimeout(
                    f"command {command_id} is not done yet; the work goes on: send it again "
                    "with this command_id to wait on",
                    command_id=command_id,
                )
            )
