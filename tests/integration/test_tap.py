"""Recording from outside, on a real NATS server: what was recorded leads to the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller import tap as tapping
from controller.recordsettings import MIB, RecordSettings
from controller.tap import InboxTap
from events.asking import NoController
from events.client import SlotbusClient
from events.errors import Invalid, Overloaded
from events.log import encode_record
from events.subjects import Subjects
from events.tap import InboxPiece, TapInbox
from schedulers.files import read_file, replay_file
from schedulers.recording import Gap, Header, Opening
from schedulers.replaying import Replayed
from tests.support.bench import Bench
from tests.support.recordings import Recording, files, knows, reached, recording
from tests.support.scripted import ScriptedNode
from tests.support.waiting import background, until

EPOCH = 5
MASK = ("env_vars.*password*",)


class TappedBench(Bench):
    tap: InboxTap


@asynccontextmanager
async def tapped_bench(
    nc: Client, subjects: Subjects, *, buffer_bytes: int = MIB
) -> AsyncIterator[TappedBench]:
    bench = TappedBench(ScriptedNode("n1", slots=5_000))
    bench.tap = InboxTap(
        nc,
        subjects,
        mask=MASK,
        version="1.2.3",
        may_answer=lambda: True,
        poke=bench.engine.offer,
        buffer_bytes=buffer_bytes,
    )
    bench.engine.record(bench.tap)
    async with background(bench.tap.run()):
        await bench.tap.open(EPOCH)
        try:
            await bench.open()
            yield bench
        finally:
            await bench.close()
            await bench.tap.close()


@pytest.fixture
async def bench(nc: Client, subjects: Subjects) -> AsyncIterator[TappedBench]:
    """An engine on one node, with a tap."""
    async with tapped_bench(nc, subjects) as made:
        yield made


async def same_as_log(bench: Bench, path: Path) -> Replayed:
    """Plays it, and compares each stretch with the log."""
    played = replay_file(path)
    written = [encode_record(r) async for batch in bench.log.read() for r in batch]
    for stretch in played.stretches:
        again = [encode_record(record) for record in stretch.records]
        assert again == written[stretch.after : stretch.position]
    return played


async def test_what_is_recorded_from_outside_is_the_log(
    bench: TappedBench, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    await bench.start("before", 1)
    path = tmp_path / "a.jsonl.zst"
    async with recording(nc, subjects, path) as made:
        await bench.start("a", 2)
        await bench.stop("a")
        end = bench.engine.ledger.position
        await until(lambda: reached(path, end))
    played = await same_as_log(bench, path)
    assert played.ledger.snapshot() == bench.engine.ledger.snapshot()
    assert (played.position, played.missing, made.outside.stats.lost) == (end, 0, 0)
    header, opening, *_ = read_file(path)
    assert isinstance(header, Header)
    assert (header.version, header.masked) == ("1.2.3", list(MASK))
    assert isinstance(opening, Opening)
    assert made.said == []


async def test_what_happened_right_before_the_end_is_there(
    bench: TappedBench, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    async with recording(nc, subjects, path):
        await bench.start("a", 1)
        end = bench.engine.ledger.position
    assert reached(path, end)


async def test_while_nobody_asks_nothing_is_published_and_a_dead_recorder_is_forgotten(
    bench: TappedBench, nc: Client, subjects: Subjects
) -> None:
    heard: list[InboxPiece] = []

    async def hear(message: Msg) -> None:
        heard.append(msgspec.json.decode(message.data, type=InboxPiece))

    await nc.subscribe(subjects.inbox, cb=hear)
    await bench.start("a", 1)
    await nc.flush()
    assert heard == []
    assert not bench.tap.listens
    request = msgspec.json.encode(TapInbox(tap_id="dies", hold_s=0.2))
    await nc.request(subjects.tap, request)
    await bench.start("b", 1)
    await until(lambda: len(heard) > 0)
    await until(lambda: not bench.tap.listens)
    before = len(heard)
    await bench.start("c", 1)
    await nc.flush()
    assert len(heard) == before


async def test_a_second_recorder_begins_with_an_opening_and_the_first_goes_on(
    bench: TappedBench, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl.gz"
    async with recording(nc, subjects, first):
        await bench.start("a", 1)
        async with recording(nc, subjects, second):
            await bench.start("b", 1)
            await until(lambda: knows(second, "b"))
        await bench.start("c", 1)
        end = bench.engine.ledger.position
        await until(lambda: reached(first, end))
    both = [await same_as_log(bench, path) for path in (first, second)]
    assert [played.missing for played in both] == [0, 0]
    assert len(both[0].stretches) == 1  # the other's opening is compared, not begun anew with
    assert {"a", "b"} <= both[1].ledger.jobs.keys()


async def test_a_large_ledger_comes_in_parts(
    nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    async with tapped_bench(nc, subjects) as bench:
        for at in range(5):
            await bench.start(f"j{at}", 1, program={"blob": "ä" * 200_000})
        path = tmp_path / "a.jsonl.zst"
        async with recording(nc, subjects, path):
            await bench.stop("j0")
            end = bench.engine.ledger.position
            await until(lambda: reached(path, end))
        played = await same_as_log(bench, path)
    assert len(bench.engine.ledger.snapshot()) > 2_000_000
    assert played.missing == 0


async def test_what_gets_lost_on_the_way_is_a_gap_after_which_it_goes_on(
    bench: TappedBench,
    nc: Client,
    subjects: Subjects,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "a.jsonl"
    lose = False
    publish = nc.publish

    async def losing(subject: str, *arguments: object, **named: object) -> None:
        if not (lose and subject == subjects.inbox):
            await publish(subject, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(nc, "publish", losing)
    async with recording(nc, subjects, path) as made:
        await bench.start("a", 1)
        await until(lambda: knows(path, "a"))
        lose, before = True, bench.tap.stats.lines
        await bench.start("b", 1)
        await until(lambda: bench.tap.stats.lines > before)
        lose = False
        await bench.start("c", 1)
        await until(lambda: knows(path, "c"))
    played = await same_as_log(bench, path)
    gaps = [line for line in read_file(path) if isinstance(line, Gap)]
    assert played.missing == made.outside.stats.lost == sum(gap.count for gap in gaps) > 0
    assert played.gaps == ["messages were lost between the leader and the recorder"]
    assert any("a gap, " in text for text in made.said)
    assert "b" in played.ledger.jobs


async def test_a_full_buffer_drops_and_says_so_and_the_engine_never_waits(
    nc: Client, subjects: Subjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tapping, "GATHER_S", 0.3)
    async with tapped_bench(nc, subjects, buffer_bytes=20_000) as bench:
        path = tmp_path / "a.jsonl"
        async with recording(nc, subjects, path) as made:
            await asyncio.gather(*(bench.start(f"j{at}", 1) for at in range(200)))
            assert bench.tap.stats.lost > 0
            await until(lambda: bench.tap.wants_opening)
            await bench.start("after", 1)
            await bench.stop("after")
            await until(lambda: knows(path, "after"))
        played = await same_as_log(bench, path)
    assert "NATS is too slow" in played.gaps
    assert 0 < played.missing == made.outside.stats.lost
    assert len(played.ledger.jobs) == 201


async def test_files_are_numbered_and_the_oldest_go(
    bench: TappedBench, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    async with recording(nc, subjects, path, file_bytes=8_000, total_bytes=2_000_000) as made:
        for at in range(40):
            count = made.outside.stats.files
            await bench.start(f"j{at}", 1, program={"blob": "x" * 8_000})
            await until(lambda count=count: made.outside.stats.files > count)  # type: ignore[misc]
    count = made.outside.stats.files
    left = files(tmp_path)
    assert left[-1].name == f"a-{count:04d}.jsonl"
    assert 1 < len(left) < count
    assert not path.exists()
    for each in left:
        await same_as_log(bench, each)


async def test_masked_values_never_leave_the_leader(
    bench: TappedBench, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    await nc.subscribe(subjects.inbox, cb=hear)
    path = tmp_path / "a.jsonl"
    async with recording(nc, subjects, path):
        await bench.start("a", 1, env_vars={"DB_PASSWORD": "hunter2", "PLAIN": "seen"})
        await until(lambda: knows(path, "a"))
    assert b"seen" in b"".join(heard)
    assert b"hunter2" not in b"".join(heard)
    assert b"hunter2" not in path.read_bytes()


async def test_bad_requests_and_too_many_recorders_are_refused(
    bench: TappedBench, nc: Client, subjects: Subjects
) -> None:
    bus = SlotbusClient(nc, subjects.root)

    async def refused(body: bytes) -> bytes:
        return await bus.ask(subjects.tap, body)

    assert Invalid.code.encode() in await refused(b'{"tap_id": "a b"}')
    assert Invalid.code.encode() in await refused(b'{"tap_id": "a", "hold_s": 1e9}')
    for at in range(tapping.MAX_TAPS):
        await refused(msgspec.json.encode(TapInbox(tap_id=f"t{at}", hold_s=5)))
    many = await refused(msgspec.json.encode(TapInbox(tap_id="one-more")))
    assert Overloaded.code.encode() in many
    for at in range(tapping.MAX_TAPS):
        await refused(msgspec.json.encode(TapInbox(tap_id=f"t{at}", hold_s=0)))
    assert not bench.tap.listens


async def test_without_a_controller_it_is_said(
    nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    settings = RecordSettings(folder=tmp_path, name="a.jsonl")
    made = Recording(SlotbusClient(nc, subjects.root), settings)
    with pytest.raises(NoController, match="no controller answers"):
        await made.outside.run(made.stop)
    assert files(tmp_path) == []
