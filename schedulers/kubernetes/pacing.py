"""How hard the API server is pressed: requests a second, at once, not before it said so, and
one by one while it does not answer.

What lives here: ``Pacer``. What may not: the requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

from msgspec import Struct

from schedulers.backoff import Backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Between two requests to a server that does not answer."""

JUST_S: Final = 1.0
"""Two requests may be under way while a server comes back, and the one that fails end last."""

MOST_HOLD_OFF_S: Final = 60.0
"""However long a server asks for."""


Brake = Literal["at_once", "rate", "server"]
"""What a request waited for: others under way, our own rate, or the server, which had asked for
it or was away."""


class Waits(Struct):
    """How often there was a wait, and for how many seconds in all."""

    times: int = 0
    seconds: float = 0.0


class Pacer:
    """Turns, first come first served: ``burst`` of them at once, then ``rate`` a second, and
    never more than ``at_once`` under way. While the server is ``away``, one after the other
    with growing pauses, however many want to know whether it is back."""

    def __init__(self, rate: float, burst: int, at_once: int) -> None:
        self.waits: dict[Brake, Waits] = {"at_once": Waits(), "rate": Waits(), "server": Waits()}
        self._gap_s = 1.0 / rate
        self._credit_s = burst * self._gap_s
        self._under_way = asyncio.Semaphore(at_once)
        self._next_at = 0.0
        self._not_before = 0.0
        self.away = ""
        """Why the last request had no answer; "" where it had one."""

        self._away_until = 0.0
        self._back_at = -JUST_S
        self._back = asyncio.Event()
        self._probe = asyncio.Lock()
        self._pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Waits for a turn and holds it for a block of code."""
        loop = asyncio.get_running_loop()
        busy, began = self._under_way.locked(), loop.time()
        async with self._under_way:
            if busy:
                self._waited("at_once", loop.time() - began)
            self._next_at = max(self._next_at, loop.time() - self._credit_s) + self._gap_s
            wait_s = self._next_at - loop.time()
            if wait_s > 0:
                self._waited("rate", wait_s)
                await asyncio.sleep(wait_s)
            await self._held_off()
            if not self.away:
                yield
                return
            async with self._probe:
                await self._held_off()
                yield

    async def _held_off(self) -> None:
        loop = asyncio.get_running_loop()
        while (wait_s := max(self._not_before, self._away_until) - loop.time()) > 0:
            self._waited("server", wait_s)
            if self._not_before >= self._away_until:
                await asyncio.sleep(wait_s)
                continue
            await self.until_back(wait_s)

    async def until_back(self, seconds: float) -> None:
        """Waits so long, or until the server has answered anybody; for those whose request it
        has left unanswered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._back.wait()

    def was_away(self) -> bool:
        """Whether the server is away, or was so a moment ago: what failed just now may have
        failed for that."""
        return bool(self.away) or asyncio.get_running_loop().time() - self._back_at < JUST_S

    def unanswered(self, why: str) -> None:
        """A request had no answer: others had better wait."""
        self.away = why
        self._back.clear()
        self._away_until = asyncio.get_running_loop().time() + self._pauses.next()

    def answered(self) -> None:
        """The server is there. What waited for it goes on."""
        if self.away:
            self.away, self._away_until = "", 0.0
            self._back_at = asyncio.get_running_loop().time()
            self._pauses.reset()
            self._back.set()

    def _waited(self, brake: Brake, seconds: float) -> None:
        waits = self.waits[brake]
        waits.times += 1
        waits.seconds += seconds

    def hold_off(self, seconds: float) -> None:
        """The server has asked everybody to wait."""
        hold_s = min(seconds, MOST_HOLD_OFF_S)
        # Not all at the same moment.
        at = asyncio.get_running_loop().time() + hold_s * random.uniform(1.0, 1.1)
        self._not_before = max(self._not_before, at)
