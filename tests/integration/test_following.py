"""Following the published events: each record once, no gap, through restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js.api import StreamConfig

from controller.embedded import EmbeddedServer
from events.asking import LinkClosed
from events.client import SlotbusClient
from events.errors import Invalid
from events.facts import NodeCordoned, RunRunning
from events.following import EventRecord, NoEvents, decode_event
from events.subjects import Subjects
from tests.support.leader import eventually
from tests.support.nats import connected

AT = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


def body_of(position: int, *facts: dict[str, str]) -> bytes:
    """A published record, as other programs see it."""
    return msgspec.json.encode(
        {
            "v": 1,
            "at": AT + timedelta(seconds=position),
            "epoch": 7,
            "cause": f"start c-{position}",
            "events": list(facts) or [{"type": "run_running", "job_id": "j", "run_id": 1}],
            "position": position,
        }
    )


class Publisher:
    """What a leader does once its log has a record."""

    def __init__(self, nc: Client, subjects: Subjects) -> None:
        self._js = nc.jetstream(timeout=5)
        self.subjects = subjects

    async def prepare(self) -> None:
        await self._js.add_stream(
            StreamConfig(name=self.subjects.event_stream, subjects=[self.subjects.events])
        )

    async def job(self, job_id: str, position: int, *facts: dict[str, str]) -> None:
        await self._js.publish(self.subjects.event_job(job_id), body_of(position, *facts))

    async def node(self, node_id: str, position: int, *facts: dict[str, str]) -> None:
        await self._js.publish(self.subjects.event_node(node_id), body_of(position, *facts))


@pytest_asyncio.fixture
async def publisher(nc: Client, subjects: Subjects) -> Publisher:
    made = Publisher(nc, subjects)
    await made.prepare()
    return made


@pytest_asyncio.fixture
async def bus(nats_server: EmbeddedServer, subjects: Subjects) -> AsyncIterator[SlotbusClient]:
    async with SlotbusClient.connect(nats_server.url, subjects.root) as client:
        yield client


async def test_a_record_on_several_subjects_comes_once(
    bus: SlotbusClient, publisher: Publisher
) -> None:
    await publisher.job("j", 1)
    await publisher.node("n1", 1)
    await publisher.node("n2", 1)
    await publisher.job("j", 2)
    await publisher.job("other", 3)
    assert [record.position async for record in bus.events()] == [1, 2, 3]
    assert [record.position async for record in bus.events(job_id="j")] == [1, 2]
    assert [record.position async for record in bus.events(node_id="n1")] == [1]
    assert [record.position async for record in bus.events(node_id="nobody")] == []


async def test_a_record_is_typed_and_keeps_its_body(
    bus: SlotbusClient, publisher: Publisher
) -> None:
    cordoned = {"type": "node_cordoned", "node_id": "n1"}
    await publisher.node("n1", 4, cordoned, {"type": "node_painted", "colour": "red"})
    (record,) = [record async for record in bus.events()]
    assert record.events == [NodeCordoned(node_id="n1")]
    assert record.unknown == ["node_painted"]
    assert (record.at, record.epoch, record.cause) == (AT + timedelta(seconds=4), 7, "start c-4")
    assert record.body == body_of(4, cordoned, {"type": "node_painted", "colour": "red"})


async def test_reading_begins_after_a_position_or_at_a_time(
    bus: SlotbusClient, publisher: Publisher
) -> None:
    for position in range(1, 6):
        await publisher.job("j", position)
    after = [record.position async for record in bus.events(since=3)]
    assert after == [4, 5]
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert [record async for record in bus.events(since=soon)] == []
    earlier = datetime.now(UTC) - timedelta(hours=1)
    assert len([record async for record in bus.events(since=earlier)]) == 5


async def test_a_repetition_by_a_new_leader_is_not_shown(
    bus: SlotbusClient, publisher: Publisher
) -> None:
    for position in (1, 2, 3, 2, 3, 4):
        await publisher.job("j", position)
    assert [record.position async for record in bus.events()] == [1, 2, 3, 4]


async def test_following_goes_on_with_what_comes(bus: SlotbusClient, publisher: Publisher) -> None:
    await publisher.job("j", 1)
    got: list[EventRecord] = []
    async with contextlib.aclosing(bus.events(job_id="j", follow=True)) as records:
        async for record in records:
            got.append(record)
            if len(got) == 3:
                break
            await publisher.job("j", len(got) + 1)
    assert [record.position for record in got] == [1, 2, 3]
    assert got[0].events == [RunRunning(job_id="j", run_id=1)]


async def test_a_slow_reader_misses_nothing(
    bus: SlotbusClient, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.following.MAX_PENDING", 40)
    many = 100
    for position in range(1, many + 1):
        await publisher.job("j", position)
    got: list[int] = []
    async for record in bus.events():
        got.append(record.position)
        if record.position % 20 == 0:
            await asyncio.sleep(0.05)
    assert got == list(range(1, many + 1))


async def test_following_survives_a_restarted_server(own_nats_server: EmbeddedServer) -> None:
    arrived: asyncio.Queue[int] = asyncio.Queue()
    async with (
        connected(own_nats_server.url) as nc,
        SlotbusClient.connect(own_nats_server.url) as bus,
    ):
        publisher = Publisher(nc, Subjects())
        await publisher.prepare()
        await publisher.job("j", 1)

        async def read() -> None:
            async for record in bus.events(follow=True):
                await arrived.put(record.position)

        reading = asyncio.create_task(read())
        async with asyncio.timeout(30):
            assert await arrived.get() == 1
            await own_nats_server.stop()
            await own_nats_server.start()
            await eventually(lambda: nc.is_connected)
            await publisher.job("j", 2)
            assert await arrived.get() == 2
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_without_a_stream_it_says_so(bus: SlotbusClient) -> None:
    for follow in (False, True):
        with pytest.raises(NoEvents, match="no controller was ever here"):
            await anext(bus.events(follow=follow))


async def test_a_closed_client_ends_the_reading(bus: SlotbusClient, publisher: Publisher) -> None:
    await publisher.job("j", 1)
    records = bus.events(follow=True)
    assert (await anext(records)).position == 1
    await bus.close()
    with pytest.raises(LinkClosed):
        await anext(records)


def test_foreign_messages_are_refused() -> None:
    for body in (b"", b"[]", b'{"position": 1}', b"\xff"):
        with pytest.raises(Invalid):
            decode_event(body)
