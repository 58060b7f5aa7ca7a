"""What is decided next: the order of receipt, and who overtakes whom where many wait."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from events.errors import Overloaded
from events.messages import StopWorkersReq
from events.traffic import HeartbeatNodeReq
from schedulers.decide.messages import Grace, Inbound, Tick
from schedulers.inbox import CROWD_SHARE, Entry, Inbox
from tests.support.waiting import background

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROUND = 8


class Line:
    """Fills an inbox, a second apart."""

    def __init__(self, limit: int = 1_000) -> None:
        self.inbox = Inbox(limit)
        self.count = 0

    def beat(self) -> Entry:
        number = self.count + 1
        return self.put(HeartbeatNodeReq(node_id=f"n{number}", incarnation="i", seq=number))

    def stop(self) -> Entry:
        return self.put(StopWorkersReq(job_id=f"j{self.count + 1}"))

    def put(self, message: Inbound, *, inner: bool = False) -> Entry:
        self.count += 1
        entry = Entry(message, BEGIN + timedelta(seconds=self.count), f"t{self.count}")
        self.inbox.put(entry, inner=inner)
        return entry


async def test_what_one_round_takes_keeps_its_order() -> None:
    line = Line()
    put = [line.beat(), line.stop(), line.put(Tick(), inner=True), line.stop(), line.beat()]
    assert await line.inbox.take(ROUND) == put
    assert len(line.inbox) == 0


async def test_a_command_overtakes_a_crowd_and_time_stands_still_for_it() -> None:
    line = Line()
    beats = [line.beat() for _ in range(20)]
    stop = line.stop()
    first = await line.inbox.take(ROUND)
    assert [entry.token for entry in first] == [
        stop.token, *(beat.token for beat in beats[: ROUND - 1])
    ]  # fmt: skip
    assert first[0].at == beats[0].at
    late = line.stop()
    second = await line.inbox.take(ROUND)
    assert second[0].token == late.token
    assert second[0].at == beats[ROUND - 1].at
    times = [entry.at for entry in (*first, *second)]
    assert times == sorted(times)


async def test_commands_leave_the_crowd_a_share() -> None:
    line = Line()
    beats = [line.beat() for _ in range(20)]
    stops = [line.stop() for _ in range(20)]
    kept = ROUND // CROWD_SHARE
    taken = [entry.token for entry in await line.inbox.take(ROUND)]
    assert taken == [
        *(stop.token for stop in stops[: ROUND - kept]), *(beat.token for beat in beats[:kept])
    ]  # fmt: skip
    # What is taken later was received before some of that, and is dated after all of it.
    again = await line.inbox.take(ROUND)
    assert min(entry.at for entry in again) >= beats[kept - 1].at


async def test_a_timer_waits_for_the_heartbeats_before_it() -> None:
    line = Line()
    beats = [line.beat() for _ in range(ROUND)]
    tick = line.put(Tick(), inner=True)
    assert [e.token for e in await line.inbox.take(ROUND)] == [beat.token for beat in beats]
    assert await line.inbox.take(ROUND) == [tick]


async def test_a_new_term_begins_when_it_does() -> None:
    line = Line()
    for _ in range(20):
        line.beat()
    grace, stop = line.put(Grace("it stood still"), inner=True), line.stop()
    taken = await line.inbox.take(ROUND)
    assert taken[0] == grace
    assert (taken[1].token, taken[1].at) == (stop.token, grace.at)


async def test_each_lane_has_its_limit() -> None:
    line = Line(limit=3)
    for _ in range(3):
        line.beat()
    with pytest.raises(Overloaded):
        line.beat()
    for _ in range(3):
        line.stop()
    with pytest.raises(Overloaded):
        line.stop()
    line.put(Tick(), inner=True)
    assert len(line.inbox) == 7


async def test_everybody_has_a_turn_between_two_rounds() -> None:
    line = Line()
    for _ in range(3 * ROUND):
        line.beat()
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with background(somebody_else()):
        for _ in range(3):
            before = turns
            assert len(await line.inbox.take(ROUND)) == ROUND
            assert turns > before


async def test_what_is_put_back_is_next() -> None:
    line = Line()
    beats = [line.beat() for _ in range(20)]
    taken = await line.inbox.take(ROUND)
    line.stop()
    line.inbox.put_back(taken[2:])
    again = await line.inbox.take(ROUND)
    assert [entry.token for entry in again[: ROUND - 2]] == [b.token for b in beats[2:ROUND]]
    assert again[ROUND - 2].token == "t21"
    assert len(line.inbox.drain()) == 20 - ROUND - 1
    assert len(line.inbox) == 0
