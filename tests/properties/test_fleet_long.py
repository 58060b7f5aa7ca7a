"""Long and busy stories of a fleet, drawn by chance: the same ones every time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.chance import Chance

STORIES = 1_600
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_the_laws_hold_throughout_and_peace_settles_everything(part: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(part, STORIES, PARTS):
        chance = Chance(seed)
        try:
            chance.tell()
        except Exception as error:
            error.add_note(f"tests.support.chance.Chance({seed}).tell() tells it again")
            raise
        for record in chance.fleet.story.records:
            happened.update(type(fact).__name__ for fact in record.events)
    rare = {"WorkerLost", "WorkerReturned", "WorkerOrphaned", "RunForgotten", "NodeReturned"}
    assert rare <= set(happened), "these stories no longer reach what they were made for"
