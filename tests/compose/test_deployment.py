"""The compose deployment on a real engine: it comes up, works, and survives what containers do.

Every test begins and ends with three nodes that answer and all slots free.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from events import facts as f
from events.client import SlotbusClient
from events.states import NodeState, RunState, WorkerState
from tests.compose.deployment import (
    CONTROLLERS,
    MODULE,
    PROGRAMS,
    Deployment,
    all_free,
    docker,
    eventually,
    node,
    reaches,
    start_pipeline,
)

pytestmark = pytest.mark.timeout(600)  # the first one builds the images


@pytest_asyncio.fixture
async def bus(deployment: Deployment) -> AsyncIterator[SlotbusClient]:
    """A user of the deployment; at the end the laws hold, and nothing is left running."""
    async with deployment.client() as client:
        await eventually("all slots are free", lambda: all_free(client))
        yield client
        for job in await client.jobs():
            if job.workers:
                await client.stop(job.job_id)
        await eventually("all slots are free", lambda: all_free(client))
        await deployment.check_laws(client)


async def test_comes_up_whole_and_closed_to_others(
    deployment: Deployment, bus: SlotbusClient
) -> None:
    rows = {row.node_id: row for row in await bus.nodes()}
    assert {name: row.registered_slots for name, row in rows.items()} == {
        "node-1": 4,
        "node-2": 4,
        "node-3": 4,
    }
    assert rows["node-1"].labels == {"zone": "east", "disk": "ssd"}

    assert await deployment.leader() in CONTROLLERS
    for service in deployment.ids:
        bound = json.loads(await deployment.inspect(service, "{{json .HostConfig.PortBindings}}"))
        hosts = {entry["HostIp"] for entries in (bound or {}).values() for entry in entries}
        assert hosts <= {"127.0.0.1"}, service
        capabilities = await deployment.inspect(service, "{{.HostConfig.CapDrop}}")
        assert capabilities == "[ALL]", service
    for service in PROGRAMS:
        assert await deployment.inspect(service, "{{.Config.User}}") == "slotbus"
        assert await deployment.inspect(service, "{{.State.Health.Status}}") == "healthy"


async def test_the_example_pipeline_works(deployment: Deployment, bus: SlotbusClient) -> None:
    results: asyncio.Queue[Msg] = asyncio.Queue()
    await bus.nc.subscribe("demo.results", cb=results.put)
    await deployment.compose("--profile", "demo", "up", "--detach", "feeder", "pipeline")

    async with asyncio.timeout(60):
        result = json.loads((await results.get()).data)
    assert result["job_id"] == "dairy"
    workers = {row.worker_id: row.slots for row in await bus.workers("dairy")}
    assert sum(workers.values()) == 6
    assert result["worker_id"] in workers
    await deployment.check_laws(bus)

    ended = await bus.stop("dairy")
    assert sorted(ended.workers) == sorted(workers)
    await deployment.compose("--profile", "demo", "rm", "--stop", "--force", "feeder", "pipeline")


async def test_a_killed_agent_container_is_a_lost_node(
    deployment: Deployment, bus: SlotbusClient
) -> None:
    first = await start_pipeline(bus, "killed", 6)
    assert {row.node_id: row.slots for row in first.values()} == {"node-1": 4, "node-2": 2}
    assert len(await deployment.pipeline_pids("node-1")) == 1

    await deployment.tell("kill", "agent-1")
    await reaches(bus, "node-1", NodeState.EXPIRED)
    states = {row.node_id: row.state for row in await bus.workers("killed")}
    assert states == {"node-1": WorkerState.LOST, "node-2": WorkerState.RUNNING}
    assert await deployment.pipeline_pids("node-1") == []

    stopped = await bus.stop("killed")
    assert stopped.unconfirmed == [w for w, row in first.items() if row.node_id == "node-1"]
    second = await start_pipeline(bus, "killed", 6)
    assert {row.node_id for row in second.values()} == {"node-2", "node-3"}

    await deployment.tell("start", "agent-1")
    await reaches(bus, "node-1", NodeState.READY)
    await bus.stop("killed", run_id=2)
    await eventually("the lost worker's slots are free", lambda: all_free(bus))
    ended = [
        fact
        for fact in await deployment.facts(bus.nc)
        if isinstance(fact, f.WorkerEnded) and fact.worker_id in stopped.unconfirmed
    ]
    assert len(ended) == 1
    assert ended[0].exit_code is None  # nobody saw how it ended


async def test_a_frozen_node_comes_back_to_a_run_that_was_replaced(
    deployment: Deployment, bus: SlotbusClient
) -> None:
    old = await start_pipeline(bus, "frozen", 4)
    assert {row.node_id for row in old.values()} == {"node-1"}
    await deployment.tell("pause", "agent-1")
    try:
        await reaches(bus, "node-1", NodeState.EXPIRED)
        stopped = await bus.stop("frozen")
        assert stopped.unconfirmed == list(old)
        await start_pipeline(bus, "frozen", 6)
        assert len(await deployment.pipeline_pids("node-1")) == 1  # it is there still, frozen
    finally:
        await deployment.tell("unpause", "agent-1")

    await reaches(bus, "node-1", NodeState.READY)

    async def old_is_gone() -> bool:
        return not await deployment.pipeline_pids("node-1")

    await eventually("the old run's worker is stopped on its return", old_is_gone)
    await deployment.check_laws(bus)
    rows = await bus.workers("frozen")
    assert {(row.run_id, row.node_id) for row in rows} == {(2, "node-2"), (2, "node-3")}


async def test_a_node_cut_from_the_network_comes_back_with_its_workers(
    deployment: Deployment, bus: SlotbusClient
) -> None:
    before = await start_pipeline(bus, "cut", 6)
    pids = await deployment.pipeline_pids("node-1")
    network = await deployment.network()
    await docker("network", "disconnect", network, deployment.ids["agent-1"])
    try:
        await reaches(bus, "node-1", NodeState.EXPIRED)
        assert await deployment.pipeline_pids("node-1") == pids
        lost = [row for row in await bus.workers("cut") if row.state is WorkerState.LOST]
        assert [row.node_id for row in lost] == ["node-1"]
    finally:
        await docker("network", "connect", network, deployment.ids["agent-1"])

    await reaches(bus, "node-1", NodeState.READY)

    async def all_running() -> bool:
        rows = await bus.workers("cut")
        return {row.worker_id: row.state for row in rows} == dict.fromkeys(
            before, WorkerState.RUNNING
        )

    await eventually("the lost worker runs again, under its id", all_running)
    assert await deployment.pipeline_pids("node-1") == pids
    await deployment.check_laws(bus)


async def test_nats_restarted_under_load_loses_nothing(
    deployment: Deployment, bus: SlotbusClient
) -> None:
    before = await start_pipeline(bus, "restarted", 6)
    known = len(await deployment.records(bus.nc))
    await deployment.tell("restart", "nats")

    more = await start_pipeline(bus, "restarted-2", 2)
    assert len(more) == 1
    assert set(before) == {row.worker_id for row in await bus.workers("restarted")}
    since = (await deployment.records(bus.nc))[known:]
    happened = [fact for record in since for fact in record.events]
    assert not [fact for fact in happened if isinstance(fact, f.NodeExpired | f.WorkerEnded)]
    await deployment.check_laws(bus)


async def test_the_standby_takes_over_from_a_killed_leader(
    deployment: Deployment, bus: SlotbusClient
) -> None:
    before = await start_pipeline(bus, "led", 6)
    dead = await deployment.leader()
    await deployment.tell("kill", dead)
    try:
        await start_pipeline(bus, "led-2", 6)
        assert await deployment.leader() in set(CONTROLLERS) - {dead}
        assert set(before) == {row.worker_id for row in await bus.workers("led")}
        assert (await node(bus, "node-1")).free_slots == 0
        await deployment.check_laws(bus)
    finally:
        await deployment.tell("start", dead)
    await deployment.ready(dead)


async def test_stopped_in_order_and_started_again(
    deployment: Deployment, bus: SlotbusClient
) -> None:
    """As for an upgrade of the whole: workers are asked to end, every program ends with 0,
    and the event log goes on where it was."""
    workers = await start_pipeline(bus, "upgraded", 6)
    known = len(await deployment.records(bus.nc))
    await deployment.compose("stop", *PROGRAMS)
    for service in PROGRAMS:
        assert await deployment.inspect(service, "{{.State.ExitCode}}") == "0", service
    await deployment.compose("restart", "nats")
    await deployment.compose("up", "--no-build", "--wait")

    await eventually("all slots are free", lambda: all_free(bus))
    since = (await deployment.records(bus.nc))[known:]
    ended = {
        fact.worker_id: fact.exit_code
        for record in since
        for fact in record.events
        if isinstance(fact, f.WorkerEnded)
    }
    assert ended == dict.fromkeys(workers, 0)
    (job,) = await bus.jobs("upgraded")
    assert job.state is RunState.FINISHED
    assert MODULE not in await docker("top", deployment.ids["agent-1"], "-eo", "pid,args")
