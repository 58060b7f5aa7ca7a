"""The controller's time: never before what the log has seen, never back.

What lives here: the clock port and its one real implementation. What may not: time-outs
and sleeping (the loop's).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The controller's time, in UTC; never goes back."""
        ...

    def not_before(self, at: datetime) -> None:
        """From here on ``now`` is at least ``at``."""
        ...


class MonotonicClock:
    """now = max(wall clock at start, last time in the log) + monotonic progress.

    ``monotonic`` in seconds, as ``loop.time``; so a step of the machine's clock changes
    nothing, and tests can let time pass at will.
    """

    def __init__(self, monotonic: Callable[[], float], wall: datetime | None = None) -> None:
        self._monotonic = monotonic
        self._base = wall or datetime.now(UTC)
        self._since = monotonic()

    def now(self) -> datetime:
        return self._base + timedelta(seconds=self._monotonic() - self._since)

    def not_before(self, at: datetime) -> None:
        behind = at - self.now()
        if behind > timedelta(0):
            self._base += behind
