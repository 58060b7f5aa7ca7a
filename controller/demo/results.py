"""The pipeline's results as they come: shown window by window, and checked against the feed.

What lives here: collecting results and the two sums that are made of them. What may not:
starting and stopping anything.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from controller.demo.feeder import Feeder
from controller.demo.pipeline import Result
from controller.demo.windows import Part, merge_all

SHOWN: Final = ("outdoor", "milk_tank", "boiler")
"""Of six sensors, those whose means fit on a line."""
SETTLED_WINDOWS: Final = 2
"""A window is shown once results of one so many windows later have come."""


class Share(Struct, frozen=True, order=True):
    """One slot of one worker."""

    worker_id: str
    slot: int


class Coverage(Struct, frozen=True):
    """What a run's results say about the readings: the first and the last that were counted,
    and how many of those between. `wrong` names a window that is not as it should be."""

    first_seq: int
    last_seq: int
    counted: int
    wrong: str

    @property
    def missing(self) -> int:
        return self.last_seq - self.first_seq + 1 - self.counted


class Results:
    """All results so far. `show` is called with a line for each window that is over."""

    def __init__(self, window_ms: int, show: Callable[[str], None]) -> None:
        self.all: list[Result] = []
        self._window_ms = window_ms
        self._show = show
        self._came = asyncio.Event()
        self._shown_to_ms = 0

    async def on_message(self, message: Msg) -> None:
        """The NATS subscription's callback."""
        result = msgspec.json.decode(message.data, type=Result)
        self.all.append(result)
        self._came.set()
        self._show_until(result.part.start_ms - SETTLED_WINDOWS * self._window_ms)

    def of_run(self, run_id: int) -> list[Result]:
        return [result for result in self.all if result.run_id == run_id]

    def shares(self, run_id: int) -> set[Share]:
        """Which slots of a run have published."""
        return {Share(result.worker_id, result.slot) for result in self.of_run(run_id)}

    def counts_after(self, worker_id: str, seq: int) -> bool:
        """Whether a worker's results have a window with nothing but readings after `seq`."""
        return any(r.worker_id == worker_id and r.part.first_seq > seq for r in self.all)

    def counted(self, run_id: int) -> int:
        return sum(result.part.count for result in self.of_run(run_id))

    def coverage(self, run_id: int, feeder: Feeder) -> Coverage:
        """Compares a run's results with what was sent, from the first to the last reading that
        the run counted."""
        parts = [result.part for result in self.of_run(run_id)]
        if not parts:
            return Coverage(0, -1, 0, "no results")
        first = min(part.first_seq for part in parts)
        last = max(part.last_seq for part in parts)
        found, due = merge_all(parts), feeder.expected(first, last, self._window_ms)
        wrong = next((str(key) for key in due if not same(found.get(key), due[key])), "")
        extra = next((str(key) for key in found if key not in due), "")
        return Coverage(first, last, sum(part.count for part in parts), wrong or extra)

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for results that make `holds` true; False when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return False
        return True

    def _show_until(self, start_ms: int) -> None:
        due = [r for r in self.all if self._shown_to_ms < r.part.start_ms <= start_ms]
        for start in sorted({result.part.start_ms for result in due}):
            self._show(_line([result for result in due if result.part.start_ms == start]))
            self._shown_to_ms = start


def same(found: Part | None, due: Part) -> bool:
    """Whether a window is what it should be; sums of floats may differ in the last digits."""
    if found is None:
        return False
    exact = (found.count, found.low, found.high, found.first_seq, found.last_seq)
    return exact == (due.count, due.low, due.high, due.first_seq, due.last_seq) and math.isclose(
        found.total, due.total, abs_tol=1e-6
    )


def _line(window: list[Result]) -> str:
    """One window of all sensors in one line."""
    at = datetime.fromtimestamp(window[0].part.start_ms / 1000, UTC)
    runs = ", ".join(str(run) for run in sorted({result.run_id for result in window}))
    slots = len({(result.worker_id, result.slot) for result in window})
    whole = {part.sensor: part for part in merge_all(r.part for r in window).values()}
    means = ", ".join(f"{name} {whole[name].mean:.1f}" for name in SHOWN if name in whole)
    count = sum(part.count for part in whole.values())
    return f"run {runs}, window {at:%H:%M:%S}: {count} readings by {slots} slots: {means}"
