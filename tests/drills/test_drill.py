"""A short drill with every test run, and proof that a drill finds what is broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.drills.broken import programs_with
from tests.drills.drill import ALL, Plan, drill
from tests.drills.faults import Fault

SHORT = [
    "leader dies, append stored",
    "agent dies between spawn and answer",
    "supervisor dies between spawn and answer",
    "leader outlived, start late",
    "half open",
    "server dies, append unsent",
]


def the(*kinds: str) -> list[Fault]:
    """Faults by their kind."""
    return [fault for kind in kinds for fault in ALL if fault.kind == kind]


@pytest.mark.timeout(120)
async def test_a_short_drill(tmp_path: Path) -> None:
    report = await drill(Plan(seed=7, script=the(*SHORT), folder=tmp_path))
    assert report.violations == []
    assert sum(report.faults.values()) >= len(SHORT) - 1  # the flow may not come to a point
    assert report.commands > 20
    assert report.workers > 10
    assert os.listdir(tmp_path) == []  # noqa: PTH208  a short look


@pytest.mark.parametrize(
    ("fault", "kinds", "law"),
    [
        ("obeys-every-epoch", ["leader outlived, start late"], "law 5 on the node"),
        ("forgets-its-journal", ["kill supervisor"], "what has ended does not run"),
        ("leaves-children", ["kill worker"], "what has ended does not run"),
        (
            "acts-before-it-appends",
            ["leader dies, append unsent"],
            "an answer is the logged outcome",
        ),
    ],
)
@pytest.mark.timeout(180)
async def test_a_drill_finds(fault: str, kinds: list[str], law: str, tmp_path: Path) -> None:
    report = await drill(
        Plan(seed=7, seconds=90, among=the(*kinds), programs=programs_with(fault), folder=tmp_path)
    )
    assert any(violation.startswith(law) for violation in report.violations), report
    assert report.left is not None
    left = set(os.listdir(report.left))  # noqa: PTH208  a short look
    assert {"story.jsonl", "recording", "c1.log", "n1.log"} <= left
