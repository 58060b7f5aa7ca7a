"""Running a job again, and waiting for runs, against a real controller and real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.again import Again, DefinitionForgotten, Unconfirmed, room_after, run_again
from events.client import SlotbusClient
from events.codec import decode
from events.errors import CommandTimeout, Invalid, NotEnoughSlots, StartFailed, UnknownJob
from events.messages import SchedulerConfig, StartReply, StopReply
from events.policies import RestartOptions
from events.queries import JobReply, NodeRow, NodesReply, WorkerRow, WorkersReply
from events.states import NodeState, RunState, WorkerState
from events.subjects import Subjects
from events.waiting import Goal, GoalMissed, wait_for
from tests.support.controllers import config_for, controller
from tests.support.leader import FakeLeader
from tests.support.story import DAWN
from tests.support.waiting import background

SLEEP = SchedulerConfig(command=["sleep", "600"])
BRIEF = SchedulerConfig(command=["true"])
BAD = SchedulerConfig(command=["false"])


@pytest_asyncio.fixture
async def bus(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[SlotbusClient]:
    """A client of a controller with 8 slots of its own."""
    config = config_for(nats_server.url, subjects, tmp_path, task_slots=8)
    async with controller(config) as leader:
        await leader.leading()
        async with SlotbusClient.connect(nats_server.url, subjects.root) as client:
            yield client
            for job in await client.jobs():
                await client.stop(job.job_id, force=True)


async def again(bus: SlotbusClient, job_id: str = "j", **fields: object) -> StartReply | None:
    done = await run_again(bus, job_id, Again(**fields))  # type: ignore[arg-type]
    return None if done.body is None else decode(done.body, StartReply)


async def test_a_restart_is_the_next_run_with_all_that_was_given(bus: SlotbusClient) -> None:
    await bus.start(
        job_id="j",
        slots=3,
        name="Count",
        program={"a": [1, None]},
        env_vars={"A": "b"},
        wasm_path="x.wasm",
        scheduler_config=SLEEP,
    )
    before = await bus.job("j")
    reply = await again(bus)
    assert reply is not None
    assert (reply.run_id, sum(worker.slots for worker in reply.workers)) == (2, 3)
    after = await bus.job("j")
    for field in ("name", "program", "env_vars", "wasm_path", "hash", "scheduler_config", "slots"):
        assert getattr(after, field) == getattr(before, field), field
    assert [run.state for run in after.runs] == [RunState.STOPPED, RunState.RUNNING]


async def test_a_job_that_has_ended_is_started_again(bus: SlotbusClient) -> None:
    await bus.start(job_id="j", slots=1, program=["kept"], scheduler_config=BRIEF)
    await wait_for(bus, "j", Goal.FINISHED, timeout_s=10)
    reply = await again(bus, slots=2)
    assert reply is not None
    assert reply.run_id == 2
    assert bytes((await bus.job("j")).program) == b'["kept"]'


async def test_scaling_makes_a_new_run_unless_it_has_so_many_already(bus: SlotbusClient) -> None:
    await bus.start(job_id="j", slots=2, scheduler_config=SLEEP)
    assert await again(bus, slots=2, if_needed=True) is None
    assert (await bus.job("j")).run_id == 1
    reply = await again(bus, slots=8, if_needed=True)  # only with the old run's slots
    assert reply is not None
    assert (reply.run_id, sum(worker.slots for worker in reply.workers)) == (2, 8)


async def test_without_room_the_old_run_is_left_alone(bus: SlotbusClient) -> None:
    await bus.start(job_id="j", slots=2, scheduler_config=SLEEP)
    with pytest.raises(NotEnoughSlots, match="with run 1 stopped 8 would be free") as caught:
        await again(bus, slots=9)
    assert (caught.value.slots_needed, caught.value.slots_free) == (1, 8)
    run = await bus.job("j")
    assert (run.run_id, run.state) == (1, RunState.RUNNING)


async def test_a_start_that_fails_after_the_stop_says_so_and_can_be_repeated(
    bus: SlotbusClient, tmp_path: Path
) -> None:
    program = tmp_path / "worker"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    config = SchedulerConfig(command=[str(program)])
    await bus.start(job_id="j", slots=1, scheduler_config=config)
    program.rename(tmp_path / "away")
    with pytest.raises(StartFailed, match="run 1 was stopped, and the next was not started"):
        await again(bus)
    assert (await bus.job("j")).state is RunState.FAILED
    (tmp_path / "away").rename(program)
    reply = await again(bus)
    assert reply is not None
    assert reply.run_id == 3


async def test_under_one_command_id_it_happens_once(bus: SlotbusClient) -> None:
    await bus.start(job_id="j", slots=1, scheduler_config=SLEEP)
    first = await again(bus, command_id="c-again")
    second = await again(bus, command_id="c-again")
    assert first == second
    assert (await bus.job("j")).run_id == 2
    with pytest.raises(Invalid, match="c-again"):
        await again(bus, command_id="c-again", slots=2)


async def test_a_job_that_is_not_there(bus: SlotbusClient) -> None:
    with pytest.raises(UnknownJob):
        await again(bus, "nothing")
    with pytest.raises(UnknownJob):
        await wait_for(bus, "nothing", Goal.RUNNING)


# --- waiting ----------------------------------------------------------------------------------


async def test_waiting_ends_when_the_run_gets_there(bus: SlotbusClient) -> None:
    await bus.start(job_id="j", slots=1, scheduler_config=SLEEP)
    assert (await wait_for(bus, "j", Goal.RUNNING)).state is RunState.RUNNING
    async with background(wait_for(bus, "j", Goal.STOPPED, timeout_s=20)) as stopped:
        await asyncio.sleep(0)
        await bus.stop("j", force=True)
        assert (await stopped).state is RunState.STOPPED


async def test_waiting_ends_when_the_run_will_never_get_there(bus: SlotbusClient) -> None:
    await bus.start(job_id="bad", slots=1, scheduler_config=BAD)
    with pytest.raises(GoalMissed, match="run 1 of bad is failed, and will not be finished"):
        await wait_for(bus, "bad", Goal.FINISHED, timeout_s=20)
    with pytest.raises(GoalMissed, match="will not be running"):
        await wait_for(bus, "bad", Goal.RUNNING, timeout_s=20)
    assert (await wait_for(bus, "bad", Goal.STOPPED, timeout_s=20)).state is RunState.FAILED


async def test_a_run_that_is_replaced_while_it_is_waited_for(bus: SlotbusClient) -> None:
    await bus.start(job_id="j", slots=1, scheduler_config=SLEEP)
    async with background(wait_for(bus, "j", Goal.FINISHED, timeout_s=20)) as waiting:
        await asyncio.sleep(0.05)  # it waits for run 1 by then, or for none
        await again(bus)
        with pytest.raises(GoalMissed, match="run 1 of j is stopped"):
            await waiting


async def test_waiting_goes_on_with_the_runs_that_follow_by_themselves(
    bus: SlotbusClient, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    second_time = SchedulerConfig(
        command=["sh", "-c", f"sleep 0.2; test -e {seen} && exit 0; touch {seen}; exit 3"]
    )
    await bus.start(
        job_id="j",
        slots=1,
        on_failure="restart",
        restart=RestartOptions(first_s=0.1),
        scheduler_config=second_time,
    )
    last = await wait_for(bus, "j", Goal.FINISHED, timeout_s=20)
    assert (last.run_id, last.state, last.restart_of) == (2, RunState.FINISHED, 1)
    with pytest.raises(GoalMissed, match="run 1 of j is failed"):
        await wait_for(bus, "j", Goal.FINISHED, run_id=1, timeout_s=20)


async def test_a_restart_by_hand_keeps_the_policy(bus: SlotbusClient) -> None:
    how = RestartOptions(first_s=0.1, limit=3)
    await bus.start(
        job_id="j",
        slots=1,
        on_failure="restart",
        on_drain="stop",
        restart=how,
        priority=4,
        scheduler_config=SLEEP,
    )
    before = await bus.job("j")
    await again(bus)
    after = await bus.job("j")
    assert (after.policy, after.priority) == (before.policy, 4)


async def test_waiting_has_an_end(bus: SlotbusClient) -> None:
    await bus.start(job_id="j", slots=1, scheduler_config=SLEEP)
    with pytest.raises(CommandTimeout, match="is running, and not finished within 0.2 s"):
        await wait_for(bus, "j", Goal.FINISHED, timeout_s=0.2)


# --- what only a leader in trouble shows ------------------------------------------------------


def job_reply(**fields: object) -> JobReply:
    usual: dict[str, object] = {
        "job_id": "j", "name": "j", "run_id": 4, "state": RunState.RUNNING, "since": DAWN,
        "slots": 2, "workers": 1, "command_id": "c", "hash": "", "defined": True,
        "deadline": DAWN, "highest_run": 4,
    }  # fmt: skip
    return JobReply(**{**usual, **fields})  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def troubled(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> AsyncIterator[tuple[SlotbusClient, FakeLeader]]:
    """A client, and a leader that says what it is told to."""
    leader = FakeLeader(nc, subjects)
    node = NodeRow(
        node_id="n1",
        addr="",
        state=NodeState.READY,
        registered_slots=4,
        free_slots=4,
        scheduled_slots=0,
        heartbeat_age_s=1,
        labels={},
    )
    await leader.will("query.nodes", NodesReply(nodes=[node]))
    await leader.will("query.workers", WorkersReply(workers=[]))
    async with SlotbusClient.connect(nats_server.url, subjects.root) as client:
        yield client, leader


async def test_nothing_is_started_beside_workers_that_may_live(
    troubled: tuple[SlotbusClient, FakeLeader],
) -> None:
    bus, leader = troubled
    await leader.will("query.job", job_reply())
    await leader.will(
        "cmd.stop", StopReply(command_id="c", job_id="j", workers=[], unconfirmed=["w1"])
    )
    await leader.will("cmd.start", StartReply(command_id="c", job_id="j", run_id=5, workers=[]))
    with pytest.raises(Unconfirmed, match="nothing was started: 1 workers") as caught:
        await again(bus)
    assert caught.value.facts["unconfirmed"] == ["w1"]
    assert leader.bodies("cmd.start") == []
    assert leader.bodies("cmd.stop")[0]["run_id"] == 4
    reply = await again(bus, anyway=True)
    assert reply is not None
    assert reply.run_id == 5


async def test_a_definition_that_is_forgotten(
    troubled: tuple[SlotbusClient, FakeLeader],
) -> None:
    bus, leader = troubled
    await leader.will("query.job", job_reply(state=RunState.STOPPED, workers=0, defined=False))
    with pytest.raises(DefinitionForgotten, match="run 4 of j was started with"):
        await again(bus)


def test_room_after_a_stop() -> None:
    def node(name: str, state: NodeState = NodeState.READY, **labels: str) -> NodeRow:
        return NodeRow(
            node_id=name,
            addr="",
            state=state,
            registered_slots=4,
            free_slots=1,
            scheduled_slots=3,
            heartbeat_age_s=None,
            labels=labels,
        )

    def worker(node_id: str, slots: int) -> WorkerRow:
        return WorkerRow(
            worker_id=f"w-{node_id}",
            job_id="j",
            run_id=1,
            node_id=node_id,
            slots=slots,
            state=WorkerState.RUNNING,
            since=DAWN,
        )

    nodes = [node("a", zone="x"), node("b"), node("c", NodeState.CORDONED)]
    assert room_after(nodes, [], {}) == 2
    assert room_after(nodes, [worker("a", 2), worker("c", 3)], {}) == 4
    assert room_after(nodes, [worker("b", 2)], {"zone": "x"}) == 1
