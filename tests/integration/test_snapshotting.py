"""Snapshots beside the loop, what is purged behind them, and what the archive has of it."""

from __future__ import annotations

import asyncio
import gzip
import time
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import Struct, field
from msgspec.structs import replace
from nats.aio.client import Client

from controller import archive as archiving
from controller import snapshotting
from controller.archive import Archive, ArchiveFailed, parts_of
from controller.past.history import history_of_files
from controller.retention import Keeping, Retention
from controller.snapshotting import SnapshotStats, Snapshotter, Tidy
from events.facts import (
    AnyFact,
    LeaderStarted,
    NodeRegistered,
    Record,
    RunCreated,
    WorkerAssigned,
)
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.ledger import Ledger
from events.log import EventLog, MemoryLog, encode_record
from events.recall import fold, recall
from events.snapshots import (
    MemorySnapshots,
    Snapshot,
    SnapshotFailed,
    SnapshotStore,
    restore,
    take,
)
from events.subjects import Subjects
from tests.support.kept import RECORDS, WHOLE, kept
from tests.support.records import BEGIN, EPOCH, append, read_all
from tests.support.waiting import background, until


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for that only spares a busy controller."""
    monkeypatch.setattr(snapshotting, "PAUSE_S", 0.0)
    monkeypatch.setattr(snapshotting, "GATHER_S", 0.0)
    monkeypatch.setattr(snapshotting, "LOOK_S", 0.05)


class Beside(Struct):
    """A snapshotter over a log, as a leadership has it."""

    log: EventLog
    store: SnapshotStore
    stats: SnapshotStats = field(default_factory=SnapshotStats)
    left_s: float = 10.0
    end: int = 0

    def snapshotter(self, every: int = 20, shadow: Ledger | None = None) -> Snapshotter:
        return Snapshotter(
            self.log,
            self.store,
            shadow or Ledger(),
            every=every,
            tidy=self.tidy,
            may_act=lambda: self.left_s,
            stats=self.stats,
        )

    async def tidy(self, _ledger: Ledger) -> Tidy:
        return Tidy(newest=max(await self.store.positions(), default=START))

    async def write(self, snapshotter: Snapshotter, records: list[Record]) -> None:
        """As the engine does: stored first, then told."""
        for record in records:
            self.end = await append(self.log, [record], self.end)
            snapshotter.offer(Position(self.end), record)


async def test_one_is_kept_every_so_many_records() -> None:
    beside = Beside(MemoryLog(), MemorySnapshots())
    snapshotter = beside.snapshotter(every=20)
    async with background(snapshotter.run()):
        for at in range(0, 100, 10):
            await beside.write(snapshotter, RECORDS[at : at + 10])
            await until(lambda end=at + 10: snapshotter.position == end)  # type: ignore[misc]
        await until(lambda: beside.stats.made == 5)
    assert await beside.store.positions() == [20, 40, 60, 80, 100]
    assert (beside.stats.position, beside.stats.failures) == (100, 0)
    for position in await beside.store.positions():
        plain = Ledger()
        fold(plain, RECORDS[:position])
        assert restore(await beside.store.load(position)).snapshot() == plain.snapshot()


async def test_what_has_no_room_in_memory_is_read_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshotting, "MAX_WAITING", 7)
    beside = Beside(MemoryLog(), MemorySnapshots())
    snapshotter = beside.snapshotter(every=20)
    await beside.write(snapshotter, RECORDS[:100])
    async with background(snapshotter.run()):
        await until(lambda: beside.stats.position == 100)
        await beside.write(snapshotter, RECORDS[100:])
        await until(lambda: beside.stats.position == len(RECORDS))
    found = await beside.store.load(Position(len(RECORDS)))
    assert restore(found).snapshot() == WHOLE.snapshot()


async def test_a_store_that_fails_is_counted_and_tried_again() -> None:
    class Failing(MemorySnapshots):
        times = 2

        async def keep(self, snapshot: Snapshot) -> None:
            self.times -= 1
            if self.times >= 0:
                raise SnapshotFailed("not now")
            await super().keep(snapshot)

    beside = Beside(MemoryLog(), Failing())
    snapshotter = beside.snapshotter()
    await beside.write(snapshotter, RECORDS[:30])
    for _ in range(2):
        with pytest.raises(SnapshotFailed):
            await snapshotter.run()
    async with background(snapshotter.run()):
        await until(lambda: beside.stats.made == 1)
    assert (beside.stats.failures, beside.stats.position) == (2, 30)


async def test_who_no_longer_leads_keeps_nothing() -> None:
    beside = Beside(MemoryLog(), MemorySnapshots(), left_s=0.0)
    snapshotter = beside.snapshotter()
    await beside.write(snapshotter, RECORDS[:30])
    await snapshotter.hand_over(1.0)
    with pytest.raises(Exception, match="the lease is over"):
        await snapshotter.run()
    assert await beside.store.positions() == []


async def test_a_hand_over_keeps_one_where_that_saves_reading() -> None:
    beside = Beside(MemoryLog(), MemorySnapshots())
    snapshotter = beside.snapshotter(every=100)
    async with background(snapshotter.run()):
        await beside.write(snapshotter, RECORDS[:8])
        await until(lambda: snapshotter.position == 8)
        await snapshotter.hand_over(5.0)
        assert await beside.store.positions() == []
        await beside.write(snapshotter, RECORDS[8:30])
        await snapshotter.hand_over(5.0)
        assert await beside.store.positions() == [30]


async def test_the_loop_gets_its_turn_while_twenty_thousand_workers_are_encoded() -> None:
    """By this thread's CPU time between two turns, which nobody else's load changes."""
    beside = Beside(MemoryLog(), MemorySnapshots())
    shadow = Ledger()
    fold(shadow, [a_crowd(20, 1_000)])
    snapshotter = beside.snapshotter(every=10, shadow=shadow)
    turns: list[float] = []

    async def turn() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            turns.append(now - last)
            last = now

    one = take(shadow)  # in one go
    began = time.thread_time()
    shadow.snapshot()
    whole = time.thread_time() - began
    async with background(turn()):
        await asyncio.sleep(0)
        kept = await snapshotter._take()
    assert kept.head.digest == one.head.digest
    assert kept.head.size > 4_000_000
    assert max(turns) < max(0.005, whole / 2)


def a_crowd(runs: int, workers: int) -> Record:
    """So many runs of so many workers each, in one record."""
    facts: list[AnyFact] = [
        LeaderStarted(epoch=EPOCH, cluster="c", scheduler="node"),
        NodeRegistered(node_id="n", incarnation="i", task_slots=1_000_000),
    ]
    for run in range(runs):
        job_id = f"job-{run}"
        facts.append(
            RunCreated(
                job_id=job_id,
                run_id=1,
                command_id=f"c-{run}",
                slots=workers,
                name=job_id,
                hash="h",
                deadline=BEGIN + timedelta(minutes=1),
            )
        )
        facts += [
            WorkerAssigned(
                worker_id=f"w-{run:012x}-{number}",
                job_id=job_id,
                run_id=1,
                node_id="n",
                incarnation="i",
                slots=1,
            )
            for number in range(workers)
        ]
    return Record(at=BEGIN, epoch=EPOCH, cause="crowd", events=facts)


# --- what is kept of the log ------------------------------------------------------------------


async def test_a_purge_leaves_the_snapshots_record_and_a_start_is_the_same(
    nc: Client, subjects: Subjects
) -> None:
    async with kept(nc, subjects, share=0.6) as beside:
        tidied = await beside.retention.tidy(beside.ledger)
        assert (tidied.newest, tidied.wanted) == (200, False)
        assert await beside.store.positions() == [150, 200]
        assert (await beside.log.extent()).first == 150
        assert (beside.stats.first, beside.stats.purges) == (150, 1)
        fresh = JetStreamLog(nc, subjects)
        found = await recall(fresh, beside.store)
        assert (found.base, found.ledger.snapshot()) == (200, WHOLE.snapshot())
        await beside.store.drop(Position(200))
        found = await recall(fresh, beside.store)
        assert (found.base, found.ledger.snapshot()) == (150, WHOLE.snapshot())


async def test_without_room_for_a_purge_another_snapshot_is_wanted(
    nc: Client, subjects: Subjects
) -> None:
    async with kept(nc, subjects, share=0.5, positions=(50,)) as beside:
        tidied = await beside.retention.tidy(beside.ledger)
        assert tidied.wanted
        assert (await beside.log.extent()).first == 1


async def test_a_damaged_snapshot_is_none_to_purge_behind(nc: Client, subjects: Subjects) -> None:
    async with kept(nc, subjects, share=0.6, positions=(50, 100, 150, 200)) as beside:
        whole = await beside.store.load(Position(150))
        spoilt = whole.data[:-9] + bytes([whole.data[-9] ^ 1]) + whole.data[-8:]
        await beside.store.keep(Snapshot(head=whole.head, data=spoilt))
        await beside.retention.tidy(beside.ledger)
        assert (await beside.log.extent()).first == 1
        assert await beside.store.positions() == [50, 100, 200]


async def test_snapshots_of_another_log_are_neither_counted_nor_removed(
    nc: Client, subjects: Subjects
) -> None:
    async with kept(nc, subjects, share=0.6, positions=(50, 200)) as beside:
        foreign = Ledger()
        fold(foreign, RECORDS[:150])
        foreign.state.epoch += 1
        await beside.store.keep(take(foreign))
        await beside.retention.tidy(beside.ledger)
        assert (await beside.log.extent()).first == 50
        assert await beside.store.positions() == [50, 150, 200]


async def test_who_no_longer_leads_removes_nothing(nc: Client, subjects: Subjects) -> None:
    async with kept(nc, subjects, share=0.6) as beside:
        beside.left_s = 0.0
        with pytest.raises(Exception, match="the lease is over"):
            await beside.retention.tidy(beside.ledger)
        assert (await beside.log.extent()).first == 1
        assert await beside.store.positions() == [50, 100, 150, 200]


# --- the archive ------------------------------------------------------------------------------


async def test_what_goes_is_in_the_archive_first_in_files_that_fit_together(
    nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    async with kept(nc, subjects, share=0.6, archive=Archive(folder)) as beside:
        await beside.retention.tidy(beside.ledger)
        assert beside.stats.archived == 150
    parts = parts_of(folder)
    assert [(part.first, part.last) for part in parts] == [(1, 50), (51, 100), (101, 150)]
    ledger = Ledger()
    for part in parts:
        history = history_of_files(part.path)
        assert history.after == part.first - 1
        assert history.records == RECORDS[part.first - 1 : part.last]
        if history.base:
            assert history.base == ledger.snapshot()  # law 4, across files
        fold(ledger, history.records)
    fold(ledger, await read_all(beside.log, Position(150)))
    assert ledger.snapshot() == WHOLE.snapshot()


async def test_a_second_purge_goes_on_where_the_archive_ends(
    nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    archive = Archive(tmp_path)
    async with kept(nc, subjects, share=0.99, archive=archive) as beside:
        await beside.retention.tidy(beside.ledger)
        ends = [part.last for part in parts_of(tmp_path)]
        assert ends == [50, 100]
        again = Retention(
            beside.log,
            beside.store,
            Keeping(kept=2, log_bytes=1),
            archive=Archive(tmp_path),
            may_act=lambda: 1.0,
            stats=beside.stats,
        )
        await again.tidy(beside.ledger)
    parts = parts_of(tmp_path)
    assert parts[-1].first == ends[-1] + 1
    assert parts[-1].last == 150


@pytest.mark.parametrize("harm", ["disk", "bytes"])
async def test_what_cant_be_archived_is_not_purged(
    nc: Client,
    subjects: Subjects,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: str,
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    if harm == "disk":
        monkeypatch.setattr("controller.archive.os.fsync", full)
    else:
        finish = archiving._Writing.finish

        def rotten(writing: archiving._Writing) -> None:
            writing._hash.update(b"what the disk lost")
            finish(writing)

        monkeypatch.setattr(archiving._Writing, "finish", rotten)
    async with kept(nc, subjects, share=0.6, archive=Archive(tmp_path)) as beside:
        with pytest.raises(ArchiveFailed, match="No space|not what was written"):
            await beside.retention.tidy(beside.ledger)
        assert (await beside.log.extent()).first == 1
        assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_an_archive_of_another_log_is_not_gone_on_with(
    nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    last = replace(RECORDS[99], at=RECORDS[99].at + timedelta(hours=1))
    lines = [encode_record(record) + b"\n" for record in [*RECORDS[:99], last]]
    path = tmp_path / f"log-{1:019d}-{100:019d}.jsonl.gz"
    await asyncio.to_thread(path.write_bytes, gzip.compress(b"".join(lines)))
    async with kept(nc, subjects, share=0.6, archive=Archive(tmp_path)) as beside:
        with pytest.raises(ArchiveFailed, match="another log"):
            await beside.retention.tidy(beside.ledger)
        assert (await beside.log.extent()).first == 1
