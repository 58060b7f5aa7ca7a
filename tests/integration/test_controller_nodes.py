"""A whole controller with agents: over NATS from the client's request to the worker."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from controller.config import ControllerConfig
from controller.embedded import EmbeddedServer
from events.errors import NotEnoughSlots, StartFailed
from events.subjects import Subjects
from tests.support.agents import process_running
from tests.support.controllers import (
    Caller,
    config_for,
    controller,
    controller_process,
    page,
    samples,
)
from tests.support.nodefleet import NodeFleet
from tests.support.waiting import background


@pytest.fixture
def config(nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path) -> ControllerConfig:
    return config_for(
        nats_server.url, subjects, tmp_path / "controller", scheduler="node", heartbeat_s=0.2
    )


@pytest.fixture
def caller(nc: Client, subjects: Subjects) -> Caller:
    return Caller(nc, subjects)


@pytest.fixture
async def fleet(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[NodeFleet]:
    made = NodeFleet(nats_server.url, subjects, tmp_path / "nodes")
    yield made
    await made.end()


async def test_a_start_goes_to_the_nodes_and_a_stop_ends_it(
    config: ControllerConfig, caller: Caller, fleet: NodeFleet
) -> None:
    async with controller(config) as made, fleet.node("n1", 4), fleet.node("n2", 6):
        info = await made.leading()
        started = await caller.cmd("start", job_id="wordcount", slots=8)
        placed = {worker["node_id"]: worker["slots"] for worker in started["workers"]}
        assert placed == {"n2": 6, "n1": 2}
        rows = await caller.workers()
        assert {row["state"] for row in rows} == {"running"}
        for row in rows:
            os.kill(row["pid"], 0)
        with pytest.raises(NotEnoughSlots) as refused:
            await caller.cmd("start", job_id="more", slots=3)
        assert refused.value.slots_needed == 1
        series = samples(await page(info, "/metrics"))
        assert series["slotbus_registered_nodes"] == 2
        assert series["slotbus_free_slots"] == 2
        assert series['slotbus_node_free_slots{node_id="n1"}'] == 2
        assert series['slotbus_messages_total{kind="register"}'] >= 2
        stopped = await caller.cmd("stop", job_id="wordcount")
        assert len(stopped["workers"]) == 2
        assert await caller.workers() == []
        nodes = (await caller.query("nodes"))["nodes"]
        assert [(node["node_id"], node["free_slots"]) for node in nodes] == [("n1", 4), ("n2", 6)]


async def test_a_cordoned_node_gets_nothing_new(
    config: ControllerConfig, caller: Caller, fleet: NodeFleet
) -> None:
    async with controller(config) as made, fleet.node("n1", 4):
        await made.leading()
        assert (await caller.cmd("cordon", node_id="n1"))["state"] == "cordoned"
        with pytest.raises(NotEnoughSlots):
            await caller.cmd("start", job_id="j", slots=1)
        assert (await caller.cmd("uncordon", node_id="n1"))["state"] == "ready"
        await caller.cmd("start", job_id="j", slots=1)
        await caller.cmd("stop", job_id="j", force=True)


async def test_a_command_that_cant_run_is_a_failed_start(
    config: ControllerConfig, caller: Caller, fleet: NodeFleet
) -> None:
    async with controller(config) as made, fleet.node("n1", 4):
        await made.leading()
        with pytest.raises(StartFailed, match="no-such-program"):
            await caller.cmd(
                "start",
                job_id="j",
                slots=1,
                scheduler_config={"command": ["/no-such-program"]},
            )
        assert await caller.workers() == []


async def test_a_killed_controller_is_followed_and_nodes_notice_nothing(
    config: ControllerConfig, caller: Caller, fleet: NodeFleet, tmp_path: Path
) -> None:
    async with (
        controller_process(config, tmp_path / "first.log") as first,
        process_running(fleet.config("n1")),
    ):
        old = (await first.leading()).epoch
        await caller.until_nodes(1)
        await caller.cmd("start", job_id="j", slots=3)
        before = await caller.workers()
        async with controller(config) as second:
            await first.kill()
            # Asked while nobody leads, as clients do: again, under the same command_id.
            async with background(caller.cmd_patiently("start", job_id="k", slots=1)) as asking:
                new = (await second.leading()).epoch
                assert new > old
                started = await asking
            rows = await caller.workers(job_id="j")
            assert rows == before
            os.kill(rows[0]["pid"], 0)
            assert started["workers"][0]["node_id"] == "n1"
            await caller.cmd("stop", job_id="j")
            await caller.cmd("stop", job_id="k")
            nodes = (await caller.query("nodes"))["nodes"]
            assert [(node["state"], node["free_slots"]) for node in nodes] == [("ready", 4)]


async def test_a_silent_node_expires_and_returns_with_its_workers(
    config: ControllerConfig, caller: Caller, fleet: NodeFleet
) -> None:
    quick = replace(config, node_expiry_s=1.0)
    async with controller(quick) as made, process_running(fleet.config("n1")) as agent:
        info = await made.leading()
        await caller.until_nodes(1)
        await caller.cmd("start", job_id="j", slots=1)
        before = await caller.workers()
        agent.freeze()
        await caller.until_workers("lost")
        series = samples(await page(info, "/metrics"))
        assert series["slotbus_registered_nodes"] == 0
        assert series["slotbus_free_slots"] == 0
        agent.thaw()
        after = await caller.until_workers("running")
        assert [row["pid"] for row in after] == [row["pid"] for row in before]
        await caller.cmd("stop", job_id="j")
