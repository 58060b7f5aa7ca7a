"""Worker output handed on: whole lines, in order, dropped rather than waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.traffic import AgentLogs, LogLines
from schedulers.shipping import CHUNK_BYTES, MAX_CHUNKS, LogShipper, stored_tail, whole_part
from schedulers.supervisor.api import OutputTail, SupervisorGone
from tests.support.waiting import background, until


class Files:
    """Output in memory, readable like a supervisor's; ``first`` is the oldest byte kept."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.first = 0
        self.gone = False

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        if self.gone:
            raise SupervisorGone("gone")
        data = self.data.get(worker_id, b"")
        begin = max(0, len(data) - max_bytes) if since < 0 else max(self.first, since)
        part = data[begin : begin + max_bytes]
        return OutputTail(part, min(len(data), begin + len(part)))


class Listener:
    """Takes what is handed on; ``failing`` makes it refuse."""

    def __init__(self) -> None:
        self.heard: list[LogLines] = []
        self.failing = False

    async def publish(self, lines: LogLines) -> None:
        if self.failing:
            raise ConnectionError("nobody is there")
        self.heard.append(lines)

    @property
    def text(self) -> str:
        return "".join(lines.text for lines in self.heard)


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    offsets = [lines.offset for lines in made.heard]
    assert offsets == sorted(offsets)


@asynccontextmanager
async def shipping(files: Files, listener: Listener) -> AsyncIterator[LogShipper]:
    shipper = LogShipper(files, listener.publish)
    async with background(shipper.run()):
        yield shipper


async def test_only_whole_lines_are_handed_on_and_the_rest_a_moment_later(
    files: Files, listener: Listener
) -> None:
    files.data["w"] = b"one\ntw"
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 3)
        await until(lambda: bool(listener.heard))
        assert listener.heard == [
            LogLines(worker_id="w", job_id="j", run_id=3, offset=4, text="one\n")
        ]
        await until(lambda: len(listener.heard) == 2)
        assert (listener.heard[1].text, listener.heard[1].offset) == ("tw", 6)


async def test_the_end_of_a_worker_brings_the_rest_at_once(
    files: Files, listener: Listener
) -> None:
    files.data["w"] = b"no end"
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 1)
        assert await shipper.finish("w")
        assert listener.text == "no end"
        assert shipper.following() == []
        assert await shipper.finish("w")


async def test_a_worker_taken_over_is_followed_from_its_present_end(
    files: Files, listener: Listener
) -> None:
    files.data["w"] = b"long ago\n"
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 1, since=None)
        await until(lambda: shipper._followed["w"].read == 9)
        files.data["w"] += b"now\n"
        await shipper.finish("w")
    assert [(lines.text, lines.offset) for lines in listener.heard] == [("now\n", 13)]


async def test_nobody_is_waited_for_and_what_is_dropped_is_counted(
    files: Files, listener: Listener
) -> None:
    listener.failing = True
    files.data["w"] = b"lost\n"
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 1)
        await until(lambda: shipper.stats.dropped_bytes == 5)
        listener.failing = False
        files.data["w"] += b"heard\n"
        await shipper.finish("w")
    assert listener.text == "heard\n"
    assert (shipper.stats.messages, shipper.stats.failures) == (1, 1)


async def test_a_flood_is_skipped_ahead_of(files: Files, listener: Listener) -> None:
    flood = b"x" * 63 + b"\n"
    size = CHUNK_BYTES * MAX_CHUNKS * 2
    files.data["w"] = flood * (size // 64)
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 1)
        await until(lambda: shipper.stats.dropped_bytes > 0)
        files.data["w"] += b"after\n"
        await shipper.finish("w")
    assert listener.text.endswith("\nafter\n")
    assert len(listener.text) + shipper.stats.dropped_bytes == size + 6


async def test_what_was_rotated_away_is_counted_as_dropped(
    files: Files, listener: Listener
) -> None:
    files.data["w"] = b"0123456789\nnew\n"
    files.first = 11
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 1)
        await shipper.finish("w")
    assert listener.text == "new\n"
    assert shipper.stats.dropped_bytes == 11


async def test_a_supervisor_that_is_replaced_costs_nothing(
    files: Files, listener: Listener
) -> None:
    files.gone = True
    files.data["w"] = b"kept\n"
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 1)
        await until(lambda: shipper.stats.failures >= 1)
        files.gone = False
        await until(lambda: listener.text == "kept\n")


async def test_finishing_does_not_wait_for_ever(files: Files, listener: Listener) -> None:
    files.gone = True
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 1)
        assert not await shipper.finish("w", timeout_s=0.1)
        assert shipper.following() == []


async def test_a_stored_end(files: Files) -> None:
    files.data["w"] = b"first\nlast\n"
    reply = await stored_tail(files, AgentLogs(worker_id="w", max_bytes=5))
    assert (reply.text, reply.offset) == ("last\n", 11)
    nothing = await stored_tail(files, AgentLogs(worker_id="other"))
    assert (nothing.text, nothing.offset) == ("", 0)


@given(st.text(), st.integers(1, 50))
def test_no_character_is_cut_in_two(text: str, limit: int) -> None:
    """However UTF-8 is cut into chunks, each part that is handed on can be read alone."""
    data, parts, held = text.encode(), [], b""
    for start in range(0, len(data), limit):
        held += data[start : start + limit]
        cut = whole_part(held, limit)
        parts.append(held[:cut].decode())
        held = held[cut:]
    assert "".join(parts) + held.decode() == text


def test_a_line_too_long_is_handed_on_in_parts() -> None:
    assert whole_part(b"abc", 10) == 0
    assert whole_part(b"abc", 3) == 3
    assert whole_part(b"ab\ncd", 3) == 3
    assert whole_part("abé".encode()[:-1], 3) == 2
    assert whole_part(b"\xff\xff\xff\xff", 3) > 0


async def test_following_twice_is_following_once(files: Files, listener: Listener) -> None:
    files.data["w"] = b"once\n"
    async with shipping(files, listener) as shipper:
        shipper.follow("w", "j", 1)
        shipper.follow("w", "j", 1)
        await asyncio.gather(shipper.finish("w"), shipper.finish("w"))
    assert listener.text == "once\n"
