"""What every benchmark gives: rows of a value, its floor, their ratio and the goal.

What lives here: rows, medians of pairs, timing. What may not: what is measured.

A machine that others use is slow at times; a value and its floor are taken right after one
another, and what counts is the median of their ratios, which the noise touches least.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

ROUNDS: Final = 5


class Goal(Struct, frozen=True):
    """``at_most`` or ``at_least``, of the ratio or (``of="value"``) of the value itself."""

    bound: float
    at_least: bool = False
    of: str = "ratio"

    def met(self, row: Row) -> bool:
        number = row.ratio if self.of == "ratio" else row.value
        if number is None:
            return False
        return number >= self.bound if self.at_least else number <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.bound:g}" + ("" if self.of == "ratio" else " (value)")


class Row(Struct, kw_only=True, frozen=True):
    """``what`` was measured against ``floor_is``. ``ratio``: value by floor, the median of
    ``rounds`` pairs; ``low`` and ``high``: the extremes of it."""

    what: str
    value: float
    unit: str
    floor_is: str = ""
    floor: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 1
    goals: list[Goal] = []

    @property
    def met(self) -> bool | None:
        """Whether all goals are met; None where there are none."""
        return all(goal.met(self) for goal in self.goals) if self.goals else None


class Pair(Struct, frozen=True):
    """One measurement and its floor, in the same unit."""

    value: float
    floor: float


def compare(
    what: str, pairs: list[Pair], unit: str, floor_is: str, goals: list[Goal] | None = None
) -> Row:
    """The row that pairs amount to."""
    ratios = [pair.value / pair.floor for pair in pairs]
    return Row(
        what=what,
        value=statistics.median(pair.value for pair in pairs),
        unit=unit,
        floor_is=floor_is,
        floor=statistics.median(pair.floor for pair in pairs),
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        rounds=len(pairs),
        goals=goals or [],
    )


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds(work: Callable[[], object]) -> float:
    """How much CPU time this process uses for a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


async def cpu_seconds_of(work: Callable[[], Awaitable[object]]) -> float:
    """How much CPU time this process uses for an awaited call: for work that waits for nobody
    it is the time an idle machine would take. What the call returns is kept until then."""
    began = time.process_time()
    made = await work()
    took = time.process_time() - began
    del made
    return took


async def seconds_of(work: Callable[[], Awaitable[object]]) -> float:
    """How long an awaited call takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began
