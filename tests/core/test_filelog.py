"""The log in a file: torn lines, full disks, lost files, locks."""

# ruff: noqa: ASYNC240  what these tests look at is a small local file

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from events.filelog import FileLog, Fsync
from events.ids import START, Position
from events.log import (
    LogConflict,
    LogError,
    LogFull,
    LogLost,
    LogUnreadable,
    LogUnsettled,
    encode_record,
)
from tests.support.records import a_large_record, a_record, append, read_all, some_records
from tests.support.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """No file of this process grows beyond ``limit`` bytes: as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_the_file_is_a_line_of_json_for_each_record(path: Path) -> None:
    log = FileLog(path)
    await append(log, some_records(3), START)
    await log.close()
    assert path.read_bytes().splitlines() == [encode_record(r) for r in some_records(3)]


async def test_a_torn_line_is_put_aside_and_the_log_goes_on(path: Path) -> None:
    whole = b"".join(encode_record(r) + b"\n" for r in some_records(2))
    path.write_bytes(whole + b'{"v":1,"at":"20')
    log = FileLog(path)
    assert await read_all(log) == some_records(2)  # a reader changes nothing
    assert path.read_bytes() == whole + b'{"v":1,"at":"20'
    await append(log, [a_record(3)], 2)
    assert await read_all(log) == some_records(3)
    await log.close()
    assert path.with_name("events.jsonl.torn").read_bytes() == b'{"v":1,"at":"20\n'


async def test_a_file_torn_in_its_first_line_is_an_empty_log(path: Path) -> None:
    path.write_bytes(b"\x00\x00\x00")
    log = FileLog(path)
    assert await read_all(log) == []
    await append(log, [a_record(1)], START)
    assert await read_all(log) == [a_record(1)]
    await log.close()


async def test_an_unreadable_whole_line_is_not_repaired(path: Path) -> None:
    path.write_bytes(encode_record(a_record(1)) + b"\nrubbish\n" + encode_record(a_record(3)))
    before = path.read_bytes()
    log = FileLog(path)
    with pytest.raises(LogUnreadable) as caught:
        await read_all(log)
    await log.close()
    assert caught.value.facts["position"] == 2
    assert path.read_bytes() == before


async def test_one_process_at_a_time_writes(path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from events.filelog import FileLog\n"
        "from tests.support.records import a_record\n"
        "async def main():\n"
        "    log = FileLog(pathlib.Path(sys.argv[1]))\n"
        "    await log.append([a_record(1)], expected=0, timeout_s=10)\n"
        "    print('written', flush=True)\n"
        "    sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    log = FileLog(path)
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(path)),
        cwd=Path(__file__).parents[2],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert other.stdout is not None
    try:
        assert await asyncio.wait_for(other.stdout.readline(), 20) == b"written\n"
        assert await read_all(log) == [a_record(1)]
        with pytest.raises(LogConflict, match=f"pid {other.pid}"):
            await append(log, [a_record(2)], 1)
    finally:
        other.kill()
        await other.wait()
    await append(log, [a_record(2)], 1)  # its lock died with it
    assert await read_all(log) == some_records(2)
    await log.close()


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
async def test_a_full_disk_refuses_and_loses_nothing(path: Path, fsync: Fsync) -> None:
    log = FileLog(path, fsync=fsync)
    await append(log, some_records(3), START)
    size = path.stat().st_size
    with file_size_limit(size + 2_000):
        for _ in range(2):
            with pytest.raises(LogFull, match="takes no more"):
                await append(log, [a_record(4), a_large_record(10_000, 5)], 3)
            assert path.stat().st_size == size
        await append(log, [a_record(4)], 3)  # what fits is taken
    await append(log, [a_record(5)], 4)
    assert await read_all(log) == some_records(5)
    await log.close()
    fresh = FileLog(path)
    assert await read_all(fresh) == some_records(5)
    await fresh.close()


async def test_a_write_that_cant_be_taken_back_is_not_settled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileLog(path)
    await append(log, some_records(2), START)

    def refuse(file: int, length: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as broken, file_size_limit(path.stat().st_size + 20):
        broken.setattr(os, "ftruncate", refuse)
        with pytest.raises(LogUnsettled, match="can't be cut back"):
            await append(log, [a_record(3)], 2)
    assert path.stat().st_size > len(b"".join(encode_record(r) + b"\n" for r in some_records(2)))
    assert await read_all(log) == some_records(2)
    await append(log, [a_record(3)], 2)  # cut back now, before anything is added
    assert await read_all(log) == some_records(3)
    await log.close()


async def test_a_failed_sync_is_not_an_acknowledgement(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileLog(path)
    await append(log, some_records(2), START)

    def refuse(file: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        with pytest.raises(LogUnsettled):
            await append(log, [a_record(3)], 2)
    found = await read_all(log)
    await append(log, [a_record(9)], len(found))
    assert await read_all(log) == [*found, a_record(9)]
    await log.close()


async def test_a_sync_that_fails_later_is_told_at_the_next_append(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.filelog.FSYNC_INTERVAL_S", 0.05)
    log = FileLog(path, fsync="interval")
    await append(log, [a_record(1)], START)
    refused = 0

    def refuse(file: int) -> None:
        nonlocal refused
        refused += 1
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as broken:
        await append(log, [a_record(2)], 1)
        broken.setattr(os, "fdatasync", refuse)
        await until(lambda: refused > 0)
    with pytest.raises(LogUnsettled, match="may have lost its last records"):
        await append(log, [a_record(3)], 2)
    await append(log, [a_record(3)], len(await read_all(log)))
    await log.close()


async def test_an_append_that_takes_too_long_is_not_settled_and_may_be_read_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileLog(path)
    await append(log, [a_record(1)], START)

    slow = threading.Event()
    real = os.fdatasync

    def wait_first(file: int) -> None:
        slow.wait(20)
        real(file)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", wait_first)
        with pytest.raises(LogUnsettled, match="within 0.05 s"):
            await append(log, [a_record(2)], 1, timeout_s=0.05)
        slow.set()
    assert await read_all(log) == some_records(2)
    await append(log, [a_record(3)], 2)
    await log.close()


@pytest.mark.parametrize("what", ["removed", "replaced", "shortened"])
async def test_a_file_that_is_not_what_it_was_is_a_loss(path: Path, what: str) -> None:
    writer, reader = FileLog(path), FileLog(path)
    await append(writer, some_records(3), START)
    assert await read_all(reader) == some_records(3)
    data = path.read_bytes()
    if what == "removed":
        path.unlink()
    elif what == "replaced":
        (path.parent / "other").write_bytes(data)
        (path.parent / "other").rename(path)
    else:
        with path.open("r+b") as file:
            file.truncate(len(data) // 2)
    with pytest.raises(LogLost):
        await read_all(reader)
    with pytest.raises(LogLost):
        await append(writer, [a_record(4)], 3)
    await writer.close()
    await reader.close()


async def test_lines_added_behind_the_writers_back_are_a_conflict(path: Path) -> None:
    log = FileLog(path)
    await append(log, some_records(2), START)
    with path.open("ab") as file:
        file.write(encode_record(a_record(3)) + b"\n")
    with pytest.raises(LogConflict, match="ends at 3, not at 2"):
        await append(log, [a_record(4)], 2)
    await append(log, [a_record(4)], 3)
    assert await read_all(log) == some_records(4)
    await log.close()


async def test_a_path_that_cant_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = FileLog(tmp_path / "file" / "events.jsonl")
    with pytest.raises(LogUnsettled, match="can't be"):
        await append(log, [a_record(1)], START)
    await log.close()
    log = FileLog(tmp_path)
    with pytest.raises(LogUnsettled, match="can't be used"):
        await read_all(log)
    await log.close()


async def test_a_closed_log_says_so(path: Path) -> None:
    log = FileLog(path)
    await append(log, [a_record(1)], START)
    await log.close()
    await log.close()
    with pytest.raises(LogError, match="is closed"):
        await append(log, [a_record(2)], 1)
    with pytest.raises(LogError, match="is closed"):
        await read_all(log, Position(0))
