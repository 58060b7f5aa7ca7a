"""``python -m tests.simulation``: tells stories for a while, or one again.

    python -m tests.simulation --seconds 600 --jobs 2
    python -m tests.simulation --seed 1104               that one, with all it says
    python -m tests.simulation --seed 1104 --keep name   and writes it down as a test
    python -m tests.simulation --faults                  how soon deliberate faults are found

What lives here: the command line and what it prints. What may not: anything else.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

import msgspec

from tests.simulation.drawing import draw
from tests.simulation.finding import find_all
from tests.simulation.keeping import Kept, keep
from tests.simulation.running import Failure, Sums, failure_of, simulate
from tests.simulation.story import Told
from tests.simulation.world import tell

SHOWN: Final = 60
"""Lines of a story's end."""


def main() -> int:
    options = _options()
    if options.faults:
        return find_all(_say)
    if options.seed is not None:
        return _one(options.seed, options.keep)
    first = options.first if options.first is not None else int(time.time()) * 1_000
    _say(f"stories from seed {first} on, for {options.seconds:g} s, {options.jobs} at a time")
    sums = simulate(first, options.seconds, options.jobs, _failed)
    _sum_up(sums)
    return 1 if sums.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--first", type=int, help="the first seed (else from the clock)")
    parser.add_argument("--seed", type=int, help="tell only this one, and what happens in it")
    parser.add_argument("--keep", metavar="NAME", help="with --seed: as a regression test")
    parser.add_argument("--faults", action="store_true", help="put faults in, and find them")
    return parser.parse_args()


def _one(seed: int, name: str | None) -> int:
    told = tell(draw(seed), verbose=True)
    if not told.broken:
        _say(*told.lines[-SHOWN:])
        _say(f"seed {seed}: no law was broken; {_figures(told)}")
        return 0
    failure = failure_of(seed, told)
    _failed(failure)
    if name is not None:
        path = keep(name, Kept(failure.shrunk.told.broken, failure.shrunk.story))
        _say(f"kept as {path}")
    return 1


def _failed(failure: Failure) -> None:
    shrunk = failure.shrunk
    _say(
        "",
        f"seed {failure.seed} breaks a law: {failure.broken}",
        f"the same with less ({shrunk.tries} tries): {msgspec.json.encode(shrunk.story).decode()}",
        *shrunk.told.lines[-SHOWN:],
        f"  {shrunk.told.broken}",
        f"again:   make simulate SEED={failure.seed}",
        f"to keep: python -m tests.simulation --seed {failure.seed} --keep NAME",
    )


def _figures(told: Told) -> str:
    return f"{told.steps} steps checked, {told.records} records, digest {told.digest[:16]}"


def _sum_up(sums: Sums) -> None:
    last = sums.first + sums.seeds - 1
    _say(
        "",
        f"seeds {sums.first} to {last}: {sums.seeds} stories of {sums.told_s / 3600:.1f} h in all",
        f"law-checked steps: {sums.steps:,}; {sums.steps / max(sums.cpu_s, 0.001):,.0f} a second "
        f"of a processor ({sums.turns:,} turns of the loop, {sums.records:,} records)",
        "faults: " + ", ".join(f"{kind} {n:,}" for kind, n in sorted(sums.trouble.items())),
        f"laws broken: {len(sums.failures)}"
        + "".join(f", seed {failure.seed}" for failure in sums.failures),
    )


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
