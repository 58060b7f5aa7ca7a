"""The garbage collector, as it suits a program that holds a large and lasting state.

What lives here: when it looks. What may not: anything that needs it to look.

What a ledger holds has no cycles, and is freed without the collector; looking at all of it
each 700 allocations costs a quarter of a replay's time, and seconds at 100,000 nodes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

YOUNG: Final = 50_000
"""Objects more than were freed, from which on the young are looked at."""

MIDDLE: Final = 50
OLD: Final = 50


def calm_collector() -> None:
    """For programs' entries: the setting is the whole process's."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """While what is made is kept: a tenth of a replay, also with a calm collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
