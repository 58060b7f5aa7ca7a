"""``python -m bench``: runs the benchmarks, each in a process of its own, and tells.

What lives here: choosing, running and showing. What may not: measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench.measure import Row

ROOT: Final = Path(__file__).resolve().parents[1]
NAMES: Final = (
    *("starts", "heartbeats", "replay", "decisions", "recording", "projection", "placement"),
    *("memory", "snapshots", "failover", "virtual"),
    *("startup", "kubernetes"),
)
TEXTS: Final = frozenset({"bench", "measured", "against"})
ONE_S: Final = 180.0
"""No benchmark takes longer; one that does has failed."""

LONGER_S: Final = {"kubernetes": 1_200.0}
"""Five of these minutes are quiet, on purpose."""


class Shown(Struct, kw_only=True):
    """A row in the JSON output: as ``Row``, with what became of its goals."""

    bench: str
    what: str
    value: float
    unit: str
    floor_is: str
    floor: float | None
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    goals: list[str]
    met: bool | None


class Report(Struct, kw_only=True):
    """``failed``: benchmarks that gave no rows."""

    python: str
    machine: str
    cpus: int
    rows: list[Shown]
    failed: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where a benchmark failed, or with ``--strict`` a goal was missed."""
    options = _options(arguments)
    if options.one:
        module = importlib.import_module(f"bench.{options.one}")
        rows: list[Row] = asyncio.run(module.rows())
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return 0
    report = Report(
        python=platform.python_version(),
        machine=platform.machine(),
        cpus=os.cpu_count() or 1,
        rows=[],
        failed=[],
    )
    for name in options.names or NAMES:
        sys.stderr.write(f"{name} ...\n")
        found = _run(name)
        if found is None:
            report.failed.append(name)
        else:
            report.rows += [_shown(name, row) for row in found]
    if options.output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        _print(report)
    missed = options.strict and any(row.met is False for row in report.rows)
    return 1 if report.failed or missed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--strict", action="store_true", help="a missed goal is a failure")
    parser.add_argument("--one", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return options


def _run(name: str) -> list[Row] | None:
    """In a process of its own, so that none inherits another's heap."""
    command = [sys.executable, "-P", "-m", "bench", "--one", name]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            timeout=LONGER_S.get(name, ONE_S),
            check=True,
            env=environ,
        )
        return msgspec.json.decode(done.stdout, type=list[Row])
    except (subprocess.SubprocessError, msgspec.DecodeError) as error:
        sys.stderr.write(f"{name} failed: {error}\n")
        return None


def _shown(name: str, row: Row) -> Shown:
    fields = {field: getattr(row, field) for field in Row.__struct_fields__}
    fields["goals"] = [str(goal) for goal in row.goals]
    return Shown(bench=name, met=row.met, **fields)


def _print(report: Report) -> None:
    table = Table(title=f"slotbus on Python {report.python}, {report.cpus} CPUs, {report.machine}")
    for column in ("bench", "measured", "against", "value", "floor", "ratio", "goal", "met"):
        table.add_column(column, justify="left" if column in TEXTS else "right")
    before = ""
    for row in report.rows:
        table.add_row(
            row.bench if row.bench != before else "",
            row.what,
            row.floor_is,
            f"{_number(row.value)} {row.unit}",
            f"{_number(row.floor)} {row.unit}" if row.floor is not None else "",
            _ratio(row),
            " and ".join(row.goals),
            "" if row.met is None else ("yes" if row.met else "NO"),
        )
        before = row.bench
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if report.failed:
        sys.stdout.write(f"failed: {', '.join(report.failed)}\n")


def _ratio(row: Shown) -> str:
    if row.ratio is None:
        return ""
    return f"{row.ratio:.2f} ({row.low:.2f}-{row.high:.2f})"


def _number(value: float) -> str:
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
