"""Policies, waiting and draining on real nodes: controller, agents, supervisors, processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from controller.config import ControllerConfig
from controller.embedded import EmbeddedServer
from events.client import SlotbusClient
from events.errors import NodeAlive, TooLate
from events.messages import SchedulerConfig
from events.policies import RestartOptions
from events.queries import JobReply, NodeDetailReply, WaitingRow
from events.states import NodeState, RunState, WorkerState
from events.subjects import Subjects
from tests.support.agents import end_supervisor
from tests.support.controllers import config_for, controller, page, samples
from tests.support.nodefleet import NodeFleet
from tests.support.supervision import alive
from tests.support.waiting import DEADLINE_S

QUICK = RestartOptions(first_s=0.2, longest_s=1.0)


@pytest.fixture
def config(nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path) -> ControllerConfig:
    return config_for(
        nats_server.url,
        subjects,
        tmp_path / "controller",
        scheduler="node",
        heartbeat_s=0.2,
        node_expiry_s=2.0,
    )


@pytest.fixture
def bus(nc: Client, subjects: Subjects) -> SlotbusClient:
    return SlotbusClient(nc, subjects.root)


@pytest.fixture
async def fleet(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[NodeFleet]:
    made = NodeFleet(nats_server.url, subjects, tmp_path / "nodes")
    yield made
    await made.end()


@pytest.fixture
def short_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our workers die of TERM at once: leases end, for the leader, soon after they do."""
    monkeypatch.setattr("events.policies.LEASE_GRACE_S", 1.0)
    monkeypatch.setattr("events.policies.LEASE_MARGIN_S", 1.0)


async def job_until(
    bus: SlotbusClient, run_id: int, state: RunState, job_id: str = "j"
) -> JobReply:
    """The job, once its newest run is this one and in this state."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            job = await bus.job(job_id)
            if (job.run_id, job.state) == (run_id, state):
                return job
            assert job.run_id <= run_id, job
            await asyncio.sleep(0.05)


async def node_until(bus: SlotbusClient, node_id: str, state: NodeState) -> NodeDetailReply:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            detail = await bus.node(node_id)
            if detail.node.state is state:
                return detail
            await asyncio.sleep(0.05)


async def workers_until(bus: SlotbusClient, states: list[WorkerState]) -> None:
    """Waits until the live workers of the job are in these states."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if [row.state for row in await bus.workers("j")] == states:
                return
            await asyncio.sleep(0.05)


async def somebody_waits(bus: SlotbusClient) -> list[WaitingRow]:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            waiting = await bus.shortage()
            if waiting:
                return waiting
            await asyncio.sleep(0.05)


async def pids(bus: SlotbusClient, job_id: str = "j") -> dict[str, int]:
    """Of the live workers of a job, by node."""
    return {row.node_id: row.pid for row in await bus.workers(job_id) if row.pid is not None}


async def test_a_killed_worker_takes_its_gang_along_and_all_begin_anew(
    config: ControllerConfig, bus: SlotbusClient, fleet: NodeFleet
) -> None:
    async with controller(config) as made, fleet.node("n1", 2), fleet.node("n2", 2):
        info = await made.leading()
        await bus.start(job_id="j", slots=4, on_failure="restart", restart=QUICK)
        old = await pids(bus)
        os.kill(old["n1"], signal.SIGKILL)
        job = await job_until(bus, 2, RunState.RUNNING)
        assert (job.restart_of, job.tries, job.restarts) == (1, 1, 1)
        new = await pids(bus)
        assert new.keys() == old.keys()
        assert not set(new.values()) & set(old.values())
        assert not any(alive(pid) for pid in old.values())
        assert samples(await page(info, "/metrics"))["slotbus_recent_restarts"] == 1
        stopped = await bus.stop("j", force=True)
        assert len(stopped.workers) == 2
        assert (await bus.job("j")).state is RunState.STOPPED


async def test_a_program_that_always_fails_is_given_up_at_the_limit(
    config: ControllerConfig, bus: SlotbusClient, fleet: NodeFleet
) -> None:
    async with controller(config) as made, fleet.node("n1", 1):
        await made.leading()
        await bus.start(
            job_id="j",
            slots=1,
            on_failure="restart",
            restart=RestartOptions(first_s=0.1, longest_s=0.1, limit=2),
            scheduler_config=SchedulerConfig(command=["sh", "-c", "sleep 0.3; exit 3"]),
        )
        job = await job_until(bus, 3, RunState.FAILED)
        assert job.reason.endswith("it was restarted 2 times within 3600 s, the limit")
        assert [run.state for run in job.runs] == [RunState.FAILED] * 3


@pytest.mark.usefixtures("short_proof")
async def test_a_lost_node_is_replaced_when_its_workers_leases_are_over(
    config: ControllerConfig, bus: SlotbusClient, fleet: NodeFleet
) -> None:
    async with controller(config) as made, contextlib.AsyncExitStack() as agents:
        await made.leading()
        async with fleet.node("n1", 2):
            await bus.start(
                job_id="j",
                slots=2,
                on_lost="restart",
                restart=QUICK,
                scheduler_config=SchedulerConfig(stop_after_s=3.0),
            )
            await agents.enter_async_context(fleet.node("n2", 2))
            old = (await pids(bus))["n1"]
        # the agent is gone; supervisor and worker are not
        await node_until(bus, "n1", NodeState.EXPIRED)
        assert alive(old)
        assert (await bus.job("j")).run_id == 1
        job = await job_until(bus, 2, RunState.RUNNING)
        assert not alive(old), "a replacement began beside a worker that lived"
        assert job.runs[0].state is RunState.FAILED
        assert "its lease of 3 s is over" in job.runs[0].reason
        assert (await pids(bus)).keys() == {"n2"}

        async with fleet.node("n1", 2):
            await node_until(bus, "n1", NodeState.READY)
            await asyncio.sleep(0.5)
            assert (await pids(bus)).keys() == {"n2"}
        await bus.stop("j", force=True)


async def test_an_only_node_that_returns_keeps_its_worker(
    config: ControllerConfig, bus: SlotbusClient, fleet: NodeFleet
) -> None:
    async with controller(config) as made:
        await made.leading()
        async with fleet.node("n1", 2):
            await bus.start(job_id="j", slots=2, on_lost="restart", on_failure="restart")
            old = await pids(bus)
        await node_until(bus, "n1", NodeState.EXPIRED)
        async with fleet.node("n1", 2):
            await node_until(bus, "n1", NodeState.READY)
            job = await job_until(bus, 1, RunState.RUNNING)
            assert job.restarts == 0
            await workers_until(bus, [WorkerState.RUNNING])
            assert await pids(bus) == old
            await bus.stop("j", force=True)


async def test_a_person_confirms_that_a_node_is_dead_and_another_takes_over(
    config: ControllerConfig, bus: SlotbusClient, fleet: NodeFleet
) -> None:
    async with controller(config) as made, contextlib.AsyncExitStack() as agents:
        await made.leading()
        async with fleet.node("n1", 2):
            await bus.start(job_id="j", slots=2, on_lost="restart", restart=QUICK)
            with pytest.raises(NodeAlive):
                await bus.confirm_dead("n1")
            await agents.enter_async_context(fleet.node("n2", 2))
            old = (await pids(bus))["n1"]
        await node_until(bus, "n1", NodeState.EXPIRED)
        await end_supervisor(fleet.state_dirs["n1"])  # somebody pulls the plug
        assert not alive(old)
        reply = await bus.confirm_dead("n1")
        assert reply.count == 1
        await job_until(bus, 2, RunState.RUNNING)
        assert (await pids(bus)).keys() == {"n2"}
        await bus.stop("j", force=True)


async def test_a_drain_moves_what_may_move_and_stops_the_rest(
    config: ControllerConfig, bus: SlotbusClient, fleet: NodeFleet
) -> None:
    async with controller(config) as made, fleet.node("n1", 4):
        await made.leading()
        await bus.start(job_id="moves", slots=2, on_drain="move")
        await bus.start(job_id="stops", slots=1)
        old = [*(await pids(bus, "moves")).values(), *(await pids(bus, "stops")).values()]
        asking = asyncio.create_task(bus.drain("n1", deadline_s=30))
        detail = await node_until(bus, "n1", NodeState.DRAINING)
        async with asyncio.timeout(DEADLINE_S):
            while detail.drain is None or detail.drain.remaining_count > 1:
                await asyncio.sleep(0.05)
                detail = await bus.node("n1")
        assert {left.reason for left in detail.drain.remaining} == {
            "nowhere to move: 2 slots missing"
        }
        async with fleet.node("n2", 2):
            reply = await asking
            assert (reply.complete, reply.remaining, reply.state) == (
                True,
                [],
                NodeState.CORDONED,
            )
            assert [(run.job_id, run.to_run) for run in reply.moved] == [("moves", 2)]
            assert len(reply.stopped) == 1
            await job_until(bus, 2, RunState.RUNNING, "moves")
            assert (await bus.job("stops")).state is RunState.STOPPED
            assert (await pids(bus, "moves")).keys() == {"n2"}
            assert not any(alive(pid) for pid in old)
            await bus.stop("moves", force=True)


async def test_a_drain_with_nowhere_to_go_ends_truthfully(
    config: ControllerConfig, bus: SlotbusClient, fleet: NodeFleet
) -> None:
    async with controller(config) as made, fleet.node("n1", 2), fleet.node("n2", 1):
        await made.leading()
        await bus.start(job_id="j", slots=2, on_drain="move")
        before = await pids(bus)
        reply = await bus.drain("n1", deadline_s=0.5)
        assert (reply.complete, reply.remaining_count) == (False, 1)
        assert reply.remaining[0].reason == "nowhere to move: 1 slots missing"
        assert await pids(bus) == before
        await bus.stop("j", force=True)


async def test_a_start_waits_for_a_node_and_is_seen_waiting(
    config: ControllerConfig, bus: SlotbusClient, fleet: NodeFleet
) -> None:
    async with controller(config) as made, fleet.node("n1", 1):
        info = await made.leading()
        asking = asyncio.create_task(bus.start(job_id="j", slots=3, on_shortage="wait"))
        waiting = await somebody_waits(bus)
        assert [(row.job_id, row.missing) for row in waiting] == [("j", 2)]
        series: dict[str, Any] = samples(await page(info, "/metrics"))
        assert (series["slotbus_missing_slots"], series["slotbus_waiting_starts"]) == (2, 1)
        late = asyncio.create_task(_too_late(bus))
        assert isinstance(await late, TooLate)
        async with fleet.node("n2", 2):
            reply = await asking
            assert sum(worker.slots for worker in reply.workers) == 3
            assert await bus.shortage() == []
            await bus.stop("j", force=True)


async def _too_late(bus: SlotbusClient) -> Exception:
    """The answer to a start that waits for half a second only."""
    now = (await bus.leader()).now
    try:
        await bus.start(
            job_id="late", slots=9, on_shortage="wait", not_after=now.replace(microsecond=0)
        )
    except TooLate as error:
        return error
    raise AssertionError("it was placed")
