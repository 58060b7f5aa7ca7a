"""The event subjects: who hears what, across lags, restarts and new leaders."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from msgspec import Struct
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.client import SlotbusClient
from events.concerns import Directory
from events.facts import (
    LeaderStarted,
    NodeExpired,
    NodeRegistered,
    Record,
    RunEnded,
    WorkerAssigned,
    WorkerLaunched,
    WorkerLost,
)
from events.following import decode_event
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.jetstream_api import JetStreamApi
from events.jetstream_read import read_stream
from events.log import EventLog, MemoryLog, encode_record
from events.projection import EventProjection
from events.states import RunState
from events.subjects import Subjects
from tests.support.nats import connected
from tests.support.proxy import proxy_to
from tests.support.records import BEGIN, EPOCH, a_large_record, a_record, append, some_records
from tests.support.waiting import background, until

SOON_S = 20.0


class Heard(Struct, frozen=True):
    subject: str
    position: int


async def published(nc: Client, subjects: Subjects, under: str = "") -> list[Heard]:
    """What the event stream holds, oldest first; ``under``: how a subject begins."""
    state = (await nc.jetstream().stream_info(subjects.event_stream)).state
    reading = read_stream(
        JetStreamApi(nc), subjects.event_stream, state.first_seq, state.last_seq, stall_s=10
    )
    return [
        Heard(short, decode_event(message.data).position)
        async for messages in reading
        for message in messages
        if (short := message.subject.removeprefix(f"{subjects.root}.event.")).startswith(under)
    ]


@asynccontextmanager
async def leading(
    nc: Client, subjects: Subjects, log: EventLog, *, max_waiting: int = 10_000
) -> AsyncIterator[EventProjection]:
    projection = EventProjection(nc, subjects, log, max_waiting=max_waiting, now=BEGIN.timestamp)
    async with background(projection.run()):
        yield projection


async def tell(
    projection: EventProjection, log: EventLog, records: list[Record], after: int
) -> int:
    """Appends and offers, as a leader does."""
    end = await append(log, records, after, timeout_s=20)
    for position, record in enumerate(records, after + 1):
        projection.offer(Position(position), record)
    return end


def a_story() -> list[Record]:
    def record(cause: str, *facts: object) -> Record:
        return Record(at=BEGIN, epoch=EPOCH, cause=cause, events=list(facts))  # type: ignore[arg-type]

    def assigned(worker: str, job: str, node: str) -> WorkerAssigned:
        return WorkerAssigned(
            worker_id=worker, job_id=job, run_id=1, node_id=node, incarnation="i", slots=1
        )

    return [
        record("lead", LeaderStarted(epoch=EPOCH, cluster="c", scheduler="node")),
        record("register n1", NodeRegistered(node_id="n1", incarnation="i", task_slots=4)),
        record("start c1", assigned("w1", "j1", "n1"), assigned("w2", "j1", "n2")),
        record("start c2", assigned("w3", "j2", "n1")),
        record("launched", WorkerLaunched(worker_id="w2", incarnation="i")),
    ]


def an_expiry() -> Record:
    """After the story: node n1 falls silent, and both jobs are touched."""
    lost = [WorkerLost(worker_id=worker_id, reason="n1 is silent") for worker_id in ("w1", "w3")]
    expired = NodeExpired(node_id="n1", last_seen=BEGIN)
    over = RunEnded(job_id="j1", run_id=1, state=RunState.FAILED)
    return Record(at=BEGIN, epoch=EPOCH, cause="timer", events=[expired, *lost, over])


async def lose_all_but(kept: int, nc: Client, subjects: Subjects) -> None:
    """As a server that died before its disk had the rest of the event stream."""
    js, name = nc.jetstream(), subjects.event_stream
    config = (await js.stream_info(name)).config
    messages = [await js.get_msg(name, seq) for seq in range(1, kept + 1)]
    await js.delete_stream(name)
    await js.add_stream(config)
    for message in messages:
        headers = {k: v for k, v in (message.headers or {}).items() if "Expected" not in k}
        await js.publish(message.subject or "", message.data or b"", headers=headers)


async def test_each_record_reaches_everybody_it_concerns(nc: Client, subjects: Subjects) -> None:
    log = MemoryLog()
    async with leading(nc, subjects, log) as projection:
        await tell(projection, log, a_story(), START)
        assert await projection.until_settled(SOON_S)
    told = [(heard.subject, heard.position) for heard in await published(nc, subjects)]
    assert told == [
        *[("leader", 1), ("node.n1", 2), ("job.j1", 3), ("node.n1", 3), ("node.n2", 3)],
        *[("job.j2", 4), ("node.n1", 4), ("job.j1", 5), ("node.n2", 5)],
    ]
    assert [heard.position for heard in await published(nc, subjects, "job.j1")] == [3, 5]
    assert projection.stats.published == len(told)
    assert projection.stats.unresolved == 0


async def test_the_body_is_the_record_and_its_position(nc: Client, subjects: Subjects) -> None:
    log = MemoryLog()
    async with leading(nc, subjects, log) as projection:
        await tell(projection, log, [a_record(1)], START)
        assert await projection.until_settled(SOON_S)
    message = await nc.jetstream().get_msg(subjects.event_stream, 1)
    assert message.data is not None
    assert json.loads(message.data) == {
        "position": 1,
        "v": 1,
        "at": "2026-01-01T00:00:01Z",
        "epoch": EPOCH,
        "cause": "cordon c-1",
        "events": [{"type": "node_cordoned", "node_id": "n1"}],
    }


async def test_each_subject_has_the_facts_that_concern_it(nc: Client, subjects: Subjects) -> None:
    log = MemoryLog()
    async with leading(nc, subjects, log) as projection:
        await tell(projection, log, a_story(), START)
        assert await projection.until_settled(SOON_S)
        end = len(a_story())
        await tell(projection, log, [an_expiry()], end)
        assert await projection.until_settled(SOON_S)
    js = nc.jetstream()
    bodies = {}
    for subject in (subjects.event_node("n1"), subjects.event_job("j1"), subjects.event_job("j2")):
        message = await js.get_last_msg(subjects.event_stream, subject)
        bodies[subject.removeprefix(f"{subjects.root}.event.")] = json.loads(message.data or b"")
    parts = {short: (body["of"], body["part"]) for short, body in bodies.items()}
    assert parts == {"node.n1": (4, [0, 1, 2]), "job.j1": (4, [1, 3]), "job.j2": (4, [2])}
    assert [fact["type"] for fact in bodies["job.j1"]["events"]] == ["worker_lost", "run_ended"]


async def test_who_reads_all_subjects_gets_records_whole(nc: Client, subjects: Subjects) -> None:
    log = MemoryLog()
    records = [*a_story(), an_expiry()]
    async with leading(nc, subjects, log) as projection:
        await tell(projection, log, records, START)
        assert await projection.until_settled(SOON_S)
    bus = SlotbusClient(nc, subjects.root)
    told = [record async for record in bus.events()]
    assert [record.events for record in told] == [record.events for record in records]
    assert [json.loads(record.body) for record in told] == [
        {"position": position, **json.loads(encode_record(record))}
        for position, record in enumerate(records, 1)
    ]


@pytest.mark.parametrize("kept", [0, 4])
async def test_an_end_that_the_server_lost_is_told_again(
    nc: Client, subjects: Subjects, kept: int
) -> None:
    log = MemoryLog()
    async with leading(nc, subjects, log) as projection:
        end = await tell(projection, log, some_records(3), START)
        assert await projection.until_settled(SOON_S)
        end = await tell(projection, log, some_records(3, first=4), end)
        assert await projection.until_settled(SOON_S)
        await lose_all_but(kept, nc, subjects)
        await tell(projection, log, some_records(1, first=7), end)
        assert await projection.until_settled(SOON_S)
    assert [heard.position for heard in await published(nc, subjects)] == list(range(1, 8))


async def test_an_idle_projection_notices_a_lost_end(
    nc: Client, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.projection.LOOK_S", 0.05)
    log = MemoryLog()
    async with leading(nc, subjects, log) as projection:
        await tell(projection, log, some_records(3), START)
        assert await projection.until_settled(SOON_S)
        told = projection.stats.published
        await lose_all_but(2, nc, subjects)
        await until(lambda: projection.stats.published > told)
        assert await projection.until_settled(SOON_S)
    assert [heard.position for heard in await published(nc, subjects)] == [1, 2, 3]


async def test_somebody_else_on_the_event_subjects_holds_nothing_up(
    nc: Client, subjects: Subjects
) -> None:
    log = MemoryLog()
    async with leading(nc, subjects, log) as projection:
        end = await tell(projection, log, some_records(3), START)
        assert await projection.until_settled(SOON_S)
        await nc.jetstream().publish(subjects.event_node("n9"), b"{}")
        await tell(projection, log, some_records(2, first=4), end)
        assert await projection.until_settled(SOON_S)
    js = nc.jetstream()
    state = (await js.stream_info(subjects.event_stream)).state
    assert state.messages == 6


async def test_a_new_leader_goes_on_where_the_old_one_ended(nc: Client, subjects: Subjects) -> None:
    log = MemoryLog()
    async with leading(nc, subjects, log) as old:
        end = await tell(old, log, some_records(3), START)
        assert await old.until_settled(SOON_S)
    end = await append(log, some_records(4, first=4), end)  # nobody published these
    async with leading(nc, subjects, log) as new:
        await tell(new, log, [a_record(8)], end)
        assert await new.until_settled(SOON_S)
    assert [heard.position for heard in await published(nc, subjects)] == list(range(1, 9))


async def test_a_new_leader_knows_the_workers_of_the_ledger(nc: Client, subjects: Subjects) -> None:
    log = MemoryLog()
    story = a_story()
    directory = Directory()
    for record in story[:4]:
        directory.concerns(record)
    async with leading(nc, subjects, log) as old:
        end = await tell(old, log, story[:4], START)
        assert await old.until_settled(SOON_S)
    before = len(await published(nc, subjects))
    await append(log, story[4:], end)
    new = EventProjection(nc, subjects, log, directory=directory, now=BEGIN.timestamp)
    async with background(new.run()):
        new.offer(Position(5), story[4])
        assert await new.until_settled(SOON_S)
    assert new.stats.unresolved == 0
    told = [(heard.subject, heard.position) for heard in await published(nc, subjects)]
    assert told[before:] == [("job.j1", 5), ("node.n2", 5)]


async def test_what_is_too_much_at_once_is_read_from_the_log(
    nc: Client, subjects: Subjects
) -> None:
    log = MemoryLog()
    total = 2_500
    async with leading(nc, subjects, log, max_waiting=10) as projection:
        await tell(projection, log, some_records(total), START)
        assert await projection.until_settled(SOON_S)
        assert projection.stats.overflowed == total - 10
        await tell(projection, log, some_records(5, first=total + 1), total)
        assert await projection.until_settled(SOON_S)
    assert [heard.position for heard in await published(nc, subjects)] == list(range(1, total + 6))


async def test_a_lost_link_repeats_and_loses_nothing(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> None:
    log = MemoryLog()
    async with (
        proxy_to(nats_server.port) as proxy,
        connected(proxy.url) as far,
        leading(far, subjects, log) as projection,
    ):
        end: int = START
        for _ in range(5):
            end = await tell(projection, log, some_records(20, first=end + 1), end)
            proxy.drop()
            await asyncio.sleep(0)
        assert await projection.until_settled(SOON_S)
    assert sorted({heard.position for heard in await published(nc, subjects)}) == list(
        range(1, end + 1)
    )


async def test_a_restarted_server_gets_what_it_missed(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(own_nats_server.url) as nc:
        log = JetStreamLog(nc, subjects)
        async with leading(nc, subjects, log) as projection:
            end = await tell(projection, log, some_records(3), START)
            own_nats_server.kill()
            await own_nats_server.start()
            end = await tell(projection, log, some_records(3, first=4), end)
            assert await projection.until_settled(SOON_S)
        assert {heard.position for heard in await published(nc, subjects)} == set(range(1, 7))


async def test_a_log_that_began_anew_is_told_from_its_beginning(
    nc: Client, subjects: Subjects
) -> None:
    first, second = MemoryLog(), MemoryLog()
    async with leading(nc, subjects, first) as old:
        await tell(old, first, some_records(6), START)
        assert await old.until_settled(SOON_S)
    rebuilt = [Record(at=r.at, epoch=EPOCH + 1, cause=r.cause, events=r.events) for r in a_story()]
    async with leading(nc, subjects, second) as new:
        await tell(new, second, rebuilt[:2], START)
        assert await new.until_settled(SOON_S)
    told = [(heard.subject, heard.position) for heard in await published(nc, subjects)]
    assert told[6:] == [("leader", 1), ("node.n1", 2)]


async def test_what_was_purged_before_it_was_told_is_counted(
    nc: Client, subjects: Subjects
) -> None:
    log = JetStreamLog(nc, subjects)
    end: int = START
    for _ in range(4):
        end = await append(log, some_records(2, first=end + 1), end)
    await log.trim(Position(4))
    async with leading(nc, subjects, log) as projection:
        await tell(projection, log, [a_record(9)], end)
        assert await projection.until_settled(SOON_S)
    assert projection.stats.skipped == 4
    assert [heard.position for heard in await published(nc, subjects)] == [5, 6, 7, 8, 9]


async def test_records_older_than_the_stream_keeps_are_left_out(
    nc: Client, subjects: Subjects
) -> None:
    log = MemoryLog()
    end = await append(log, some_records(10), START)  # one a second

    def now() -> float:
        return datetime.fromisoformat("2026-01-01T00:00:10Z").timestamp()

    projection = EventProjection(nc, subjects, log, max_age_s=5, now=now)
    async with background(projection.run()):
        await tell(projection, log, [a_record(11)], end)
        assert await projection.until_settled(SOON_S)
    assert [heard.position for heard in await published(nc, subjects)] == [5, 6, 7, 8, 9, 10, 11]


async def test_the_largest_record_of_the_log_fits_the_event_subjects(
    nc: Client, subjects: Subjects
) -> None:
    log = JetStreamLog(nc, subjects)
    record = a_large_record(nc.max_payload - 2_300)
    async with leading(nc, subjects, log) as projection:
        await tell(projection, log, [record], START)
        assert await projection.until_settled(SOON_S)
        assert projection.stats.oversized == 0
    assert [heard.subject for heard in await published(nc, subjects)] == ["job.j1"]


async def test_without_a_server_offers_are_taken_and_waiting_ends_in_time(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    log = MemoryLog()
    async with connected(own_nats_server.url) as nc:
        own_nats_server.kill()
        async with leading(nc, subjects, log, max_waiting=5) as projection:
            await tell(projection, log, some_records(20), START)
            assert not await projection.until_settled(0.1)
            assert projection.stats.overflowed == 15
            await own_nats_server.start()
            assert await projection.until_settled(SOON_S)
        assert {heard.position for heard in await published(nc, subjects)} == set(range(1, 21))


@pytest.mark.parametrize("count", [500])
async def test_the_log_is_told_while_it_grows(nc: Client, subjects: Subjects, count: int) -> None:
    log = JetStreamLog(nc, subjects)
    async with leading(nc, subjects, log, max_waiting=50) as projection:
        end: int = START
        while end < count:
            end = await tell(projection, log, some_records(25, first=end + 1), end)
        assert await projection.until_settled(SOON_S)
    assert [heard.position for heard in await published(nc, subjects)] == list(range(1, count + 1))
