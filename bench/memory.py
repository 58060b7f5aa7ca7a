"""Memory: what a node and a worker cost in the ledger.

What lives here: bytes by tracemalloc, as replay leaves them. What may not: the process
around.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable
from typing import Final

from bench.material import BEGIN, EPOCH, Story
from bench.measure import Goal, Row
from events.facts import Record
from events.ids import MAX_WORKERS_A_RUN, Position
from events.ledger import Ledger
from events.log import decode_record, encode_record
from schedulers.decide import Rules

NODES: Final = 10_000
SMALL: Final = 5_000
LARGE: Final = 20
"""Jobs: of one worker each, and of as many as a run may have."""


async def rows() -> list[Row]:
    story = Story(NODES, slots=8, rules=Rules(per_worker=1, expiry_s=1e6))
    nodes = [encode_record(record) for record in _one_a_record(story.records[0])]
    large = _told(story, "large", LARGE, MAX_WORKERS_A_RUN)
    small = _told(story, "small", SMALL, 1)
    del story
    ledger = Ledger()
    found = [
        _row(ledger, "a node", nodes, NODES, 1_024),
        _row(ledger, "a worker, in jobs of a thousand", large, LARGE * MAX_WORKERS_A_RUN, 500),
        _row(ledger, "a job of one worker, with run and command", small, SMALL, None),
    ]
    assert len(ledger.nodes) == NODES
    assert len(ledger.workers) == SMALL + LARGE * MAX_WORKERS_A_RUN
    return found


def _row(ledger: Ledger, what: str, lines: list[bytes], count: int, goal: int | None) -> Row:
    held, logged = _grown(ledger, lines) / count, sum(map(len, lines)) / count
    return Row(
        what=what,
        value=held,
        unit="bytes",
        floor_is="its records in the log",
        floor=logged,
        ratio=held / logged,
        low=held / logged,
        high=held / logged,
        goals=[] if goal is None else [Goal(goal, of="value")],
    )


def _told(story: Story, name: str, jobs: int, workers: int) -> list[bytes]:
    """The records of so many starts."""
    before = len(story.records)
    for number in range(jobs):
        story.start(f"{name}-{number:06}", workers)
    return [encode_record(record) for record in story.records[before:]]


def _one_a_record(record: Record) -> Iterable[Record]:
    for fact in record.events:
        yield Record(at=BEGIN, epoch=EPOCH, cause="register", events=[fact])


def _grown(ledger: Ledger, lines: list[bytes]) -> int:
    """Bytes that are held more after folding these lines."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number, line in enumerate(lines, 1):
        ledger.apply(decode_record(line, Position(number)))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before
