"""What every place of snapshots promises, and what a start makes of what it finds there."""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog.testing
from msgspec.structs import replace
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.facts import Record
from events.filesnapshots import SUFFIX, FileSnapshots
from events.ids import START, Position
from events.jetstream_snapshots import CHUNKS_HEADER, JetStreamSnapshots
from events.ledger import Ledger
from events.log import LogUnsettled, MemoryLog
from events.recall import LogBeheaded, recall
from events.snapshots import (
    MemorySnapshots,
    Snapshot,
    SnapshotFailed,
    SnapshotStore,
    SnapshotUnreadable,
    encode_head,
    restore,
    take,
)
from events.subjects import Subjects
from tests.support.lives import a_life
from tests.support.nats import connected
from tests.support.records import Beheaded, append

RECORDS = a_life(jobs=12)


class Shelf(ABC):
    """A place of one kind, and ways to do harm to what is in it."""

    @abstractmethod
    def open(self) -> SnapshotStore:
        """The store, as another process sees it."""

    @abstractmethod
    async def tear(self, position: Position) -> None:
        """Leaves a snapshot as a writer does that died in the middle."""

    @abstractmethod
    async def spoil(self, position: Position) -> None:
        """Changes a byte of its data."""


class MemoryShelf(Shelf):
    def __init__(self) -> None:
        self._store = MemorySnapshots()

    def open(self) -> SnapshotStore:
        return self._store

    async def tear(self, position: Position) -> None:
        whole = self._store.kept[position]
        self._store.kept[position] = replace(whole, data=whole.data[: len(whole.data) // 2])

    async def spoil(self, position: Position) -> None:
        whole = self._store.kept[position]
        self._store.kept[position] = replace(whole, data=spoilt(whole.data))


class FileShelf(Shelf):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> SnapshotStore:
        return FileSnapshots(self._folder)

    def _path(self, position: Position) -> Path:
        return self._folder / f"{position:019d}{SUFFIX}"

    async def tear(self, position: Position) -> None:
        path = self._path(position)
        path.write_bytes(path.read_bytes()[:200])

    async def spoil(self, position: Position) -> None:
        path = self._path(position)
        path.write_bytes(spoilt(path.read_bytes()))


class JetStreamShelf(Shelf):
    def __init__(self, nc: Client, subjects: Subjects) -> None:
        self._nc, self._subjects = nc, subjects

    def open(self) -> SnapshotStore:
        return JetStreamSnapshots(self._nc, self._subjects)

    async def tear(self, position: Position) -> None:
        whole = await self.open().load(position)
        await self.open().drop(position)
        await self._nc.jetstream().publish(self._subjects.snapshot(position), whole.data)

    async def spoil(self, position: Position) -> None:
        whole = await self.open().load(position)
        await self.open().drop(position)
        subject, js = self._subjects.snapshot(position), self._nc.jetstream()
        await js.publish(subject, spoilt(whole.data))
        await js.publish(subject, encode_head(whole.head), headers={CHUNKS_HEADER: "1"})


def spoilt(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.fixture(params=["memory", "file", "jetstream"])
async def shelf(
    request: pytest.FixtureRequest, tmp_path: Path, nc: Client, subjects: Subjects
) -> AsyncIterator[Shelf]:
    match request.param:
        case "memory":
            yield MemoryShelf()
        case "file":
            yield FileShelf(tmp_path / "log.jsonl.snapshots")
        case _:
            yield JetStreamShelf(nc, subjects)


def ledger_after(count: int) -> Ledger:
    ledger = Ledger()
    for record in RECORDS[:count]:
        ledger.apply(record)
    return ledger


async def a_log(records: list[Record] = RECORDS) -> MemoryLog:
    log = MemoryLog()
    await append(log, records, 0)
    return log


WHOLE = ledger_after(len(RECORDS)).snapshot()


async def fill(store: SnapshotStore, *positions: int) -> None:
    for position in positions:
        await store.keep(take(ledger_after(position)))


async def test_what_was_kept_is_there_and_the_same(shelf: Shelf) -> None:
    store = shelf.open()
    assert await store.positions() == []
    await fill(store, 20, 9, 30)
    assert await shelf.open().positions() == [9, 20, 30]
    for position in (9, 20, 30):
        found = await shelf.open().load(Position(position))
        assert found.head == await store.head(Position(position))
        assert restore(found).snapshot() == ledger_after(position).snapshot()
    await store.drop(Position(20))
    await store.drop(Position(20))
    assert await store.positions() == [9, 30]
    with pytest.raises(SnapshotUnreadable, match="gone"):
        await store.load(Position(20))


async def test_one_at_the_same_position_takes_the_place_of_the_other(shelf: Shelf) -> None:
    store = shelf.open()
    await fill(store, 9)
    await shelf.tear(Position(9))
    with pytest.raises(SnapshotUnreadable):
        restore(await store.load(Position(9)))
    await fill(store, 9, 9)
    assert await store.positions() == [9]
    assert restore(await store.load(Position(9))).position == 9


async def test_a_start_reads_the_newest_and_what_follows_it(shelf: Shelf) -> None:
    await fill(shelf.open(), 9, 30)
    found = await recall(await a_log(), shelf.open())
    assert (found.base, found.ledger.snapshot()) == (30, WHOLE)


async def test_torn_and_spoilt_ones_are_passed_over_with_a_word(shelf: Shelf) -> None:
    await fill(shelf.open(), 9, 20, 30)
    await shelf.tear(Position(30))
    await shelf.spoil(Position(20))
    with structlog.testing.capture_logs() as said:
        found = await recall(await a_log(), shelf.open())
    assert (found.base, found.ledger.snapshot()) == (9, WHOLE)
    assert [each["position"] for each in said] == [30, 20]
    await shelf.spoil(Position(9))
    found = await recall(await a_log(), shelf.open())
    assert (found.base, found.ledger.snapshot()) == (START, WHOLE)


async def test_one_that_is_newer_than_the_log_is_passed_over_as_an_error(shelf: Shelf) -> None:
    await fill(shelf.open(), 9, 30)
    with structlog.testing.capture_logs() as said:
        found = await recall(await a_log(RECORDS[:29]), shelf.open())
    assert (found.base, found.ledger.snapshot()) == (9, ledger_after(29).snapshot())
    assert [(each["log_level"], each["position"]) for each in said] == [("error", 30)]


async def test_one_of_another_past_is_passed_over_as_an_error(shelf: Shelf) -> None:
    """The log lost its end, and another leader wrote on beyond where it ended before."""
    await fill(shelf.open(), 9, 30)
    later = [replace(record, epoch=record.epoch + 1) for record in RECORDS[25:]]
    log = await a_log([*RECORDS[:25], *later])
    with structlog.testing.capture_logs() as said:
        found = await recall(log, shelf.open())
    assert (found.base, found.ledger.position) == (9, len(RECORDS))
    assert [(each["log_level"], each["position"]) for each in said] == [("error", 30)]


async def beheaded() -> MemoryLog:
    log = Beheaded()
    await append(log, RECORDS, 0)
    return log


async def test_behind_a_purge_only_a_snapshot_helps(shelf: Shelf) -> None:
    await fill(shelf.open(), 9, 20, 30)
    found = await recall(await beheaded(), shelf.open())
    assert (found.base, found.ledger.snapshot()) == (30, WHOLE)
    await shelf.open().drop(Position(30))
    found = await recall(await beheaded(), shelf.open())
    assert (found.base, found.ledger.snapshot()) == (20, WHOLE)
    await shelf.spoil(Position(20))
    with pytest.raises(LogBeheaded, match="begins at record 20.*backup") as refused:
        await recall(await beheaded(), shelf.open())
    assert refused.value.facts["first"] == 20


async def test_a_log_that_cant_be_reached_is_no_reason_to_pass_over(shelf: Shelf) -> None:
    class Away(MemoryLog):
        async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
            if after >= START:
                raise LogUnsettled("away")
            yield []

    await fill(shelf.open(), 9)
    with pytest.raises(LogUnsettled):
        await recall(Away(), shelf.open())


async def test_what_a_newer_slotbus_kept_is_passed_over(shelf: Shelf) -> None:
    newer = take(ledger_after(30))
    await fill(shelf.open(), 9)
    await shelf.open().keep(replace(newer, head=replace(newer.head, v=2)))
    with structlog.testing.capture_logs() as said:
        assert (await recall(await a_log(), shelf.open())).base == 9
    assert "upgrade" in said[0]["cause"]


async def test_other_bytes_than_its_digest_says_are_refused(shelf: Shelf) -> None:
    """Whole, and packed as it should be: only the digest knows."""
    whole = take(ledger_after(30))
    other = ledger_after(30).snapshot().replace(b"job-000001", b"job-000009")
    await shelf.open().keep(Snapshot(head=whole.head, data=zlib.compress(other, 1)))
    with pytest.raises(SnapshotUnreadable, match="digest"):
        restore(await shelf.open().load(Position(30)))


# --- of one kind alone ------------------------------------------------------------------------


async def test_a_large_one_travels_in_several_messages(nc: Client, subjects: Subjects) -> None:
    store = JetStreamSnapshots(nc, subjects)
    small = take(ledger_after(9))
    data = bytes(msgspec.json.encode(list(range(400_000))))
    await store.keep(Snapshot(head=small.head, data=data))
    info = await nc.jetstream().stream_info(subjects.snapshot_stream)
    assert info.state.messages == len(data) // (512 * 1024) + 2
    assert (await store.load(Position(9))).data == data
    await nc.jetstream().delete_msg(subjects.snapshot_stream, 2)
    with pytest.raises(SnapshotUnreadable, match="some of its messages are gone"):
        await store.load(Position(9))


async def test_of_two_writers_one_is_refused(
    nc: Client, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = JetStreamSnapshots(nc, subjects), JetStreamSnapshots(nc, subjects)
    publish = one._publish

    async def overtaken(subject: str, body: bytes, headers: dict[str, str], last: int) -> int:
        monkeypatch.setattr(one, "_publish", publish)
        await fill(other, 20)
        return await publish(subject, body, headers, last)

    monkeypatch.setattr(one, "_publish", overtaken)
    with pytest.raises(SnapshotFailed, match="wrong last sequence"):
        await fill(one, 30)
    assert await one.positions() == [20]


async def test_without_a_server_it_fails_in_time(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(own_nats_server.url) as nc:
        store = JetStreamSnapshots(nc, subjects, timeout_s=0.3)
        await fill(store, 9)
        await own_nats_server.stop()
        for work in (store.positions(), store.load(Position(9)), store.drop(Position(9))):
            with pytest.raises(SnapshotFailed):
                await work
        with pytest.raises(SnapshotFailed):
            await fill(store, 30)


async def test_a_disk_that_takes_nothing_leaves_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileSnapshots(tmp_path)
    await fill(store, 9)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("events.wholefiles.os.fsync", full)
    with pytest.raises(SnapshotFailed, match="No space"):
        await fill(store, 30)
    assert await store.positions() == [9]
    assert [Path(name).suffix for name in os.listdir(tmp_path)] == [SUFFIX]  # noqa: PTH208
