"""Recordings in files: rotation, limits, gaps, and that each can be played again."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from controller.recorder import FileRecorder
from controller.recordsettings import RecordSettings
from events.messages import QueryNodes
from schedulers.files import read_file, read_lines, replay_file
from schedulers.recording import Gap, Header, RecordingUnreadable
from tests.support.bench import Bench, running_bench
from tests.support.scripted import ScriptedNode
from tests.support.waiting import background, until


@asynccontextmanager
async def recording(settings: RecordSettings) -> AsyncIterator[tuple[Bench, FileRecorder]]:
    """An engine on one node, recorded into files."""
    recorder = FileRecorder(settings, version="1")
    bench = Bench(ScriptedNode("n1", slots=100))
    bench.engine.record(recorder)
    async with background(recorder.run()):
        try:
            await bench.open()
            yield bench, recorder
        finally:
            await bench.close()
            await recorder.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize("compress", [False, True])
async def test_a_recording_in_a_file_is_the_log(tmp_path: Path, compress: bool) -> None:
    settings = RecordSettings(folder=tmp_path / "r", compress=compress)
    async with recording(settings) as (bench, recorder):
        await bench.start("a", 2, env_vars={"HOME": "/h"})
        await bench.stop("a")
    (path,) = files(tmp_path / "r")
    assert path.name.endswith(".jsonl.gz" if compress else ".jsonl")
    played = replay_file(path)
    assert played.ledger.snapshot() == bench.engine.ledger.snapshot()
    assert played.records == [record async for batch in bench.log.read() for record in batch]
    assert recorder.stats.lines == len(list(read_lines(path)))
    assert recorder.stats.lost == 0


async def test_every_file_can_be_played_alone_and_all_of_them_as_one(tmp_path: Path) -> None:
    async with recording(RecordSettings(folder=tmp_path, file_bytes=2_000)) as (bench, _):
        for at in range(12):
            await bench.start(f"j{at}", 1)
    found = files(tmp_path)
    assert len(found) > 2
    whole = replay_file(*found)
    assert len(whole.stretches) == 1
    assert len(whole.records) == bench.engine.ledger.position
    tail = replay_file(found[-1])
    assert tail.stretches[0].after > 0
    assert tail.ledger.snapshot() == whole.ledger.snapshot() == bench.engine.ledger.snapshot()


async def test_the_oldest_files_go_first(tmp_path: Path) -> None:
    old = tmp_path / "20000101T000000000000-1-0001.jsonl"
    old.write_bytes(b"x" * 9_000)
    settings = RecordSettings(folder=tmp_path, compress=False, file_bytes=5_000, total_bytes=15_000)
    async with recording(settings) as (bench, recorder):
        for at in range(20):
            await bench.start(f"j{at}", 1)
    assert not old.exists()
    assert recorder.stats.files > len(files(tmp_path))
    assert sum(path.stat().st_size for path in files(tmp_path)) < 25_000


async def test_what_has_no_room_is_counted_and_leaves_a_gap(tmp_path: Path) -> None:
    settings = RecordSettings(folder=tmp_path, buffer_bytes=6_000)
    async with recording(settings) as (bench, recorder):
        await until(lambda: recorder.stats.lines > 0)
        await asyncio.gather(*(bench.start(f"j{at}", 1) for at in range(40)))
        assert recorder.stats.lost > 0
        await until(lambda: recorder.wants_opening)
        before = recorder.stats.lines
        await bench.engine.submit(QueryNodes())  # the first round with room again
        await until(lambda: recorder.stats.lines > before)
        await bench.stop("j0")
        assert len(bench.engine.ledger.jobs) == 40
    played = replay_file(*files(tmp_path))
    assert played.missing == recorder.stats.lost
    assert len(played.stretches) > 1
    assert played.ledger.snapshot() == bench.engine.ledger.snapshot()


async def test_a_disk_that_takes_nothing_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.write_text("a file where the folder should be")
    async with recording(RecordSettings(folder=folder)) as (bench, recorder):
        await until(lambda: recorder.stats.lost > 0)
        folder.unlink()
        await bench.start("a", 1)
        await until(lambda: recorder.stats.lines > 0)
        await bench.start("b", 1)
    played = replay_file(*files(folder))
    assert played.missing == recorder.stats.lost
    assert "b" in played.ledger.jobs


async def test_masked_values_are_in_no_file_and_it_still_plays(tmp_path: Path) -> None:
    settings = RecordSettings(folder=tmp_path, compress=False, file_bytes=3_000)
    async with recording(settings) as (bench, _):
        for at in range(6):
            await bench.start(f"j{at}", 1, env_vars={"DB_PASSWORD": "hunter2", "PLAIN": "seen"})
    text = b"".join(path.read_bytes() for path in files(tmp_path))
    assert b"hunter2" not in text
    assert b"seen" in text
    played = replay_file(*files(tmp_path))
    assert [(r.at, r.cause) for r in played.records] == [
        (r.at, r.cause) async for batch in bench.log.read() for r in batch
    ]


async def test_a_torn_end_is_left_out(tmp_path: Path) -> None:
    async with recording(RecordSettings(folder=tmp_path)) as (bench, _):
        await bench.start("a", 1)
    (path,) = files(tmp_path)
    whole = list(read_lines(path))
    path.write_bytes(path.read_bytes()[:-40])
    torn = list(read_lines(path))
    assert torn == whole[: len(torn)] != whole
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(b"\n".join(whole)[:-3])
    assert list(read_lines(plain)) == whole[:-1]
    assert replay_file(plain).stretches


async def test_files_that_are_no_recordings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"plain\n")
    with pytest.raises(RecordingUnreadable, match="is not gzip"):
        replay_file(tmp_path / "a.jsonl.gz")
    with pytest.raises(RecordingUnreadable, match="unzstd"):
        replay_file(tmp_path / "a.jsonl.zst")


async def test_an_exported_log_is_folded(tmp_path: Path) -> None:
    async with running_bench(ScriptedNode("n1")) as bench:
        await bench.start("a", 1)
    path = tmp_path / "log.jsonl.gz"
    with gzip.open(path, "wb") as file:
        async for batch in bench.log.read():
            file.writelines(msgspec.json.encode(record) + b"\n" for record in batch)
    assert replay_file(path).ledger.snapshot() == bench.engine.ledger.snapshot()


async def test_a_header_says_who_made_it(tmp_path: Path) -> None:
    async with recording(RecordSettings(folder=tmp_path)):
        pass
    header, *rest = read_file(files(tmp_path)[0])
    assert isinstance(header, Header)
    assert header.version == "1"
    assert not any(isinstance(line, Gap) for line in rest)
