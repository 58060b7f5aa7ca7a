"""What every event log promises, whatever it stores records in.

A ``Store`` is one place that outlives the logs opened on it; each test gets one of each
kind.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import nats.js.errors
import pytest
from msgspec import Raw
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.facts import CommandDone, Record, RunCreated
from events.filelog import FileLog
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.log import (
    READ_BATCH,
    EventLog,
    LogConflict,
    LogLost,
    LogUnreadable,
    MemoryLog,
    encode_record,
)
from events.subjects import Subjects
from tests.support.nats import connect
from tests.support.records import (
    BEGIN,
    EPOCH,
    a_large_record,
    a_record,
    append,
    read_all,
    some_records,
)


class Store(ABC):
    """Where logs of one kind keep their records."""

    def __init__(self) -> None:
        self.opened: list[EventLog] = []

    async def open(self) -> EventLog:
        """Another log on the same records."""
        log = await self._open()
        self.opened.append(log)
        return log

    @abstractmethod
    async def _open(self) -> EventLog: ...

    @abstractmethod
    async def put_line(self, line: bytes, position: int) -> None:
        """Writes a line behind the log's back."""

    async def close(self) -> None:
        for log in self.opened:
            await log.close()


class MemoryStore(Store):
    """One log, opened again and again: a process has no other."""

    def __init__(self) -> None:
        super().__init__()
        self._log = MemoryLog()

    async def _open(self) -> EventLog:
        return self._log

    async def put_line(self, line: bytes, position: int) -> None:
        self._log._lines.append(line)


class FileStore(Store):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def _open(self) -> EventLog:
        return FileLog(self._path)

    async def put_line(self, line: bytes, position: int) -> None:
        with self._path.open("ab") as file:
            file.write(line + b"\n")


class JetStreamStore(Store):
    """Each log on a connection of its own, as in another process."""

    def __init__(self, server: EmbeddedServer, subjects: Subjects) -> None:
        super().__init__()
        self._server = server
        self._subjects = subjects
        self._stack = AsyncExitStack()

    async def _connect(self) -> Client:
        client = await connect(self._server.url)
        self._stack.push_async_callback(client.close)
        return client

    async def _open(self) -> EventLog:
        return JetStreamLog(await self._connect(), self._subjects)

    async def put_line(self, line: bytes, position: int) -> None:
        js = (await self._connect()).jetstream()
        await js.publish(self._subjects.eventlog, line, headers={"Slotbus-Position": str(position)})

    async def close(self) -> None:
        await super().close()
        async with self._stack:
            js = (await self._connect()).jetstream()
            with suppress(nats.js.errors.NotFoundError):
                await js.delete_stream(self._subjects.log_stream)


@pytest.fixture(params=["memory", "file", "jetstream"])
async def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    nats_server: EmbeddedServer,
    subjects: Subjects,
) -> AsyncIterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "file":
        made = FileStore(tmp_path / "sub" / "events.jsonl")
    else:
        made = JetStreamStore(nats_server, subjects)
    yield made
    await made.close()


async def test_an_empty_log_has_nothing_to_read(store: Store) -> None:
    log = await store.open()
    assert await read_all(log) == []
    assert await read_all(log) == []


async def test_records_come_back_in_order_and_whole(store: Store) -> None:
    log = await store.open()
    end = await append(log, some_records(3), START)
    await append(log, some_records(2, first=4), end)
    assert await read_all(log) == some_records(5)
    assert await read_all(await store.open()) == some_records(5)


async def test_a_log_may_be_appended_to_without_having_been_read(store: Store) -> None:
    await append(await store.open(), some_records(2), START)
    for log in store.opened:
        await log.close()
    log = await store.open()
    await append(log, [a_record(3)], 2)
    assert await read_all(log) == some_records(3)


async def test_reading_goes_on_after_any_position(store: Store) -> None:
    log = await store.open()
    end = await append(log, some_records(3), START)
    end = await append(log, some_records(4, first=4), end)
    fresh = await store.open()
    for after in range(end + 1):
        for reader in (log, fresh):
            assert await read_all(reader, Position(after)) == some_records(end - after, after + 1)


async def test_reading_after_a_position_never_reached_is_a_loss(store: Store) -> None:
    log = await store.open()
    with pytest.raises(LogLost):
        await read_all(log, Position(1))
    await append(log, some_records(2), START)
    for reader in (log, await store.open()):
        with pytest.raises(LogLost, match="ends at 2"):
            await read_all(reader, Position(3))
        assert await read_all(reader, Position(2)) == []


async def test_an_append_at_a_wrong_position_stores_nothing(store: Store) -> None:
    log = await store.open()
    await append(log, some_records(2), START)
    for wrong in (0, 1, 3):
        with pytest.raises(LogConflict) as caught:
            await append(log, [a_record(9)], wrong)
        assert caught.value.facts == {"expected": wrong, "found": 2}
    assert await read_all(log) == some_records(2)
    await append(log, [a_record(3)], 2)  # and the log is as good as before
    assert await read_all(log) == some_records(3)


async def test_an_append_of_nothing_only_compares(store: Store) -> None:
    log = await store.open()
    await append(log, [], START)
    with pytest.raises(LogConflict):
        await append(log, [], 1)
    assert await read_all(log) == []


async def test_of_two_writers_one_wins(store: Store) -> None:
    first, second = await store.open(), await store.open()
    assert await read_all(first) == await read_all(second) == []
    await append(first, [a_record(1)], START)
    with pytest.raises(LogConflict):
        await append(second, [a_record(2)], START)
    await append(first, [a_record(3)], 1)
    assert await read_all(second) == await read_all(first) == [a_record(1), a_record(3)]


async def test_of_two_writers_at_once_one_wins(store: Store) -> None:
    writers = [await store.open() for _ in range(2)]
    results = await asyncio.gather(
        *(append(log, [a_record(number)], START) for number, log in enumerate(writers)),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["LogConflict", "int"]
    winner = [type(result) for result in results].index(int)
    assert await read_all(writers[0]) == [a_record(winner)]


async def test_a_later_writer_takes_over_and_the_old_one_notices(store: Store) -> None:
    old = await store.open()
    await append(old, some_records(2), START)
    await old.close()
    new = await store.open()
    records = await read_all(new)
    await append(new, [a_record(3)], len(records))
    assert await read_all(new) == some_records(3)


async def test_a_batch_larger_than_a_message_is_stored_in_order(store: Store) -> None:
    log = await store.open()
    records = [a_large_record(100_000, number) for number in range(12)]
    await append(log, records, START)
    await append(log, [a_record(13)], 12)
    assert await read_all(log) == [*records, a_record(13)]
    assert await read_all(await store.open(), Position(7)) == [*records[7:], a_record(13)]


async def test_a_record_may_be_larger_than_a_batch(store: Store) -> None:
    log = await store.open()
    records = [a_record(1), a_large_record(700_000, 2), a_record(3)]
    await append(log, records, START)
    assert await read_all(await store.open()) == records


async def test_many_records_come_in_bounded_batches(store: Store) -> None:
    log = await store.open()
    count = READ_BATCH * 2 + 500
    await append(log, some_records(count), START)
    sizes = [len(batch) async for batch in log.read()]
    assert sum(sizes) == count
    assert all(0 < size <= READ_BATCH for size in sizes)


async def test_text_of_any_kind_comes_back(store: Store) -> None:
    log = await store.open()
    nasty = 'zeile\nmit "\\\u2028\u2029\x00\x7f\r\n 漢字 🚀 \ud7ff'
    records = [a_record(1, cause=nasty), a_record(2, cause="next")]
    await append(log, records, START)
    assert await read_all(await store.open()) == records


async def test_a_program_written_over_several_lines_stays_one_record(store: Store) -> None:
    log = await store.open()
    record = Record(
        at=BEGIN,
        epoch=EPOCH,
        cause="start c-1",
        events=[
            RunCreated(
                job_id="j",
                run_id=1,
                command_id="c-1",
                slots=1,
                name="j",
                hash="",
                deadline=BEGIN,
                program=Raw(b'{\n  "a": [1,\r\n 2],\n "b": "\\n"\n}'),
            )
        ],
    )
    await append(log, [record, a_record(2)], START)
    first, second = await read_all(await store.open())
    assert second == a_record(2)
    created = first.events[0]
    assert isinstance(created, RunCreated)
    assert msgspec.json.decode(created.program) == {"a": [1, 2], "b": "\n"}


async def test_any_reply_comes_back(store: Store) -> None:
    log = await store.open()
    reply = {"workers": [{"slots": 2**63 - 1, "f": 0.1}], "error": None, "t": "ä"}
    done = CommandDone(command_id="c", ok=True, reply=reply)
    record = Record(at=BEGIN, epoch=EPOCH, cause="start c", events=[done])
    await append(log, [record], START)
    assert await read_all(await store.open()) == [record]


async def test_a_reader_beside_the_writer_sees_a_prefix(store: Store) -> None:
    writer, reader = await store.open(), await store.open()
    total = 60
    written = asyncio.Event()

    async def write() -> None:
        end: int = START
        while end < total:
            end = await append(writer, some_records(3, first=end + 1), end)
        written.set()

    async def watch() -> None:
        seen = 0
        while seen < total:
            more = await read_all(reader, Position(seen))
            assert more == some_records(len(more), first=seen + 1)
            seen += len(more)
            if not more:
                await asyncio.wait({waiting}, timeout=0.01)

    async with asyncio.timeout(30):
        waiting = asyncio.create_task(written.wait())
        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(watch())
        await waiting
    assert await read_all(writer) == some_records(total)


async def test_a_read_ends_at_the_end_found_at_its_call(store: Store) -> None:
    log = await store.open()
    end = await append(log, some_records(READ_BATCH * 2), START)
    seen = 0
    async for batch in log.read():
        if not seen:
            await append(log, [a_record(end + 1)], end)
        seen += len(batch)
    assert seen == end


async def test_a_reader_may_stop_in_the_middle(store: Store) -> None:
    log = await store.open()
    await append(log, some_records(READ_BATCH * 2), START)
    reading = log.read()
    assert (await anext(reading))[0] == a_record(1)
    await reading.aclose()
    await append(log, [a_record(1)], READ_BATCH * 2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "can't be read"),
        (b"", "can't be read"),
        (b"\xff\xfe", "can't be read"),
        (b"[" * 5_000, "can't be read"),
        (b'{"v":1,"at":"2026-01-01T00:00:00Z","epoch":1,"cause":"x"}', "events"),
        (
            b'{"v":1,"at":"2026-01-01T00:00:00Z","epoch":1,"cause":"x","events":[{"type":'
            b'"command_done","command_id":"c","ok":true,"reply":' + b"[" * 100_000,
            "can't be read",
        ),
        (
            b'{"v":1,"at":"2026-01-01T00:00:00Z","epoch":1,"cause":"x","events":[{"type":"?"}]}',
            "Invalid value",
        ),
        (b'{"v":99,"at":"2026-01-01T00:00:00Z","epoch":1,"cause":"x","events":[]}', "upgrade"),
        (
            b'{"v":99,"at":"2026-01-01T00:00:00Z","epoch":1,"cause":"x",'
            b'"events":[{"type":"from_the_future"}]}',
            "upgrade",
        ),
    ],
)
async def test_an_unreadable_record_is_named(store: Store, line: bytes, why: str) -> None:
    log = await store.open()
    await append(log, some_records(2), START)
    await store.put_line(line, 3)
    reader = await store.open()
    with pytest.raises(LogUnreadable, match=why) as caught:
        await read_all(reader)
    assert caught.value.facts["position"] == 3


async def test_fields_of_a_newer_version_are_passed_over(store: Store) -> None:
    log = await store.open()
    await append(log, [a_record(1)], START)
    line = encode_record(a_record(2))
    await store.put_line(b'{"new_field":[1],' + line[1:], 2)
    assert await read_all(await store.open()) == some_records(2)
