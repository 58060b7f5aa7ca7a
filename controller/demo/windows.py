"""Tumbling windows over event time: the arithmetic of the example pipeline.

What lives here: readings in, parts of windows out. What may not: asyncio, NATS, clocks; time
is only what the readings say.

A reading belongs to the window of its sensor that its own time falls into. A window closes
when the watermark (the newest time seen, less the allowed lateness) passes its end. A reading
that is later than that is not dropped: it makes a further *part* of its window. Parts of one
window add up (`merge`), so the slots of a job may each hold a share of the same window.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

MAX_OPEN_PARTS = 10_000
"""Beyond this all are closed early, so that wild sensor names can't fill the memory."""


class Reading(Struct, kw_only=True, frozen=True):
    """One measurement. `seq` counts what was sent, from 1; `at_ms` is when it was measured, in
    milliseconds since 1970."""

    seq: int
    sensor: str
    at_ms: int
    celsius: float


class WindowKey(Struct, frozen=True, order=True):
    """Which window of which sensor; windows of one job all have the same length."""

    start_ms: int
    sensor: str


class Part(Struct, kw_only=True, frozen=True):
    """What is known of one window of one sensor: [start_ms, end_ms)."""

    sensor: str
    start_ms: int
    end_ms: int
    count: int
    total: float
    low: float
    high: float
    first_seq: int
    last_seq: int

    @property
    def key(self) -> WindowKey:
        return WindowKey(self.start_ms, self.sensor)

    @property
    def mean(self) -> float:
        return self.total / self.count


def merge(one: Part, other: Part) -> Part:
    """Both parts as one. Raises ValueError if they are not of the same window."""
    if one.key != other.key or one.end_ms != other.end_ms:
        raise ValueError(f"{one.key} and {other.key} are not parts of one window")
    return Part(
        sensor=one.sensor,
        start_ms=one.start_ms,
        end_ms=one.end_ms,
        count=one.count + other.count,
        total=one.total + other.total,
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        first_seq=min(one.first_seq, other.first_seq),
        last_seq=max(one.last_seq, other.last_seq),
    )


def merge_all(parts: Iterable[Part]) -> dict[WindowKey, Part]:
    """The whole windows that these parts make up."""
    whole: dict[WindowKey, Part] = {}
    for part in parts:
        known = whole.get(part.key)
        whole[part.key] = part if known is None else merge(known, part)
    return whole


class TumblingWindows:
    """The open windows of one slot. All times in milliseconds."""

    def __init__(self, size_ms: int, lateness_ms: int = 0, max_open: int = MAX_OPEN_PARTS) -> None:
        if size_ms < 1 or lateness_ms < 0 or max_open < 1:
            raise ValueError("a window lasts at least 1 ms, and nothing can be late by less than 0")
        self._size_ms = size_ms
        self._lateness_ms = lateness_ms
        self._max_open = max_open
        self._open: dict[WindowKey, Part] = {}
        self._newest_ms: int | None = None
        self._first_end_ms: int | None = None  # of the open parts: most readings close nothing

    @property
    def open_parts(self) -> int:
        return len(self._open)

    def add(self, reading: Reading) -> list[Part]:
        """Takes a reading in; returns the parts that close by it, oldest first."""
        part = self._part_of(reading)
        known = self._open.get(part.key)
        self._open[part.key] = part if known is None else merge(known, part)
        if self._newest_ms is None or reading.at_ms > self._newest_ms:
            self._newest_ms = reading.at_ms
        if self._first_end_ms is None or part.end_ms < self._first_end_ms:
            self._first_end_ms = part.end_ms
        if len(self._open) > self._max_open:
            return self.flush()
        watermark = self._newest_ms - self._lateness_ms
        if self._first_end_ms > watermark:
            return []
        return self._close(key for key, part in self._open.items() if part.end_ms <= watermark)

    def flush(self) -> list[Part]:
        """Closes everything, oldest first: the input paused or ends."""
        return self._close(self._open)

    def _part_of(self, reading: Reading) -> Part:
        start = reading.at_ms - reading.at_ms % self._size_ms
        return Part(
            sensor=reading.sensor,
            start_ms=start,
            end_ms=start + self._size_ms,
            count=1,
            total=reading.celsius,
            low=reading.celsius,
            high=reading.celsius,
            first_seq=reading.seq,
            last_seq=reading.seq,
        )

    def _close(self, keys: Iterable[WindowKey]) -> list[Part]:
        closed = [self._open.pop(key) for key in sorted(keys)]
        self._first_end_ms = min((part.end_ms for part in self._open.values()), default=None)
        return closed
