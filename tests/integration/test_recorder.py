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
from events.errors import UnknownNode
from events.queries import QueryNodes
from events.traffic import HeartbeatNodeReq
from schedulers.files import FileLines, read_file, replay_file
from schedulers.packing import Packing, create
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


ENDS = (b"\n{", b"}\n")
"""Cut there, a file of plain lines is whole."""


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize("packing", Packing)
async def test_a_recording_in_a_file_is_the_log(tmp_path: Path, packing: Packing) -> None:
    settings = RecordSettings(folder=tmp_path / "r", packing=packing)
    async with recording(settings) as (bench, recorder):
        await bench.start("a", 2, env_vars={"HOME": "/h"})
        await bench.stop("a")
    (path,) = files(tmp_path / "r")
    assert path.name.endswith(f".jsonl{packing.suffix}")
    played = replay_file(path)
    assert played.ledger.snapshot() == bench.engine.ledger.snapshot()
    assert played.records == [record async for batch in bench.log.read() for record in batch]
    assert recorder.stats.lines == len(list(FileLines(path)))
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
    settings = RecordSettings(
        folder=tmp_path, packing=Packing.NONE, file_bytes=5_000, total_bytes=15_000
    )
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
    settings = RecordSettings(folder=tmp_path, packing=Packing.NONE, file_bytes=3_000)
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


@pytest.mark.parametrize("packing", Packing)
async def test_of_a_file_without_its_end_all_whole_lines_are_read_and_it_is_said(
    tmp_path: Path, packing: Packing
) -> None:
    """As of a writer that was killed: at whatever byte."""
    settings = RecordSettings(folder=tmp_path, packing=packing)
    async with recording(settings) as (bench, recorder):
        for job in ("a", "b", "c"):
            before = recorder.stats.lines
            await bench.start(job, 1)
            await until(lambda before=before: recorder.stats.lines > before)  # type: ignore[misc]
    (path,) = files(tmp_path)
    whole = list(FileLines(path))
    data = path.read_bytes()
    assert replay_file(path).torn == []
    for end in range(1, len(data), 37):
        path.write_bytes(data[:end])
        lines = FileLines(path)
        read = list(lines)
        assert read == whole[: len(read)]
        assert lines.torn or (packing is Packing.NONE and data[end - 1 : end + 1] in ENDS)
    path.write_bytes(data[:-9])
    played = replay_file(path)
    (said,) = played.torn
    assert said.startswith(f"{path.name} ends in the middle of something after line ")


async def test_a_writer_that_is_at_work_is_read_up_to_its_last_line(tmp_path: Path) -> None:
    for packing in Packing:
        path = tmp_path / f"a.jsonl{packing.suffix}"
        with create(path) as file:
            file.write(b'{"a":1}\n')
            file.flush()
            assert list(FileLines(path)) == [b'{"a":1}']
        lines = FileLines(path)
        assert list(lines) == [b'{"a":1}']
        assert not lines.torn


@pytest.mark.parametrize("packing", Packing)
async def test_files_put_together_are_one(tmp_path: Path, packing: Packing) -> None:
    """``cat a.jsonl.zst b.jsonl.zst``."""
    parts = [tmp_path / f"{name}.jsonl{packing.suffix}" for name in "ab"]
    for part in parts:
        with create(part) as file:
            file.write(part.name.encode() + b"\n")
    joined = tmp_path / f"c{packing.suffix}"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    lines = FileLines(joined)
    assert list(lines) == [part.name.encode() for part in parts]
    assert not lines.torn


async def test_a_last_line_without_its_end_is_whole_if_it_is_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":2}')
    lines = FileLines(path)
    assert list(lines) == [b'{"a":1}', b'{"b":2}']
    assert not lines.torn


async def test_files_that_are_no_recordings_are_refused(tmp_path: Path) -> None:
    for name, kind in (("a.jsonl.gz", "gzip"), ("a.jsonl.zst", "zstd")):
        (tmp_path / name).write_bytes(b"plain\n")
        with pytest.raises(RecordingUnreadable, match=f"{name} is not {kind}"):
            replay_file(tmp_path / name)


async def test_lines_that_are_no_json_leave_a_gap_until_the_next_opening(tmp_path: Path) -> None:
    async with recording(RecordSettings(folder=tmp_path)) as (bench, recorder):
        await bench.start("a", 1)
        with pytest.raises(UnknownNode):
            await bench.engine.submit(HeartbeatNodeReq(node_id="n1", incarnation="\ud800"))
        await until(lambda: recorder.stats.lost == 1)
        await until(lambda: recorder.wants_opening)
        await bench.start("b", 1)
        await bench.stop("a")
    played = replay_file(*files(tmp_path))
    assert played.missing >= 1
    assert "is no JSON" in played.gaps[0]
    assert played.ledger.snapshot() == bench.engine.ledger.snapshot()


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
