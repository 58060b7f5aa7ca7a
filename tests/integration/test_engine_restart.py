"""A controller that is killed, and the next one on the same log, in virtual time."""

from __future__ import annotations

import asyncio
import math

import pytest

from events.errors import StartFailed
from events.facts import LeaderStarted
from events.messages import StopWorkersReq
from schedulers.decide import Rules
from tests.support.bench import QUIET_S, Bench, FaultyLog, facts_of, running_bench, start
from tests.support.scripted import ANSWER_LOST, NEVER, ScriptedNode

pytestmark = pytest.mark.looptime


async def test_assigned_workers_are_launched_once_by_the_next_leader() -> None:
    """Killed between append and effect."""
    log, node = FaultyLog(), ScriptedNode("n1")
    lease = [math.inf]
    first = Bench(node, log=log, may_act=lambda: lease[0])
    await first.open()
    first.engine.observe(lambda _, record: lease.__setitem__(0, 0.0))
    first.engine.offer(start("j", 4, command_id="c-1"))
    await first.engine.wait_closed()
    await first.close()
    assert node.orders == []

    async with running_bench(node, log=log) as second:
        reply = await second.start("j", 4, command_id="c-1")
        assert node.spawned == [reply.workers[0].worker_id]
        order = node.orders[0]
        # The stamp says who decided, the epoch who acts.
        leaders = [f.epoch for f in await facts_of(log) if isinstance(f, LeaderStarted)]
        assert (order.stamp.epoch, order.epoch) == (leaders[0], leaders[1])
        await second.check()


async def test_a_launch_whose_outcome_was_never_stored_is_found() -> None:
    """Killed between effect and report: the process runs and the log says assigned."""
    log, node = FaultyLog(), ScriptedNode("n1", usual=ANSWER_LOST)
    first = Bench(node, log=log, rules=Rules(heartbeat_s=3_600, expiry_s=7_200))
    await first.open()
    starting = asyncio.create_task(first.start("j", 4, command_id="c-1"))
    await asyncio.sleep(1)
    await first.close()
    assert len(node.spawned) == 1
    with pytest.raises(Exception, match="no longer leads"):
        await starting

    async with running_bench(node, log=log) as second:
        reply = await second.start("j", 4, command_id="c-1")
        assert [w.worker_id for w in reply.workers] == node.spawned
        await second.check()


async def test_running_workers_are_kept() -> None:
    log, node = FaultyLog(), ScriptedNode("n1")
    async with running_bench(node, log=log) as first:
        reply = await first.start("j", 3)
    async with running_bench(node, log=log) as second:
        assert [(w.worker_id, str(w.state)) for w in await second.workers()] == [
            (reply.workers[0].worker_id, "running")
        ]
        assert (node.spawned, node.signals) == (second.running(), [])
        assert second.engine.ledger.free_slots("n1") == 1
        await second.check()


async def test_what_ended_meanwhile_has_its_true_exit_code() -> None:
    log, node = FaultyLog(), ScriptedNode("n1")
    async with running_bench(node, log=log) as first:
        reply = await first.start("j", 3)
    node.end(reply.workers[0].worker_id, exit_code=7)
    async with running_bench(node, log=log) as second:
        await asyncio.sleep(QUIET_S)
        row = (await second.workers(everything=True))[0]
        assert (str(row.state), row.exit_code) == ("failed", 7)
        assert node.table == {}
        await second.check()


async def test_a_stop_goes_on_under_the_next_leader() -> None:
    log, node = FaultyLog(), ScriptedNode("n1")
    async with running_bench(node, log=log) as first:
        reply = await first.start("j", 3)
        node.silent = True
        first.engine.offer(StopWorkersReq(job_id="j", command_id="c-stop"))
        await asyncio.sleep(1)
    node.silent = False
    assert node.running() == [reply.workers[0].worker_id]

    async with running_bench(node, log=log) as second:
        stopped = await second.stop("j", command_id="c-stop")
        assert stopped.workers == [reply.workers[0].worker_id]
        assert second.running() == []
        await second.check()


async def test_an_order_of_the_old_leader_that_arrives_late_does_nothing() -> None:
    log, node = FaultyLog(), ScriptedNode("n1")
    first = Bench(node, log=log)
    await first.open()
    reply = await first.start("j", 3)
    order = node.orders[0]
    await first.close()
    async with running_bench(node, log=log) as second:
        await second.stop("j")
        with pytest.raises(Exception, match="over"):
            await second.launcher.launch(order, 1.0)
        assert second.running() == []
        assert node.spawned == [reply.workers[0].worker_id]


async def test_a_start_whose_time_ran_out_while_nobody_led_is_rolled_back() -> None:
    log = FaultyLog()
    good, lame = ScriptedNode("n1", slots=4), ScriptedNode("n2", slots=3, usual=NEVER)
    async with running_bench(good, lame, log=log) as first:
        first.engine.offer(start("j", 7, command_id="c-1"))
        await asyncio.sleep(1)
        assert len(good.running()) == 1
    await asyncio.sleep(3_600)
    async with running_bench(good, lame, log=log) as second:
        second.engine.clock.not_before(second.engine.clock.now())
        with pytest.raises(StartFailed):
            await second.start("j", 7, command_id="c-1", wait_s=80)
        await asyncio.sleep(QUIET_S)
        assert second.running() == []
        await second.check()


async def test_a_node_that_nobody_hears_under_the_new_leader_expires_after_a_full_term() -> None:
    log, node = FaultyLog(), ScriptedNode("n1")
    async with running_bench(node, log=log) as first:
        await first.start("j", 3)
    node.silent = True
    async with running_bench(node, log=log) as second:
        await asyncio.sleep(25)
        assert await second.states() == {"n1": "ready"}
        await asyncio.sleep(6)
        assert await second.states() == {"n1": "expired"}


async def test_a_start_waits_for_nodes_that_the_new_leader_has_not_heard_yet() -> None:
    """They come back a little later than the leader does; nothing is refused for it."""
    log = FaultyLog()
    nodes = [ScriptedNode(f"n{i}", slots=2) for i in range(3)]
    async with running_bench(*nodes, log=log):
        pass
    for node in nodes:
        node.silent = True
    async with running_bench(*nodes, log=log) as second:
        starting = asyncio.create_task(second.start("j", 6))
        await asyncio.sleep(5)
        assert not starting.done()
        for node in nodes:
            node.silent = False
        reply = await starting
        assert sorted(w.node_id for w in reply.workers) == ["n0", "n1", "n2"]
        await second.check()


async def test_a_node_that_is_not_heard_yet_comes_after_those_that_are() -> None:
    log, node = FaultyLog(), ScriptedNode("n1", slots=8)
    other = ScriptedNode("n2", slots=2)
    async with running_bench(node, other, log=log):
        pass
    node.silent = True
    async with running_bench(node, other, log=log) as second:
        reply = await second.start("j", 2)
        assert [w.node_id for w in reply.workers] == ["n2"]
