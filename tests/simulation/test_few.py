"""A few stories for every ``make check``; the others are told by ``make test``."""

from __future__ import annotations

from tests.simulation.drawing import draw
from tests.simulation.world import tell

FEW = range(200, 206)


def test_the_laws_hold_in_a_few_stories() -> None:
    for seed in FEW:
        told = tell(draw(seed))
        assert not told.broken, f"make simulate SEED={seed}: {told.broken}"
        assert told.steps > 0
