"""Recordings played again, and how a replay shows that it is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from events.errors import Internal, Invalid
from events.facts import Record
from events.messages import StartPipelineReq
from schedulers import replay
from schedulers.recorders import MemoryRecorder
from schedulers.recording import (
    Entered,
    Gap,
    Header,
    Opening,
    RecordingUnreadable,
    Stored,
    decode_line,
    decode_lines,
    encode_line,
    message_of,
)
from schedulers.replaying import Diverged, Player
from tests.support.bench import Bench
from tests.support.scripted import ScriptedNode, refused
from tests.support.story import DAWN

pytestmark = pytest.mark.looptime


async def recorded(act: Callable[[Bench], Awaitable[None]]) -> tuple[Bench, MemoryRecorder]:
    """What an engine on two nodes of four slots was told while ``act`` ran."""
    recorder = MemoryRecorder()
    bench = Bench(ScriptedNode("n1"), ScriptedNode("n2"))
    bench.engine.record(recorder)
    try:
        await bench.open()
        await act(bench)
    finally:
        await bench.close()
    return bench, recorder


async def a_life(bench: Bench) -> None:
    """Starts, a refused launch, an expiry, a stop."""
    bench.nodes["n1"].turns.append(refused("no room on the disk"))
    await bench.start("a", 2)
    await bench.start("b", 3)
    bench.nodes["n1"].silent = True
    await asyncio.sleep(40)
    await bench.stop("a")


async def written(bench: Bench) -> list[Record]:
    return [record async for batch in bench.log.read() for record in batch]


async def test_a_replay_gives_the_log_byte_for_byte() -> None:
    bench, recorder = await recorded(a_life)
    played = replay(recorder.recording())
    records = await written(bench)
    assert [msgspec.json.encode(r) for r in played.records] == [
        msgspec.json.encode(r) for r in records
    ]
    assert played.ledger.snapshot() == bench.engine.ledger.snapshot()
    assert played.pulse.beats == bench.engine.pulse.beats
    assert played.pulse.due == bench.engine.pulse.due
    assert played.stretches[-1].ended == ""
    assert played.position == len(records)


async def test_a_log_alone_gives_the_ledger_and_a_full_term_for_every_node() -> None:
    bench, _ = await recorded(a_life)
    records = await written(bench)
    played = replay(records)
    assert played.ledger.snapshot() == bench.engine.ledger.snapshot()
    assert played.records == records
    assert [*played.pulse.beats] == ["n2"]
    assert played.pulse.beats["n2"].last_seen == records[-1].at


async def test_each_leadership_is_a_stretch_of_its_own() -> None:
    first, recorder = await recorded(a_life)
    again = Bench(ScriptedNode("n3"), log=first.log)
    again.engine.record(recorder)
    recorder.add(Gap(count=3, reason="a test"))
    await again.open()
    await again.close()
    played = replay(recorder.recording())
    assert [stretch.ended for stretch in played.stretches] == ["", ""]
    assert played.stretches[1].after == played.stretches[0].position
    assert played.missing == 3
    assert played.records == await written(first)


async def test_another_decision_than_the_leaders_is_found() -> None:
    _, recorder = await recorded(a_life)
    lines = recorder.recording()
    at = next(i for i, line in enumerate(lines) if isinstance(line, Entered) and _starts(line, "a"))
    entry = lines[at]
    assert isinstance(entry, Entered)
    lines[at] = msgspec.structs.replace(entry, token="another")
    with pytest.raises(Diverged, match="the replay decided otherwise: start"):
        replay(lines)


async def test_a_missing_entry_is_found() -> None:
    _, recorder = await recorded(a_life)
    lines = [
        line
        for line in recorder.recording()
        if not (isinstance(line, Entered) and _starts(line, "b"))
    ]
    with pytest.raises(Diverged, match="the replay decided otherwise: nothing"):
        replay(lines)


async def test_a_second_opening_must_be_what_the_replay_knows() -> None:
    _, recorder = await recorded(a_life)
    lines = recorder.recording()
    opening = lines[1]
    assert isinstance(opening, Opening)
    cut = next(i for i, line in enumerate(lines) if isinstance(line, Stored))
    wrong = msgspec.structs.replace(opening, position=1)
    with pytest.raises(Diverged, match="at record 1 the replayed ledger is not the leader's"):
        replay([*lines[: cut + 1], wrong])


async def test_what_follows_a_gap_is_left_out_until_there_is_an_opening() -> None:
    _, recorder = await recorded(a_life)
    lines = recorder.recording()
    cut = next(i for i, line in enumerate(lines) if isinstance(line, Stored))
    left_out = lines[cut + 5 :]
    played = replay([*lines[: cut + 1], Gap(count=9, reason="full"), *left_out])
    assert played.missing == 9 + sum(isinstance(line, Entered) for line in left_out)
    assert played.gaps == ["full"]
    assert len(played.records) == 1


async def test_what_the_backend_objected_to_is_part_of_the_recording() -> None:
    def check(request: StartPipelineReq) -> None:
        raise Invalid("not on this backend", path="$.slots")

    recorder = MemoryRecorder()
    bench = Bench(ScriptedNode("n1"))
    bench.engine.backend = msgspec.structs.replace(bench.engine.backend, check=check)
    bench.engine.record(recorder)
    await bench.open()
    with pytest.raises(Invalid, match="not on this backend"):
        await bench.start("a", 1)
    await bench.close()
    played = replay(recorder.recording())
    assert played.ledger.commands == {}
    assert len(played.records) == bench.engine.ledger.position


async def test_a_message_that_is_no_json_leaves_a_gap_and_the_rest_is_recorded() -> None:
    async def act(bench: Bench) -> None:
        with pytest.raises(Internal):
            await bench.engine.submit(StartPipelineReq(job_id="j", slots=1, program={1j: 2}))
        await bench.start("k", 1)

    _, recorder = await recorded(act)
    played = replay(recorder.recording())
    assert played.missing == 1
    assert "k" in played.ledger.jobs


async def test_a_player_tells_each_record_as_it_is_stored() -> None:
    bench, recorder = await recorded(a_life)
    heard: list[Record] = []
    player = Player(watch=lambda _, record: heard.append(record))
    for line in recorder.recording():
        player.play(line)
    assert heard == await written(bench)


def test_unknown_messages_and_newer_formats_are_refused_with_the_line() -> None:
    with pytest.raises(RecordingUnreadable, match="line 3 of the recording can't be read"):
        decode_line(b'{"line":"entry"}', 3)
    with pytest.raises(RecordingUnreadable, match="has format 99"):
        decode_line(b'{"line":"recording","v":99}', 1)
    entry = decode_line(
        b'{"line":"entry","at":"2026-01-01T00:00:00Z","token":"t","kind":"Tock","message":{}}', 1
    )
    assert isinstance(entry, Entered)
    with pytest.raises(RecordingUnreadable, match="no message is called Tock"):
        message_of(entry)
    with pytest.raises(RecordingUnreadable, match="a Launched can't be read"):
        message_of(msgspec.structs.replace(entry, kind="Launched"))


def test_a_line_stays_one_line() -> None:
    entry = Entered(at=DAWN, token="t", kind="Tick", message=msgspec.Raw(b"{\n}"))
    assert encode_line(entry).count(b"\n") == 0
    assert decode_lines([encode_line(Header()), b""]) == [Header()]


def _starts(line: Entered, job_id: str) -> bool:
    message = message_of(line)
    return isinstance(message, StartPipelineReq) and message.job_id == job_id


async def test_records_and_lines_do_not_mix() -> None:
    bench, recorder = await recorded(a_life)
    mixed: list[Any] = [*await written(bench), *recorder.recording()]
    with pytest.raises(Invalid, match="mixed"):
        replay(mixed)
