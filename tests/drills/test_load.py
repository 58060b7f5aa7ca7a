"""More than a controller takes: commands keep their deadlines, and nobody expires by mistake."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.facts import LeaderStarted, NodeExpired
from events.jetstream import JetStreamLog
from events.subjects import Subjects
from schedulers.node.config import AgentConfig
from tests.drills.flood import Flood, heartbeats, pouring, registrations
from tests.support.agents import end_supervisor, process_running
from tests.support.auditing import check_records
from tests.support.controllers import Caller, config_for, controller_process
from tests.support.nats import connected
from tests.support.records import read_all

STORM = 10_000
NODES = 3_000
BURST = 20_000
TWICE = 2.0
FLOOD_S = 20.0
EXPIRY_S = 6.0
"""Much shorter than the flood: who is not heard in time expires within it. An agent that gets
no answers asks every five seconds or so, and a row that grows makes ten of them."""

DEADLINE_S = 10.0
"""Of each command: by then it is answered with its outcome, not with ``timeout``."""


class Place(Struct):
    """A controller, a node with an agent, and somebody who gives commands."""

    server: EmbeddedServer
    nc: Client
    subjects: Subjects
    caller: Caller
    epoch: int
    given: int = 0

    async def command(self) -> None:
        """Starts a job and stops it. Raises CommandTimeout, and whatever else goes wrong."""
        self.given += 1
        job_id = f"j{self.given}"
        await self.caller.cmd("start", job_id=job_id, slots=1, wait_s=DEADLINE_S)
        await self.caller.cmd("stop", job_id=job_id, force=True, wait_s=DEADLINE_S)

    async def commands_while(self, flowing: threading.Thread) -> int:
        """One after the other; how many it were."""
        before = self.given
        while flowing.is_alive():
            await self.command()
        return self.given - before

    async def until_known(self, nodes: int) -> None:
        async with asyncio.timeout(60):
            while (await self.caller.query("leader"))["nodes"] < nodes:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def check_log(self) -> None:
        """The laws hold, nobody expired, and one leader led all the time."""
        records = await read_all(JetStreamLog(self.nc, self.subjects, create=False))
        check_records(records)
        facts = [fact for record in records for fact in record.events]
        assert [f.node_id for f in facts if isinstance(f, NodeExpired)] == []
        assert len([f for f in facts if isinstance(f, LeaderStarted)]) == 1


@asynccontextmanager
async def a_place(server: EmbeddedServer, folder: Path, expiry_s: float) -> AsyncIterator[Place]:
    subjects = Subjects("load")
    config = config_for(
        server.url,
        subjects,
        folder / "c1",
        scheduler="node",
        heartbeat_s=0.5,
        node_expiry_s=expiry_s,
        http="off",
        lease_ttl_s=6,
    )
    agent = AgentConfig(
        server=server.url,
        root=subjects.root,
        node_id="n1",
        slots=4,
        state_dir=str(folder / "n1"),
        worker_command=["sleep", "600"],
        request_timeout_s=1.0,
    )
    try:
        async with (
            connected(server.url) as nc,
            controller_process(config, folder / "c1.log") as made,
            process_running(agent),
        ):
            caller = Caller(nc, subjects)
            epoch = (await made.leading()).epoch
            await caller.until_nodes(1)
            place = Place(server, nc, subjects, caller, epoch)
            yield place
            await place.check_log()
    finally:
        await end_supervisor(folder / "n1")


@pytest.mark.timeout(180)
async def test_a_storm_of_registrations_delays_no_command(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with a_place(own_nats_server, tmp_path, expiry_s=120.0) as place:
        fleet = registrations(place.subjects, STORM)
        for _ in ("they are new", "they are known, and asked what they run"):
            flood = Flood(own_nats_server.port, fleet)
            with pouring(flood, partial(flood.write, STORM)):
                for _ in range(5):
                    await place.command()
            await place.until_known(STORM + 1)


@pytest.mark.timeout(240)
async def test_twice_the_heartbeats_that_are_taken_cost_nobody_anything(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with a_place(own_nats_server, tmp_path, EXPIRY_S) as place:
        port, subjects = own_nats_server.port, place.subjects
        beats = heartbeats(subjects, NODES, place.epoch)
        enrolling = Flood(port, registrations(subjects, NODES))
        await asyncio.to_thread(enrolling.write, NODES)
        enrolling.close()
        flood = Flood(port, beats)
        began = time.monotonic()
        await asyncio.to_thread(flood.write, BURST)
        await asyncio.to_thread(flood.until_taken)
        taken_a_second = BURST / (time.monotonic() - began)
        flood.close()
        flood = Flood(port, beats)
        rate = TWICE * taken_a_second
        with pouring(flood, partial(flood.write_at, rate, FLOOD_S)) as flowing:
            given = await place.commands_while(flowing)
        assert given > 0
