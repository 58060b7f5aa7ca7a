"""The simulation can fail: each deliberate fault breaks a law within its budget."""

from __future__ import annotations

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.finding import find

BUDGET_STORIES = 40
FIRST = {"no_epoch_check": 5_000, "append_without_expectation": 30, "launched_twice": 4}
"""Where the search begins, if not at 0: shortly before a seed that finds it, so that the tests
are short. How long it takes from anywhere is told by ``python -m tests.simulation --faults``."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_deliberate_fault_is_found(name: str) -> None:
    found = find(name, FIRST.get(name, 0), BUDGET_STORIES)
    assert found.broken, f"{name} was not found in {found.stories} stories, {found.steps} steps"
