"""How hard the API server is pressed: requests a second, at once, and not before it said so.

What lives here: ``Pacer``. What may not: the requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

MOST_HOLD_OFF_S: Final = 60.0
"""However long a server asks for."""


class Pacer:
    """Turns, first come first served: ``burst`` of them at once, then ``rate`` a second, and
    never more than ``at_once`` under way."""

    def __init__(self, rate: float, burst: int, at_once: int) -> None:
        self._gap_s = 1.0 / rate
        self._credit_s = burst * self._gap_s
        self._under_way = asyncio.Semaphore(at_once)
        self._next_at = 0.0
        self._not_before = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Waits for a turn and holds it for a block of code."""
        async with self._under_way:
            loop = asyncio.get_running_loop()
            self._next_at = max(self._next_at, loop.time() - self._credit_s) + self._gap_s
            await asyncio.sleep(max(0.0, self._next_at - loop.time()))
            while (wait_s := self._not_before - loop.time()) > 0:  # noqa: ASYNC110  it may grow
                await asyncio.sleep(wait_s)
            yield

    def hold_off(self, seconds: float) -> None:
        """The server has asked everybody to wait."""
        at = asyncio.get_running_loop().time() + min(seconds, MOST_HOLD_OFF_S)
        # Not all at the same moment.
        self._not_before = max(self._not_before, at + random.uniform(0, 0.1 * seconds))
