"""Placement: what a start costs where there are many nodes.

What lives here: the plan of a start, and of one refused, at 1,000 and 100,000 nodes. What
may not: the rest of a start.
"""

from __future__ import annotations

from typing import Final

from bench.material import Story
from bench.measure import ROUNDS, Goal, Pair, Row, compare, cpu_seconds
from events.messages import StartPipelineReq
from schedulers.decide.draft import Draft
from schedulers.decide.placing import plan_for
from schedulers.placement import Wish

FEW: Final = 1_000
MANY: Final = 100_000
SLOTS: Final = 8
PLANS: Final = 200
MICRO: Final = 1e6


async def rows() -> list[Row]:
    few, many = Story(FEW, SLOTS), Story(MANY, SLOTS)
    for story in (few, many):  # no two neighbours are alike
        for number in range(500):
            story.start(f"j{number}", 1 + number % SLOTS)
    goals = [Goal(2.0), Goal(100.0, of="value")]
    found = [
        _row(
            few,
            many,
            f"{workers} workers, {spread}",
            workers,
            Wish(slots=slots, spread=spread),
            goals,
        )
        for workers, slots, spread in (
            (1, 1, "pack"),
            (100, 100 * SLOTS, "pack"),
            (100, 100, "even"),
        )
    ]
    selector = Wish(slots=SLOTS, selector={"zone": "z1"})
    found.append(_row(few, many, "1 worker, by label", 1, selector, goals))
    found.append(_row(few, many, "no worker: refused for lack of room", 1, Wish(slots=10**7), []))
    found.append(_starts(few, many))
    return found


def _row(few: Story, many: Story, what: str, workers: int, wish: Wish, goals: list[Goal]) -> Row:
    plans = max(5, PLANS // workers)

    def a_worker(story: Story) -> float:
        draft = _draft(story)

        def work() -> None:
            for _ in range(plans):
                plan_for(draft, wish)

        return cpu_seconds(work) / plans / workers * MICRO

    pairs = [Pair(a_worker(many), a_worker(few)) for _ in range(ROUNDS)]
    return compare(
        f"placing {what}, {MANY:,} nodes", pairs, "CPU us a worker", f"{FEW:,} nodes", goals
    )


def _starts(few: Story, many: Story) -> Row:
    """The whole decision, which also folds and so changes the order of the nodes."""

    def one(story: Story, number: int) -> float:
        def work() -> None:
            for index in range(PLANS):
                story.tell(StartPipelineReq(job_id=f"s{number}-{index}", slots=1))

        return cpu_seconds(work) / PLANS * MICRO

    pairs = [Pair(one(many, number), one(few, number)) for number in range(ROUNDS)]
    return compare(
        f"deciding on a one-slot start, {MANY:,} nodes", pairs, "CPU us", f"{FEW:,} nodes"
    )


def _draft(story: Story) -> Draft:
    return Draft(
        story.ledger,
        story.pulse,
        story.rules,
        now=story.now,
        epoch=story.ledger.state.epoch,
        token="t",
        cause="bench",
    )
