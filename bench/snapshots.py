"""Snapshots: a start and a look back with a long log behind them, and what one costs.

What lives here: a log of ``--records`` records in JetStream (a fleet whose jobs come and go, so
that the ledger stays of one size), with snapshots as a leader keeps them; starting from
all of it against the newest snapshot and its tail, and ``state --at`` the same way. What may
not: the reading alone (``bench.replay``).

``python -m bench.snapshots --records 1000000`` makes the log as long as it is said.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from nats.aio.client import Client

from bench.material import Story
from bench.measure import Goal, Pair, Row, compare
from bench.rig import linked, nats_server, scratch
from controller.past.history import ledger_of_file
from controller.past.reaching import Reach, ledger_at, reach
from controller.retention import superfluous
from events.collector import calm_collector
from events.facts import Record
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.jetstream_snapshots import JetStreamSnapshots
from events.ledger import Ledger
from events.log import encode_record
from events.recall import fold, recall
from events.snapshots import MemorySnapshots, pieces, take
from events.subjects import Subjects
from schedulers.decide import Rules
from schedulers.decide.messages import Tick

RECORDS: Final = 50_000
EVERY: Final = 10_000
KEPT: Final = 3
TOGETHER: Final = 512
"""Records in a message, as a busy leader writes them."""

ROUNDS: Final = 3
NODES: Final = 200
ALIVE: Final = 300
"""Jobs that run at a time."""

FORGETTING: Final = 50
"""Jobs from one look at what is to be forgotten to the next, as a timer has it."""

TIMEOUT_S: Final = 60.0


class Day(Struct):
    """A log as it was written. ``small``: the file that an export of it is."""

    records: int
    ledger: Ledger


async def rows() -> list[Row]:
    return await measured(RECORDS)


async def measured(records: int) -> list[Row]:
    calm_collector()
    async with nats_server() as server, linked(server) as nc, scratch() as folder:
        file = folder / "log.jsonl"
        day = await _write(nc, records, file)
        past = reach(nc, Subjects())
        slow = Reach(past.log, MemorySnapshots())
        found = [await _start(nc, day), *await _looks(past, slow, day), _piece(day.ledger)]
        found.append(_file(file, day))
    return found


def lives() -> Iterator[Record]:
    """Jobs of three slots start and end for ever; some always run."""
    story = Story(NODES, slots=8, rules=Rules(expiry_s=1e9))
    number = told = 0
    while True:
        story.start(f"job-{number:08}", 3)
        if number >= ALIVE:
            story.finish(f"job-{number - ALIVE:08}")
        number += 1
        if number % FORGETTING == 0:
            story.tell(Tick())
        yield from story.records[told:]
        told = len(story.records)
        if told > 1_000:
            story.records.clear()
            told = 0


async def _write(nc: Client, count: int, file: Path) -> Day:
    """A leader's log and snapshots, thinned as a leader thins them; and the log as a file."""
    log, store = JetStreamLog(nc, Subjects()), JetStreamSnapshots(nc, Subjects())
    ledger, source = Ledger(), lives()
    with file.open("wb") as lines:
        for at in range(0, count, TOGETHER):
            some = [next(source) for _ in range(min(TOGETHER, count - at))]
            await log.append(some, expected=Position(at), timeout_s=TIMEOUT_S)
            lines.write(b"".join(encode_record(record) + b"\n" for record in some))
            before = ledger.position // EVERY
            fold(ledger, some)
            if ledger.position // EVERY > before and ledger.position < count:
                await store.keep(take(ledger))
                positions = await store.positions()
                for old in superfluous(positions, kept=KEPT, needs_oldest=False):
                    await store.drop(Position(old))
    return Day(records=count, ledger=ledger)


async def _start(nc: Client, day: Day) -> Row:
    """What a leader does before it serves, cold."""
    store = JetStreamSnapshots(nc, Subjects())

    async def whole() -> None:
        found = await recall(JetStreamLog(nc, Subjects()))
        assert found.ledger.position == day.records

    async def from_snapshot() -> None:
        found = await recall(JetStreamLog(nc, Subjects()), store)
        assert found.base > START
        assert found.ledger.position == day.records

    return compare(
        f"a start with {day.records:,} records behind it, from a snapshot",
        await _pairs(from_snapshot, whole),
        "s",
        "the same from the whole log",
        [Goal(0.5)],
    )


async def _looks(past: Reach, slow: Reach, day: Day) -> list[Row]:
    found: list[Row] = []
    for what, part in (("near the end", 0.97), ("in the middle", 0.5)):
        moment = int(day.records * part)

        async def quick(moment: int = moment) -> None:
            assert (await ledger_at(past, moment)).position == moment

        async def replayed(moment: int = moment) -> None:
            assert (await ledger_at(slow, moment)).position == moment

        found.append(
            compare(
                f"state --at {what} of {day.records:,} records",
                await _pairs(quick, replayed),
                "s",
                "the same without snapshots",
            )
        )
    return found


async def _pairs(
    quick: Callable[[], Awaitable[None]], slow: Callable[[], Awaitable[None]]
) -> list[Pair]:
    """In CPU seconds of this process, which don't depend on who else uses the machine."""
    return [Pair(await _used(quick), await _used(slow)) for _ in range(ROUNDS)]


async def _used(work: Callable[[], Awaitable[None]]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF)
    await work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _piece(ledger: Ledger) -> Row:
    """The longest that a snapshot holds the loop up, against encoding it in one go."""
    pairs: list[Pair] = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        ledger.snapshot()
        whole = time.thread_time() - began
        longest = 0.0
        last = time.thread_time()
        for _piece_bytes in pieces(ledger.state):
            now = time.thread_time()
            longest, last = max(longest, now - last), now
        pairs.append(Pair(longest * 1e3, whole * 1e3))
    return compare(
        f"the longest step of a snapshot of {len(ledger.workers):,} workers",
        pairs,
        "ms",
        "all of it in one go",
    )


def _file(path: Path, day: Day) -> Row:
    began = time.process_time()
    ledger = ledger_of_file(path, day.records // 2)
    took = time.process_time() - began
    assert ledger is not None
    assert ledger.position == day.records // 2
    return Row(
        what=f"state --at in the middle of a file of {day.records:,} records",
        value=took,
        unit="s",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.snapshots", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    for row in asyncio.run(measured(parser.parse_args().records)):
        against = "" if row.floor is None else f"  {row.floor_is}: {row.floor:.4g} {row.unit}"
        ratio = "" if row.ratio is None else f"  ratio {row.ratio:.3f}"
        sys.stdout.write(f"{row.what}: {row.value:.4g} {row.unit}{against}{ratio}\n")


if __name__ == "__main__":
    main()
