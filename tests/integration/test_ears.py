"""The connection for what nodes say: held, made again, and measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller.ears import Ears
from controller.embedded import EmbeddedServer
from events.connection import Access, ConnectionFailed
from events.subjects import Subjects
from tests.drills.frames import Frame, Way
from tests.drills.line import Line
from tests.support.waiting import DEADLINE_S, background, until

LATE_S = 0.2


class Ear:
    """Hears one subject, behind a line."""

    def __init__(self, line: Line, subject: str) -> None:
        self.heard: list[bytes] = []
        self.missed: list[str] = []
        self.links: list[Client] = []
        self._subject = subject
        self.ears = Ears(
            line.url, Access(), DEADLINE_S, late_s=LATE_S, hear=self._hear, missed=self._missed
        )

    async def _hear(self, nc: Client) -> None:
        self.links.append(nc)
        await nc.subscribe(self._subject, cb=self._on_message)

    async def _on_message(self, message: Msg) -> None:
        self.heard.append(message.data)

    def _missed(self, reason: str) -> None:
        self.missed.append(reason)


@asynccontextmanager
async def a_line(server: EmbeddedServer) -> AsyncIterator[Line]:
    line = Line(server.port)
    await line.open()
    try:
        yield line
    finally:
        await line.close()


@pytest.fixture
async def line(nats_server: EmbeddedServer) -> AsyncIterator[Line]:
    async with a_line(nats_server) as made:
        yield made


def is_ping(way: Way, frame: Frame) -> bool:
    return way is Way.UP and frame.raw.startswith(b"PING")


async def until_heard(ear: Ear, nc: Client, subject: str, body: bytes) -> None:
    """Says it again and again: what is said while nobody listens is lost."""
    async with asyncio.timeout(DEADLINE_S):
        while body not in ear.heard:
            await nc.publish(subject, body)
            await asyncio.sleep(0.02)


async def test_what_is_said_is_heard_and_nothing_was_missed(
    line: Line, nc: Client, subjects: Subjects
) -> None:
    subject = subjects.node("n1", "heartbeat")
    ear = Ear(line, subject)
    async with background(ear.ears.run()):
        await ear.ears.until_open()
        assert ear.ears.connected
        await nc.publish(subject, b"one")
        await until(lambda: ear.heard == [b"one"])
        assert ear.missed == []


async def test_while_the_row_is_late_everything_may_have_been_missed(
    line: Line, nc: Client, subjects: Subjects
) -> None:
    ear = Ear(line, subjects.node("n1", "heartbeat"))
    async with background(ear.ears.run()):
        await ear.ears.until_open()
        line.stalled = True
        await until(lambda: len(ear.missed) >= 3)
        line.stalled = False
        await until_heard(ear, nc, subjects.node("n1", "heartbeat"), b"again")
        assert set(ear.missed) == {"what nodes say is heard late"}


async def test_a_broken_connection_comes_back_and_is_told_of(
    line: Line, nc: Client, subjects: Subjects
) -> None:
    subject = subjects.node("n1", "heartbeat")
    ear = Ear(line, subject)
    async with background(ear.ears.run()):
        await ear.ears.until_open()
        pings: list[bytes] = []
        line.witnesses.append(
            lambda way, frame: pings.append(frame.raw) if is_ping(way, frame) else None
        )
        line.refusing = True
        line.drop()
        await until(lambda: not ear.ears.connected)
        line.refusing = False
        await until_heard(ear, nc, subject, b"back")
        assert "the connection for nodes was lost" in ear.missed
        # The sign that was lost with the old row is not waited for in the new one: it is
        # asked for anew, and comes.
        late = len(ear.missed)
        asked = len(pings)
        await until(lambda: len(pings) >= asked + 3)
        assert len(ear.missed) <= late + 1


async def test_one_that_was_closed_for_good_is_begun_again_by_its_owner(
    line: Line, nc: Client, subjects: Subjects
) -> None:
    subject = subjects.node("n1", "heartbeat")
    ear = Ear(line, subject)
    async with background(ear.ears.run()) as first:
        await ear.ears.until_open()
        await ear.links[0].close()
        async with asyncio.timeout(DEADLINE_S):
            await first
    assert not ear.ears.connected
    async with background(ear.ears.run()):
        await until_heard(ear, nc, subject, b"anew")
    assert ear.missed == ["the connection for nodes was lost"]


async def test_without_a_server_it_is_an_error_in_time(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with a_line(own_nats_server) as line:
        await own_nats_server.stop()
        ear = Ear(line, subjects.node("n1", "heartbeat"))
        with pytest.raises(ConnectionFailed):
            await ear.ears.run()
