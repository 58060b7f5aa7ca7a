"""The engine on a log that is slow, full, lost or somebody else's, in virtual time."""

from __future__ import annotations

import asyncio
import math

import pytest

from events.errors import NotLeader, SlotbusError, TooLarge
from events.facts import LeaderStarted, Record, WorkerAssigned
from events.ids import Position
from events.log import LogConflict, LogFull, LogLost, LogUnsettled
from events.messages import CordonReq, NodeReply
from events.queries import QueryNodes
from schedulers.launcher import Assignment
from tests.support.bench import Bench, FaultyLog, Heard, facts_of, fold, running_bench, start
from tests.support.scripted import ScriptedNode, late

pytestmark = pytest.mark.looptime


async def assigned_in(log: FaultyLog) -> set[str]:
    return {f.worker_id for f in await facts_of(log) if isinstance(f, WorkerAssigned)}


async def test_no_effect_and_no_reply_before_the_append_is_acknowledged() -> None:
    """Law 5, on a log whose append takes two seconds."""
    log, node = FaultyLog(), ScriptedNode("n1", slots=9)
    async with running_bench(node, log=log) as bench:
        log.delay_s = 2.0
        heard = [Heard(), Heard(), Heard()]
        bench.engine.offer(start("j", 4), heard[0].as_answer())
        bench.engine.offer(QueryNodes(), heard[1].as_answer())
        bench.engine.offer(start("k", 4, wait_s=0), heard[2].as_answer())
        await asyncio.sleep(1.99)
        assert bench.engine.ledger.free_slots("n1") == 1  # decided, so the next one sees it
        assert [len(h.answers) for h in heard] == [0, 0, 0]
        assert (node.orders, await assigned_in(log)) == ([], set())

        await asyncio.sleep(0.5)
        assert [len(h.answers) for h in heard] == [0, 1, 1]
        assert len(node.spawned) == 2
        await heard[0].answered.wait()
        await bench.check()


async def test_every_order_to_launch_follows_its_record() -> None:
    log = FaultyLog()
    nodes = [ScriptedNode(f"n{i}", slots=50) for i in range(3)]
    stored: set[str] = set()
    orders: list[Assignment] = []

    def note(position: Position, record: Record) -> None:
        stored.update(f.worker_id for f in record.events if isinstance(f, WorkerAssigned))

    def check(assignment: Assignment) -> None:
        orders.append(assignment)
        assert assignment.worker_id in stored

    bench = Bench(*nodes, log=log)
    bench.engine.observe(note)
    bench.launcher.before_launch = check
    try:
        await bench.open()
        log.delay_s = 0.2
        await asyncio.gather(*(bench.start(f"j{i}", 3) for i in range(40)))
        assert len(orders) == len(stored) == 40
        # One append in flight, what gathers meanwhile goes together.
        assert len(log.appends) < 20
        await bench.check()
    finally:
        await bench.close()


@pytest.mark.parametrize(
    ("error", "stored_first", "told"),
    [
        (LogFull("the disk is full"), 0, LogFull),
        (LogConflict("somebody else wrote"), 0, NotLeader),
        (LogUnsettled("no answer"), 0, NotLeader),
        (LogUnsettled("no answer"), 1, NotLeader),
        (LogLost("another log"), 0, NotLeader),
        (OSError("I/O error"), 0, NotLeader),
    ],
)
async def test_an_append_that_fails_ends_the_leadership(
    error: Exception, stored_first: int, told: type[SlotbusError]
) -> None:
    log, node = FaultyLog(), ScriptedNode("n1", slots=9, usual=late(2.0))
    async with running_bench(node, log=log) as bench:
        waiting = asyncio.create_task(bench.start("waits", 1))
        await asyncio.sleep(1)
        log.fail_next, log.stored_first, log.delay_s = error, stored_first, 0.5
        decided = [Heard(), Heard()]
        bench.engine.offer(start("a", 2), decided[0].as_answer())
        bench.engine.offer(start("b", 2), decided[1].as_answer())
        await asyncio.sleep(0.1)
        queued = Heard()
        bench.engine.offer(QueryNodes(), queued.as_answer())

        cause = await bench.engine.wait_closed()
        assert cause is error or isinstance(error, OSError)
        assert [type(heard.one) for heard in decided] == [told, told]
        assert isinstance(queued.one, NotLeader)
        with pytest.raises(NotLeader):
            await waiting
        with pytest.raises(NotLeader, match="does not lead"):
            bench.engine.offer(QueryNodes())
        await asyncio.sleep(60)
        assert [order.job_id for order in node.orders] == ["waits"]

    # The next leader finds what was stored, and carries on from there.
    log.delay_s = 0.0
    async with running_bench(node, log=log) as bench:
        reply = await bench.start("c", 2)
        await bench.engine.submit(QueryNodes())
        assert ("a" in bench.engine.ledger.jobs) == (stored_first > 0)
        assert reply.workers[0].worker_id in bench.running()
        await bench.check()


async def test_another_writer_ends_the_leadership_with_nothing_released() -> None:
    log, node = FaultyLog(), ScriptedNode("n1")
    async with running_bench(node, log=log) as bench:
        ledger = await fold(log)
        assert ledger.state.at is not None
        other = LeaderStarted(epoch=ledger.state.epoch + 1, cluster="test", scheduler="node")
        await log.inner.append(
            [Record(at=ledger.state.at, epoch=other.epoch, cause="leader", events=[other])],
            expected=Position(ledger.position),
            timeout_s=1,
        )
        with pytest.raises(NotLeader):
            await bench.start("j", 4)
        assert isinstance(await bench.engine.wait_closed(), LogConflict)
        assert node.orders == []


async def test_a_lease_that_ends_between_append_and_release_lets_nothing_out() -> None:
    log, node = FaultyLog(), ScriptedNode("n1")
    left = [math.inf]
    async with running_bench(node, log=log, may_act=lambda: left[0]) as bench:
        log.delay_s = 1.0
        heard = Heard()
        bench.engine.offer(start("j", 4, wait_s=0), heard.as_answer())
        await asyncio.sleep(0.5)
        left[0] = 0.0
        assert isinstance(await bench.engine.wait_closed(), NotLeader)
        assert isinstance(heard.one, NotLeader)
        await asyncio.sleep(60)
        assert node.orders == []
        assert await assigned_in(log)  # it is in the log: the next leader's to do


async def test_a_lease_that_ends_stops_the_tries_of_what_is_under_way() -> None:
    node = ScriptedNode("n1", slots=9)
    left = [math.inf]
    async with running_bench(node, may_act=lambda: left[0]) as bench:
        node.silent = True
        starting = asyncio.create_task(bench.start("j", 4, wait_s=8))
        await asyncio.sleep(1)
        left[0], node.silent = 0.0, False
        with pytest.raises(SlotbusError):
            await starting
        await asyncio.sleep(60)
        assert node.orders == []


async def test_the_log_is_given_no_longer_than_the_lease_lasts() -> None:
    given: list[float] = []

    class Timed(FaultyLog):
        async def append(self, records: object, *, expected: Position, timeout_s: float) -> None:
            given.append(timeout_s)
            await super().append(records, expected=expected, timeout_s=timeout_s)  # type: ignore[arg-type]

    left = [math.inf]
    async with running_bench(ScriptedNode("n1"), log=Timed(), may_act=lambda: left[0]) as bench:
        left[0] = 0.7
        await bench.engine.submit(CordonReq(node_id="n1"))
        assert given[0] > 1
        assert given[-1] == 0.7


async def test_a_record_the_log_cannot_hold_costs_its_sender_only() -> None:
    class Narrow(FaultyLog):
        async def append(self, records: object, *, expected: Position, timeout_s: float) -> None:
            for record in records:  # type: ignore[attr-defined]
                if any(getattr(fact, "job_id", "") == "large" for fact in record.events):
                    raise TooLarge("a record is too large", limit=1, unit="bytes")
            await super().append(records, expected=expected, timeout_s=timeout_s)  # type: ignore[arg-type]

    node = ScriptedNode("n1", slots=9)
    async with running_bench(node, log=Narrow()) as bench:
        outcomes = await asyncio.gather(
            bench.start("a", 2),
            bench.start("large", 2),
            bench.engine.submit(CordonReq(node_id="n9", command_id="c")),
            bench.start("b", 2),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], TooLarge)
        assert [outcomes[0].workers[0].slots, outcomes[3].workers[0].slots] == [2, 2]  # type: ignore[union-attr]
        assert isinstance(outcomes[2], SlotbusError)
        assert "large" not in bench.engine.ledger.jobs
        assert bench.engine.ledger.free_slots("n1") == 5
        assert isinstance(await bench.engine.submit(CordonReq(node_id="n1")), NodeReply)
        await bench.check()
