"""Long and busy stories of a fleet, drawn by chance: the same ones every time."""

from __future__ import annotations

from collections import Counter

import pytest

from events.facts import AnyFact, RunCreated, RunStopping, WorkerEnded
from tests.support.chance import Chance

STORIES = 1_600
PARTS = 4


def _special(fact: AnyFact) -> list[str]:
    """What of a fact is worth being counted beside its kind."""
    match fact:
        case RunCreated(restart_of=int(), tries=tries):
            return ["restarted" if tries else "moved"]
        case WorkerEnded(reason=reason) if reason.startswith("its lease of"):
            return ["lease over"]
        case RunStopping(reason=reason) if "not restarted" in reason:
            return ["limit"]
        case _:
            return []


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
            happened.update(word for fact in record.events for word in _special(fact))
    rare = {"WorkerLost", "WorkerReturned", "WorkerOrphaned", "RunForgotten", "NodeReturned"}
    rare |= {"RunWaiting", "NodeDraining", "NodeConfirmedDead"}
    rare |= {"restarted", "moved", "lease over", "limit"}
    assert rare <= set(happened), "these stories no longer reach what they were made for"
