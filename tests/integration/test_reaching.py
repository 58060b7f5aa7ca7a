"""Looking back on a running cluster: from snapshots, the purged log, and the archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from nats.aio.client import Client

from controller.archive import Archive, parts_of
from controller.past.history import Moment
from controller.past.reaching import Reach, archived, archived_at, history, ledger_at, reach
from controller.past.why import first_violation
from events.errors import Invalid
from events.facts import Record
from events.ids import START, Position
from events.ledger import Ledger
from events.log import MemoryLog
from events.recall import fold
from events.snapshots import MemorySnapshots, Snapshot, take
from events.subjects import Subjects
from tests.support.kept import RECORDS, WHOLE, kept
from tests.support.records import append

LAST = len(RECORDS)


def folded(count: int) -> Ledger:
    ledger = Ledger()
    fold(ledger, RECORDS[:count])
    return ledger


class CountingLog(MemoryLog):
    """How many records were read of it."""

    read_records = 0

    async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        async for batch in super().read(after):
            self.read_records += len(batch)
            yield batch


async def in_memory(*positions: int) -> tuple[Reach, CountingLog, MemorySnapshots]:
    log, store = CountingLog(), MemorySnapshots()
    await append(log, RECORDS, 0)
    for position in positions:
        await store.keep(take(folded(position)))
    return Reach(log, store), log, store


def moments_at(position: int) -> list[Moment]:
    return [position, RECORDS[position - 1].at]


@pytest.mark.parametrize("position", [1, 49, 50, 51, 120, LAST])
async def test_a_moment_is_the_same_from_any_snapshot(position: int) -> None:
    past, _, store = await in_memory(50, 100, 150)
    for moment in moments_at(position):
        assert (await ledger_at(past, moment)).snapshot() == folded(position).snapshot()
    await store.drop(Position(100))
    for moment in moments_at(position):
        assert (await ledger_at(past, moment)).snapshot() == folded(position).snapshot()


async def test_only_what_follows_the_snapshot_is_read() -> None:
    past, log, _ = await in_memory(50, LAST - 3)
    await ledger_at(past, None)
    assert log.read_records <= 4
    await ledger_at(past, LAST - 1)
    assert log.read_records <= 8


async def test_moments_that_are_not_there() -> None:
    past, _, _ = await in_memory(50)
    with pytest.raises(Invalid, match=f"1 to {LAST}, and no 999"):
        await ledger_at(past, 999)
    with pytest.raises(Invalid, match="the log begins after"):
        await ledger_at(past, RECORDS[0].at - timedelta(seconds=1))


async def test_a_snapshot_that_cant_be_used_costs_only_time() -> None:
    past, _, store = await in_memory(50, 100)
    whole = store.kept[Position(100)]
    store.kept[Position(100)] = Snapshot(head=whole.head, data=whole.data[:40])
    assert (await ledger_at(past, 120)).snapshot() == folded(120).snapshot()
    foreign = folded(100)
    foreign.state.epoch += 1
    await store.keep(take(foreign))
    assert (await ledger_at(past, 120)).snapshot() == folded(120).snapshot()


async def test_behind_a_purge_the_archive_knows(
    nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    async with kept(nc, subjects, share=0.6, archive=Archive(tmp_path)) as beside:
        await beside.retention.tidy(beside.ledger)
        first = (await beside.log.extent()).first
        assert first > 1
        with pytest.raises(Invalid, match=f"begins at record {first}; say --archive"):
            await ledger_at(reach(nc, subjects), 20)
        for position in (1, 20, 50, 51, first - 1, first, LAST):
            for moment in moments_at(position):
                found = await ledger_at(reach(nc, subjects, tmp_path), moment)
                assert found.snapshot() == folded(position).snapshot()
        whole = await history(reach(nc, subjects, tmp_path))
        assert (whole.after, whole.records) == (0, RECORDS)
        assert first_violation(whole) is None
        left = await history(reach(nc, subjects))
        assert (left.after, left.records) == (first, RECORDS[first:])
        assert left.ledger_at(None).snapshot() == WHOLE.snapshot()
        assert first_violation(left) is None


async def test_an_archive_with_a_gap_begins_after_it(
    nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    async with kept(nc, subjects, share=0.6, archive=Archive(tmp_path)) as beside:
        await beside.retention.tidy(beside.ledger)
    parts = parts_of(tmp_path)
    await asyncio.to_thread(parts[1].path.unlink)
    assert archived(tmp_path).after == parts[2].first - 1
    assert archived_at(tmp_path, parts[2].last).snapshot() == folded(parts[2].last).snapshot()
    with pytest.raises(Invalid, match="neither in the log nor in the archive"):
        archived_at(tmp_path, parts[1].last - 1)


async def test_an_archive_of_another_log_is_refused(
    nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    async with kept(nc, subjects, share=0.6, archive=Archive(tmp_path)) as beside:
        await beside.retention.tidy(beside.ledger)
    other = MemoryLog()
    await append(other, RECORDS[:20] * 12, 0)
    with pytest.raises(Invalid, match="of another log"):
        await history(Reach(other, MemorySnapshots(), tmp_path))
    short = MemoryLog()
    await append(short, RECORDS[:20], 0)
    with pytest.raises(Invalid, match="knows more than the log"):
        await history(Reach(short, MemorySnapshots(), tmp_path))
