"""Start-up: ``slotbus --help`` against an interpreter that does nothing.

What lives here: whole programs, from start to end. What may not: what they import.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.measure import Goal, Pair, Row, compare, seconds

TIMES: Final = 15
GOAL_S: Final = 0.3


async def rows() -> list[Row]:
    slotbus = str(Path(sys.executable).with_name("slotbus"))
    pairs = [
        Pair(_took([slotbus, "--help"]), _took([sys.executable, "-c", "pass"]))
        for _ in range(TIMES)
    ]
    used = [
        Pair(_used([slotbus, "--help"]), _used([sys.executable, "-c", "pass"]))
        for _ in range(TIMES)
    ]
    bare = "an interpreter that does nothing"
    versions = [
        Pair(_took([slotbus, "--version"]), _took([sys.executable, "-c", "pass"]))
        for _ in range(TIMES)
    ]
    return [
        compare("slotbus --help", pairs, "s", bare, [Goal(GOAL_S, of="value")]),
        compare("the same, CPU time", used, "s", bare),
        compare("slotbus --version", versions, "s", bare),
    ]


def _took(command: list[str]) -> float:
    return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def _used(command: list[str]) -> float:
    """CPU seconds, which don't depend on who else uses the machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _took(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
