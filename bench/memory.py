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
from events.ids import Position
from events.ledger import Ledger
from events.log import decode_record, encode_record

NODES: Final = 10_000
JOBS: Final = 2_000
WORKERS_A_JOB: Final = 10


async def rows() -> list[Row]:
    story = Story(NODES, slots=WORKERS_A_JOB * 2)
    nodes = [encode_record(record) for record in _one_a_record(story.records[0])]
    story.rules = type(story.rules)(per_worker=1)
    for number in range(JOBS):
        story.start(f"job-{number:06}", WORKERS_A_JOB)
    work = [encode_record(record) for record in story.records[1:]]
    raw_nodes, raw_work = sum(map(len, nodes)), sum(map(len, work))
    del story
    ledger = Ledger()
    of_nodes = _grown(ledger, nodes) / NODES
    workers = JOBS * WORKERS_A_JOB
    of_work = _grown(ledger, work)
    jobs = len(ledger.jobs)
    assert (len(ledger.nodes), len(ledger.workers), jobs) == (NODES, workers, JOBS)
    return [
        Row(
            what="a node",
            value=of_nodes,
            unit="bytes",
            floor_is="its record in the log",
            floor=raw_nodes / NODES,
            ratio=of_nodes * NODES / raw_nodes,
            low=of_nodes * NODES / raw_nodes,
            high=of_nodes * NODES / raw_nodes,
            goals=[Goal(1_024, of="value")],
        ),
        Row(
            what=f"a worker ({WORKERS_A_JOB} a job, its share of job and command included)",
            value=of_work / workers,
            unit="bytes",
            floor_is="its share of the log",
            floor=raw_work / workers,
            ratio=of_work / raw_work,
            low=of_work / raw_work,
            high=of_work / raw_work,
            goals=[Goal(500, of="value")],
        ),
    ]


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
