"""An event loop in which time passes only when there is nothing else to do.

What lives here: the loop. What may not: anything about slotbus.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Final

LONGEST_WAIT_S: Final = 10.0
"""Real seconds that something outside (a thread) may take while no timer is set."""


class Stuck(RuntimeError):
    """Nothing is due and nothing comes: what is awaited will never happen."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time()`` begins at 0 and jumps to the next timer; a day passes in no time."""

    def __init__(self) -> None:
        self._passed = 0.0
        super().__init__(_Hurried(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._passed

    def jump(self, seconds: float) -> None:
        """So many seconds are over."""
        self._passed += seconds


class _Hurried(selectors.DefaultSelector):
    """Does not wait for what it can skip."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(LONGEST_WAIT_S)
            if not events:
                raise Stuck("nothing is due and nothing comes: what is awaited never happens")
            return events
        events = super().select(0)
        if not events and timeout > 0:
            self._loop.jump(timeout)
        return events
