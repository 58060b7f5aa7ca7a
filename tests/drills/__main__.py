"""``python -m tests.drills``: drills for a given time, and their figures.

What lives here: arguments and printing. What may not: the drill.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path

from controller.logs import setup_logging
from tests.drills.drill import ALL, Plan, Report, drill


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 every law held; 1 one did not."""
    arguments = _arguments(argv)
    seed: int = arguments.seed if arguments.seed is not None else secrets.randbelow(2**31)
    plan = Plan(
        seed=seed,
        seconds=arguments.seconds,
        faults=arguments.faults,
        among=[fault for fault in ALL if fault.kills or not arguments.kills],
        folder=arguments.folder,
    )
    setup_logging("error")  # the drill's own connections are lost now and then
    sys.stdout.write(f"drill: seed {seed}\n")
    sys.stdout.flush()
    report = asyncio.run(drill(plan))
    sys.stdout.write(told(report))
    return 1 if report.violations else 0


def told(report: Report) -> str:
    """The figures, for people."""
    answers = ", ".join(f"{code} {count}" for code, count in sorted(report.answers.items()))
    lines = [
        f"drill: seed {report.seed}, {report.seconds:.0f} s",
        f"faults ({sum(report.faults.values())}, of them kills: {report.kills}):",
        *(f"  {count:5} {kind}" for kind, count in report.faults.items()),
        f"commands: {report.commands} ({answers})",
        f"log: {report.records} records under {report.leaders} leaders; workers: {report.workers}",
        f"looks at the process table: {report.looks}; orders obeyed by agents: "
        f"{report.orders_obeyed}, refused: {report.orders_refused}",
        f"violations: {len(report.violations)}",
        *(f"  {sentence}" for sentence in report.violations),
    ]
    if report.left is not None:
        lines.append(f"logs, recordings and the story are in {report.left}")
    return "\n".join(lines) + "\n"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="for so long (%(default)g)")
    parser.add_argument("--seed", type=int, help="what happens; else by chance, and printed")
    parser.add_argument("--faults", type=int, help="end after so many, if that is sooner")
    parser.add_argument("--kills", action="store_true", help="nothing but SIGKILLs")
    parser.add_argument("--folder", type=Path, help="where a failed drill leaves its files")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
