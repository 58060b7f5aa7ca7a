"""Many stories, in processes side by side, until the time is up.

What lives here: who tells which seed, and the sums. What may not: what is printed
(``__main__``), what a story is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Final

from msgspec import Struct, field

from tests.simulation.drawing import draw
from tests.simulation.shrinking import Shrunk, shrink
from tests.simulation.story import Told
from tests.simulation.world import tell

A_TURN: Final = 4
"""Seeds that a process is given at a time."""

SHRINK_S: Final = 60.0


class Failure(Struct, frozen=True):
    """A seed that broke a law, told in full, and the shortest story that still does."""

    seed: int
    broken: str
    shrunk: Shrunk


class Sums(Struct):
    """What was told so far. ``cpu_s``: of all processes."""

    first: int = 0
    seeds: int = 0
    steps: int = 0
    turns: int = 0
    records: int = 0
    told_s: float = 0.0
    cpu_s: float = 0.0
    trouble: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = []

    def add(self, told: Told) -> None:
        self.seeds += 1
        self.steps += told.steps
        self.turns += told.turns
        self.records += told.records
        self.told_s += told.lasted_s
        self.trouble.update(told.trouble)

    def take(self, other: Sums) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.turns += other.turns
        self.records += other.records
        self.told_s += other.told_s
        self.cpu_s += other.cpu_s
        self.trouble.update(other.trouble)
        self.failures += other.failures


def tell_seeds(first: int, count: int) -> Sums:
    """Tells so many seeds; what breaks a law is shrunk at once."""
    sums, began = Sums(first=first), time.process_time()
    for seed in range(first, first + count):
        told = tell(draw(seed))
        sums.add(told)
        if told.broken:
            sums.failures.append(failure_of(seed, told))
    sums.cpu_s = time.process_time() - began
    return sums


def failure_of(seed: int, told: Told, budget_s: float = SHRINK_S) -> Failure:
    shrunk = shrink(draw(seed), told, tell, budget_s)
    shrunk = Shrunk(shrunk.story, tell(shrunk.story, verbose=True), shrunk.tries)
    return Failure(seed, told.broken, shrunk)


def simulate(first: int, seconds: float, jobs: int, heard: Callable[[Failure], None]) -> Sums:
    """Tells stories from seed ``first`` on for so long; ``heard`` is told of each failure."""
    sums, until = Sums(first=first), time.monotonic() + seconds
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        following = _turns(first)
        busy: set[Future[Sums]] = set()
        while busy or time.monotonic() < until:
            while len(busy) < jobs and time.monotonic() < until:
                busy.add(pool.submit(tell_seeds, next(following), A_TURN))
            done, busy = wait(busy, return_when=FIRST_COMPLETED)
            for part in done:
                for failure in part.result().failures:
                    heard(failure)
                sums.take(part.result())
    return sums


def _turns(first: int) -> Iterator[int]:
    while True:
        yield first
        first += A_TURN
