"""Real traffic against the schemas: a controller, agents and clients on a real NATS server."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from controller.reference.catalogue import MESSAGES, ErrorReply
from events.client import SlotbusClient
from events.errors import Invalid, NodeAlive, NotEnoughSlots, StartFailed, UnknownJob
from events.ids import ID_PATTERN
from events.messages import SchedulerConfig
from events.subjects import Subjects
from schedulers.node.config import AgentConfig
from tests.support.agents import running
from tests.support.controllers import Caller, config_for, controller
from tests.support.nats import connected
from tests.support.waiting import DEADLINE_S, until
from tests.support.wiretap import tapped
from tests.support.workers import exits, prints


async def everything(bus: SlotbusClient, caller: Caller) -> None:
    """Each command and query at least once, and refusals of several kinds."""
    talks = SchedulerConfig(command=prints(3), selector={"zone": "a"})
    program = {"text": 'ä\n"q"', "steps": [1, 2.5, None]}
    reply = await bus.start(
        job_id="talks", slots=3, program=program, env_vars={"A": "b"}, scheduler_config=talks
    )
    worker_id = reply.workers[0].worker_id
    tail = await bus.nc.request(
        bus.subjects.agent("n1", "logs"), f'{{"worker_id": "{worker_id}"}}'.encode()
    )
    assert tail.data
    about = await bus.nc.request(bus.subjects.agent("n1", "about"), b"")
    assert about.data
    await bus.start(job_id="ends", slots=1, scheduler_config=SchedulerConfig(command=exits(3)))
    await caller.cmd("start", job_id="accepted", slots=1, wait_s=0, wiat_s=3)
    with pytest.raises(NotEnoughSlots):
        await bus.start(job_id="huge", slots=100)
    wrong = SchedulerConfig(command=["/no/such/program"])
    with pytest.raises(StartFailed):
        await bus.start(job_id="wrong", slots=1, scheduler_config=wrong)
    with pytest.raises(UnknownJob):
        await bus.stop("nobody")
    with pytest.raises(Invalid):
        await caller.cmd("stop", job_id="a b")
    await caller.cmd("start", job_id="waits", slots=100, on_shortage="wait", wait_s=0)
    await caller.query("shortage")
    await bus.drain("n1", deadline_s=0)
    with pytest.raises(NodeAlive):
        await bus.confirm_dead("n1")
    await bus.cordon("n1")
    await bus.uncordon("n1")
    await bus.workers(include_ended=True)
    await bus.jobs()
    await bus.nodes()
    await caller.query("job", job_id="talks")
    await caller.query("node", node_id="n1")
    await caller.query("worker", worker_id=worker_id)
    await caller.query("leader")
    assert await bus.ask(bus.subjects.tap, b'{"tap_id": "t-1", "hold_s": 2, "opening": true}')
    await caller.cmd("rebuild")
    assert await bus.ask(bus.subjects.tap, b'{"tap_id": "t-1", "hold_s": 2, "opening": true}')
    await bus.stop("talks")


async def confirmed_dead(caller: Caller) -> None:
    """A node that was never heard of again; only of an expired one can it be said."""
    registered = {"task_slots": 1, "incarnation": "i", "machine_id": "m"}
    await caller.node("gone", "register", **registered)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(NodeAlive):
                await caller.cmd("confirm_dead", node_id="gone")
                return
            await asyncio.sleep(0.1)


def names(*kinds: type) -> set[str]:
    return {kind.__name__ for kind in kinds}


async def test_all_that_is_said_fits_its_schema(
    nats_server: EmbeddedServer,
    subjects: Subjects,
    nc: Client,
    agent_config: AgentConfig,
    tmp_path: Path,
) -> None:
    config = config_for(
        nats_server.url,
        subjects,
        tmp_path / "c",
        scheduler="node",
        heartbeat_s=0.2,
        node_expiry_s=3.0,
    )
    patient = replace(agent_config, request_timeout_s=1.0, worker_command=["sleep", "600"])
    caller = Caller(nc, subjects)
    async with (
        connected(nats_server.url) as ears,
        tapped(ears, subjects) as tap,
        running(patient, accepted=False),
    ):
        async with controller(config) as first:
            await first.leading()
            await caller.until_nodes(1)
            await everything(SlotbusClient(nc, subjects.root), caller)
            await until(lambda: tap.kinds()["HeartbeatReply"] > 2)
            await until(lambda: tap.kinds()["LogLines"] > 0)
        async with controller(config) as second:  # which asks the agent what it runs
            await second.leading()
            await caller.until_nodes(1)
            await caller.cmd("stop", job_id="accepted")
            await confirmed_dead(caller)
    assert names(*MESSAGES, ErrorReply) - tap.kinds().keys() == set()
    # What was said wrong on purpose, and nothing else.
    misspelt = "Additional properties are not allowed ('wiat_s' was unexpected)"
    wrong = f"'a b' does not match '{ID_PATTERN.removesuffix(chr(92) + 'Z')}$'"
    assert tap.complaints() == [
        f"{subjects.cmd('start')}: $: {misspelt}",
        f"{subjects.cmd('stop')}: $.job_id: {wrong}",
    ]
