"""Stories in which no law may be broken: some fixed seeds, and those that once broke one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.drawing import draw
from tests.simulation.keeping import Kept, kept_stories
from tests.simulation.world import tell

SEEDS = range(24)
PARTS = 4
ALIKE = range(100, 103)
ROOT = Path(__file__).parents[2]
DIGESTS = """
from tests.simulation.drawing import draw
from tests.simulation.world import tell
print(*(tell(draw(seed)).digest for seed in range({}, {})))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_laws_hold_whatever_goes_wrong(part: int) -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS[part::PARTS]:
        told = tell(draw(seed))
        assert not told.broken, f"make simulate SEED={seed}: {told.broken}"
        happened.update(told.trouble)
    assert len(happened) > 5, "these stories are too quiet to say much"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "kept"), kept_stories().items())
def test_a_story_that_once_broke_a_law_does_not_any_more(name: str, kept: Kept) -> None:
    told = tell(kept.story)
    assert not told.broken, f"{name} is back: {told.broken} (it was: {kept.was})"


@pytest.mark.timeout(120)
def test_one_seed_is_one_story_to_the_byte_whatever_the_hashes() -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", DIGESTS.format(ALIKE.start, ALIKE.stop)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hashes in ("1", "2")
    ]
    first, second = (program.communicate()[0].split() for program in programs)
    assert [program.returncode for program in programs] == [0, 0]
    assert first == second
    assert len(set(first)) == len(ALIKE)
