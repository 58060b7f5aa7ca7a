"""How soon a deliberate fault is found, in stories that were drawn as any others.

What lives here: the search for one, and the table of all. What may not: the faults
(``faults``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from tests.simulation.drawing import draw, draw_about
from tests.simulation.faults import FAULTS
from tests.simulation.world import tell

BUDGET_STORIES: Final = 100
SEARCHES: Final = 3
"""For the mean of each, each from another seed."""

STRIDE: Final = 10_000

ABOUT: Final = {
    "no_epoch_check": "late_order",
    "no_roll_back": "half_a_start",
    "old_inventories": "late_list",
    "tombstones_forgotten": "late_again",
    "uncertain_taken_for_failed": "frozen_start",
}
"""Faults that need several things at once, and the motif of the stories in which they are looked
for; the others are looked for in stories about anything."""


class Found(Struct, frozen=True):
    """After how much a fault was found (``broken``, else empty), and with which seed."""

    broken: str
    seed: int
    stories: int
    steps: int
    cpu_s: float


def find(name: str, first: int, stories: int = BUDGET_STORIES) -> Found:
    """Tells stories from seed ``first`` on with a fault put in, until a law is broken."""
    about = ABOUT.get(name, "")
    steps, began, seed = 0, time.process_time(), first
    with FAULTS[name]():
        for seed in range(first, first + stories):
            told = tell(draw_about(seed, about) if about else draw(seed))
            steps += told.steps
            if told.broken:
                spent = time.process_time() - began
                return Found(told.broken, seed, seed - first + 1, steps, spent)
    return Found("", seed, stories, steps, time.process_time() - began)


def find_all(say: Callable[[str], None]) -> int:
    """Prints the mean steps until each is found; 1 where one was not, within its budget."""
    missed = 0
    for name in FAULTS:
        found = [find(name, STRIDE * search) for search in range(SEARCHES)]
        misses = [one for one in found if not one.broken]
        missed += len(misses)
        say(
            f"{name:28} {sum(f.steps for f in found) / len(found):>10,.0f} steps, "
            f"{sum(f.stories for f in found) / len(found):>5.1f} stories, "
            f"{sum(f.cpu_s for f in found) / len(found):>5.1f} s of a processor"
            + (f"; NOT FOUND in {len(misses)} of {len(found)}" if misses else "")
        )
        say(f"{'':28} such as: {found[0].broken[:160]}")
    return 1 if missed else 0
