"""Starts on nodes that refuse, answer late, twice or never, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from events.errors import CommandTimeout, StartFailed
from events.facts import CommandDone, WorkerStopping
from events.queries import QueryJobs
from events.states import WorkerState
from schedulers.decide import Rules
from tests.support.bench import QUIET_S, facts_of, running_bench
from tests.support.scripted import (
    ANSWER_LOST,
    NEVER,
    Program,
    ScriptedNode,
    late,
    refused,
)

pytestmark = pytest.mark.looptime


async def test_a_launch_that_fails_on_one_node_is_tried_on_others() -> None:
    bad = ScriptedNode("n1", slots=8, usual=refused("its disk is full"))
    good = ScriptedNode("n2", slots=4)
    async with running_bench(bad, good) as bench:
        reply = await bench.start("j", 3)

        assert [(w.node_id, w.slots) for w in reply.workers] == [("n2", 3)]
        assert bench.running() == [reply.workers[0].worker_id]
        assert bad.orders == []  # refused before it came to a process
        every = await bench.workers(everything=True)
        assert {w.node_id: w.state for w in every} == {"n1": "failed", "n2": "running"}
        assert next(w.reason for w in every if w.node_id == "n1") == "its disk is full"
        await bench.check()


async def test_a_start_that_fails_everywhere_tells_why_for_each_node() -> None:
    reasons = {"n1": "no image", "n2": "no disk", "n3": "no luck"}
    nodes = [
        ScriptedNode(node_id, slots=8 - n, usual=refused(why))
        for n, (node_id, why) in enumerate(reasons.items())
    ]
    async with running_bench(*nodes) as bench:
        with pytest.raises(StartFailed, match="no image.*no disk.*no luck") as failed:
            await bench.start("j", 4)
        assert failed.value.facts["reasons"] == reasons
        assert failed.value.facts["unconfirmed"] == []
        await bench.check()


async def test_what_a_start_that_fails_had_started_is_stopped() -> None:
    nodes = [ScriptedNode("n1", slots=4), ScriptedNode("n2", slots=3, usual=refused("no image"))]
    async with running_bench(*nodes) as bench:
        with pytest.raises(StartFailed, match="no image"):
            await bench.start("j", 7)
        assert len(nodes[0].spawned) == 1
        assert bench.running() == []
        assert all(bench.engine.ledger.free_slots(n.node_id) == n.slots for n in nodes)
        reply = await bench.engine.submit(QueryJobs())
        assert [str(row.state) for row in reply.jobs] == ["failed"]  # type: ignore[union-attr]
        await bench.check()


async def test_a_lost_answer_costs_no_second_process() -> None:
    node = ScriptedNode("n1")
    async with running_bench(node) as bench:
        node.turns.append(ANSWER_LOST)
        reply = await bench.start("j", 4)
        assert node.spawned == [reply.workers[0].worker_id]
        assert len(node.orders) == 2
        await bench.check()


async def test_a_worker_whose_answers_are_all_lost_is_found_by_inventory() -> None:
    node = ScriptedNode("n1", usual=ANSWER_LOST)
    async with running_bench(node) as bench:
        # Its heartbeats tell of a worker that the ledger has as assigned only.
        reply = await bench.start("j", 4)
        assert node.spawned == [reply.workers[0].worker_id]
        assert bench.running() == node.spawned
        await bench.check()


async def test_a_node_that_never_answers_launches_is_given_up_for_another() -> None:
    lame = ScriptedNode("n1", slots=8, usual=NEVER)
    other = ScriptedNode("n2", slots=4)
    async with running_bench(lame, other) as bench:
        reply = await bench.start("j", 4)

        assert [w.node_id for w in reply.workers] == ["n2"]
        first = next(w for w in await bench.workers(everything=True) if w.node_id == "n1")
        assert first.worker_id in lame.tombstones  # so it never will run there
        assert asyncio.get_running_loop().time() >= bench.rules.launch_timeout_s
        await bench.check()


async def test_an_uncertain_worker_that_came_to_run_does_not_count() -> None:
    """The order arrives when the launch was given up already, and before the stop."""
    slow = ScriptedNode("n1", slots=8, usual=late(9.9))
    other = ScriptedNode("n2", slots=4)
    async with running_bench(slow, other, rules=Rules(heartbeat_s=60, expiry_s=600)) as bench:
        reply = await bench.start("j", 4)
        await asyncio.sleep(20)

        assert [w.node_id for w in reply.workers] == ["n2"]
        assert bench.running() == [reply.workers[0].worker_id]
        await bench.check()


async def test_an_answer_that_comes_late_is_as_good() -> None:
    node = ScriptedNode("n1", usual=late(2.5))
    async with running_bench(node) as bench:
        reply = await bench.start("j", 4)
        assert node.spawned == [reply.workers[0].worker_id]
        await bench.check()


async def test_an_end_that_is_reported_twice_is_one_end() -> None:
    node = ScriptedNode("n1", twice=True)
    async with running_bench(node) as bench:
        reply = await bench.start("j", 4)
        node.end(reply.workers[0].worker_id, exit_code=3)
        await asyncio.sleep(QUIET_S)

        row = (await bench.workers(everything=True))[0]
        assert (row.state, row.exit_code) == (WorkerState.FAILED, 3)
        assert node.table == {}  # acknowledged
        await bench.check()


async def test_a_worker_that_ends_at_once_was_launched_all_the_same() -> None:
    node = ScriptedNode("n1", program=lambda _: Program(exit_code=0))
    async with running_bench(node) as bench:
        reply = await bench.start("j", 4)
        await asyncio.sleep(QUIET_S)
        assert len(reply.workers) == 1
        jobs = await bench.engine.submit(QueryJobs())
        assert [str(row.state) for row in jobs.jobs] == ["finished"]  # type: ignore[union-attr]
        await bench.check()


async def test_a_node_that_falls_silent_while_it_starts_fails_the_start() -> None:
    """Law 6: nothing of it runs on nodes that answer; elsewhere it is stopped on return."""
    gone, there = ScriptedNode("n1", slots=8), ScriptedNode("n2", slots=2)
    rules = Rules(expiry_s=6, launch_timeout_s=60, start_timeout_s=60)
    async with running_bench(gone, there, rules=rules) as bench:
        gone.turns.extend([ANSWER_LOST] * 100)
        starting = asyncio.create_task(bench.start("j", 10, wait_s=100))
        await asyncio.sleep(1)
        gone.silent = True

        with pytest.raises(StartFailed) as failed:
            await starting
        assert failed.value.facts["unconfirmed"] == gone.running()
        assert len(gone.running()) == 1
        assert there.running() == []
        assert (await bench.states()) == {"n1": "expired", "n2": "ready"}
        assert bench.engine.ledger.free_slots("n1") == 0  # it keeps its slots

        gone.silent = False
        await asyncio.sleep(bench.rules.heartbeat_s + QUIET_S)
        assert bench.running() == []
        assert bench.engine.ledger.free_slots("n1") == 8
        await bench.check()


async def test_the_reply_may_be_late_while_the_work_goes_on() -> None:
    node = ScriptedNode("n1", usual=late(2.0))
    async with running_bench(node) as bench:
        with pytest.raises(CommandTimeout) as late_reply:
            await bench.start("j", 4, wait_s=0.5, command_id="c-1")
        assert late_reply.value.facts["command_id"] == "c-1"

        joined = await asyncio.gather(
            bench.start("j", 4, command_id="c-1"), bench.start("j", 4, command_id="c-1", wait_s=20)
        )
        assert joined[0] == joined[1]
        assert node.spawned == [joined[0].workers[0].worker_id]
        assert await bench.start("j", 4, command_id="c-1") == joined[0]
        await bench.check()


async def test_who_does_not_wait_hears_what_was_decided() -> None:
    node = ScriptedNode("n1", usual=late(2.0))
    async with running_bench(node) as bench:
        reply = await bench.start("j", 4, wait_s=0)
        assert [w.slots for w in reply.workers] == [4]
        assert node.spawned == []
        await asyncio.sleep(2.1)
        assert node.spawned == [reply.workers[0].worker_id]

        stopped = await bench.stop("j", wait_s=0)
        assert (stopped.workers, stopped.unconfirmed) == ([], node.spawned)
        await asyncio.sleep(QUIET_S)
        assert bench.running() == []
        await bench.check()


async def test_a_stop_overtakes_a_launch_under_way() -> None:
    node = ScriptedNode("n1", usual=late(2.0))
    async with running_bench(node) as bench:
        starting = asyncio.create_task(bench.start("j", 4))
        await asyncio.sleep(0.5)
        stopped = await bench.stop("j")
        with pytest.raises(StartFailed, match="stopped while it started"):
            await starting
        assert stopped.unconfirmed == []
        await asyncio.sleep(5)
        assert bench.running() == []
        await bench.check()


async def test_a_deaf_worker_is_killed_when_its_grace_is_over() -> None:
    node = ScriptedNode("n1", deaf=True)
    async with running_bench(node) as bench:
        reply = await bench.start("j", 4)
        began = asyncio.get_running_loop().time()
        stopped = await bench.stop("j", grace_s=7)
        assert asyncio.get_running_loop().time() - began == pytest.approx(7, abs=0.5)
        assert stopped.workers == [reply.workers[0].worker_id]
        row = (await bench.workers(everything=True))[0]
        assert (row.state, row.signal) == (WorkerState.FINISHED, 9)


async def test_force_takes_over_from_a_stop_with_patience() -> None:
    node = ScriptedNode("n1", deaf=True)
    async with running_bench(node) as bench:
        await bench.start("j", 4)
        patient = asyncio.create_task(bench.stop("j", grace_s=3_600, wait_s=10))
        await asyncio.sleep(1)
        forced = await bench.stop("j", force=True)
        assert (await patient).workers == forced.workers
        assert [order.force for order in node.signals] == [False, True]


async def test_a_stop_on_a_silent_node_says_what_it_cannot_confirm() -> None:
    node = ScriptedNode("n1")
    async with running_bench(node, rules=Rules(expiry_s=10)) as bench:
        reply = await bench.start("j", 4)
        node.silent = True
        stopped = await bench.stop("j", wait_s=60)
        assert (stopped.workers, stopped.unconfirmed) == ([], [reply.workers[0].worker_id])
        assert bench.running() == stopped.unconfirmed

        node.silent = False
        await asyncio.sleep(bench.rules.heartbeat_s + QUIET_S)
        assert bench.running() == []
        await bench.check()


async def test_every_command_has_one_outcome() -> None:
    nodes = [ScriptedNode(f"n{i}", usual=refused("no")) for i in range(3)]
    async with running_bench(*nodes) as bench:
        for number in range(5):
            with pytest.raises(StartFailed):
                await bench.start("j", 2, command_id=f"c-{number}")
        facts = await facts_of(bench.log)
        done = [fact.command_id for fact in facts if isinstance(fact, CommandDone)]
        assert done == [f"c-{number}" for number in range(5)]
        assert not [fact for fact in facts if isinstance(fact, WorkerStopping)]
