"""The inbox: what waits for the loop, and what of it is next.

What lives here: entries, their bounded queue, and those who wait for a command's outcome.
What may not: decoding, deciding.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from events.errors import CommandTimeout, Overloaded, SlotbusError
from events.traffic import HeartbeatNodeReq, RegisterNodeReq
from schedulers.decide.messages import (
    Grace,
    Inbound,
    InventoryFailed,
    InventoryTaken,
    Reply,
    Tick,
)

CROWD_SHARE: Final = 4
"""One of so many places in a round is the crowd's."""

_CROWD: Final = (HeartbeatNodeReq, RegisterNodeReq, InventoryTaken, InventoryFailed, Tick)
"""Each registration may lead to an inventory. A timer is behind the heartbeats that were there
before it."""

Answer: TypeAlias = "Callable[[Reply | SlotbusError], None]"


class Entry(Struct, frozen=True):
    """A message as it was received: when, with a token for ids, and whom to answer."""

    message: Inbound
    at: datetime
    token: str
    answer: Answer | None = None


class _Waiting(Struct, frozen=True):
    """``number``: of its receipt, over both lanes."""

    number: int
    entry: Entry


class Inbox:
    """A queue in two lanes, each of at most ``limit`` messages from outside. What slotbus
    itself says (outcomes, timers) is always taken: it is bounded by the effects under way.

    While one round of the loop takes all that waits, the order is that of receipt. Where
    more waits, commands, queries, outcomes and ends of workers overtake what nodes say
    without end (registrations, heartbeats, inventories) and the timers behind it. For them
    time stands still meanwhile: they are decided as of the oldest message that they overtook,
    so that no node is called silent whose heartbeat waits here.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._next: deque[Entry] = deque()
        """Taken once, and put back."""
        self._first: deque[_Waiting] = deque()
        self._crowd: deque[_Waiting] = deque()
        self._count = 0
        self._now = datetime.min.replace(tzinfo=UTC)
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._next) + len(self._first) + len(self._crowd)

    def put(self, entry: Entry, *, inner: bool) -> None:
        """Raises Overloaded when its lane is full."""
        lane = self._crowd if isinstance(entry.message, _CROWD) else self._first
        if not inner and len(lane) >= self._limit:
            raise Overloaded(
                f"{self._limit} messages wait already: try again a little later",
                limit=self._limit,
            )
        self._count += 1
        lane.append(_Waiting(self._count, entry))
        self._filled.set()

    async def take(self, most: int) -> list[Entry]:
        """Waits for at least one entry; all that wait, up to ``most``. Everybody else has a
        turn before, also where much waits."""
        await asyncio.sleep(0)
        await self._filled.wait()
        taken = [self._next.popleft() for _ in range(min(most, len(self._next)))]
        room = most - len(taken)
        if len(self._first) + len(self._crowd) <= room:
            taken += self._in_order()
        else:
            taken += self._overtaking(room)
        if not len(self):
            self._filled.clear()
        return taken

    def _in_order(self) -> list[Entry]:
        waiting = sorted((*self._first, *self._crowd), key=lambda one: one.number)
        self._first.clear()
        self._crowd.clear()
        return [self._dated(one.entry, one.entry.at) for one in waiting]

    def _overtaking(self, room: int) -> list[Entry]:
        """A part of the room is for the crowd, whatever else comes."""
        kept = min(len(self._crowd), room // CROWD_SHARE)
        taken = []
        for _ in range(min(len(self._first), room - kept)):
            entry = self._first.popleft().entry
            # A new term for all begins when it does, not earlier.
            overtakes = self._crowd and not isinstance(entry.message, Grace)
            oldest = self._crowd[0].entry.at if overtakes else entry.at
            taken.append(self._dated(entry, min(entry.at, oldest)))
        for _ in range(min(len(self._crowd), room - len(taken))):
            entry = self._crowd.popleft().entry
            taken.append(self._dated(entry, entry.at))
        return taken

    def _dated(self, entry: Entry, at: datetime) -> Entry:
        """Decided as of then, but never before what was taken earlier."""
        self._now = max(self._now, at)
        return entry if entry.at == self._now else replace(entry, at=self._now)

    def put_back(self, entries: list[Entry]) -> None:
        """Entries that were taken and not looked at are the next again."""
        if entries:
            self._next.extendleft(reversed(entries))
            self._filled.set()

    def drain(self) -> list[Entry]:
        """Takes what is left."""
        left = [*self._next, *self._in_order()]
        self._next.clear()
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
