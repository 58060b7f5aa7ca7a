"""Commands without a pause while leaders are killed: every law holds, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.audit import audit
from events.errors import NotEnoughSlots, RunActive, SlotbusError, StartFailed, UnknownJob
from events.facts import CommandDone, CommandTaken, WorkerLaunched
from events.jetstream import JetStreamLog
from events.subjects import Subjects
from schedulers.node.config import AgentConfig
from tests.support.agents import end_supervisor, running
from tests.support.controllers import Caller, ControllerProcess, config_for
from tests.support.records import read_all
from tests.support.waiting import until

KILLS = 3
CLIENTS = 4
OUTCOMES_A_KILL = 15
REFUSALS = (NotEnoughSlots, RunActive, StartFailed, UnknownJob)


class Restless:
    """Starts and stops its own job, again and again, each under one command_id."""

    def __init__(self, caller: Caller, job_id: str, seed: int) -> None:
        self.caller = caller
        self.job_id = job_id
        self.random = random.Random(seed)
        self.outcomes: dict[str, dict[str, Any] | SlotbusError] = {}
        self.ending = False

    async def run(self) -> None:
        number = 0
        while not self.ending:
            number += 1
            verb = self.random.choice(["start", "stop"])
            fields: dict[str, object] = {"job_id": self.job_id}
            if verb == "start":
                fields["slots"] = self.random.randint(1, 4)
            else:
                fields["force"] = True
            command_id = f"{self.job_id}-{number}"
            try:
                reply = await self.caller.cmd_patiently(verb, command_id=command_id, **fields)
                self.outcomes[command_id] = reply
            except REFUSALS as error:
                self.outcomes[command_id] = error


@pytest.mark.timeout(120)
async def test_leaders_die_under_load(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    config = config_for(
        nats_server.url, subjects, tmp_path / "c", scheduler="node", heartbeat_s=0.2, http="off"
    )
    node_dir = tmp_path / "n1"
    agent = AgentConfig(
        server=nats_server.url,
        root=subjects.root,
        node_id="n1",
        slots=12,
        state_dir=str(node_dir),
        worker_command=["sleep", "600"],
        request_timeout_s=1.0,
    )
    caller = Caller(nc, subjects)
    leader = await ControllerProcess.start(config, tmp_path / "0.log")
    try:
        await leader.leading()
        async with running(agent):
            async with asyncio.TaskGroup() as group:
                clients = [Restless(caller, f"job{n}", seed=n) for n in range(CLIENTS)]
                for client in clients:
                    group.create_task(client.run())
                for kill in range(1, KILLS + 1):
                    await _more_outcomes(clients)
                    successor = await ControllerProcess.start(config, tmp_path / f"{kill}.log")
                    await leader.kill()
                    leader = successor
                    await leader.leading()
                await _more_outcomes(clients)
                for client in clients:
                    client.ending = True
            await _stop_all(caller)
            assert await caller.workers() == []
        await _check_log(nc, subjects, clients)
    finally:
        await leader.kill()
        await end_supervisor(node_dir)


async def _more_outcomes(clients: list[Restless]) -> None:
    """Waits until there is so much more to check."""
    wanted = sum(len(client.outcomes) for client in clients) + OUTCOMES_A_KILL
    await until(lambda: sum(len(client.outcomes) for client in clients) >= wanted)


async def _stop_all(caller: Caller) -> None:
    for row in (await caller.query("jobs"))["jobs"]:
        await caller.cmd_patiently("stop", job_id=row["job_id"], force=True)


async def _check_log(nc: Client, subjects: Subjects, clients: list[Restless]) -> None:
    records = await read_all(JetStreamLog(nc, subjects))
    assert audit(records) == []
    facts = [fact for record in records for fact in record.events]
    taken = Counter(fact.command_id for fact in facts if isinstance(fact, CommandTaken))
    done = {fact.command_id: fact for fact in facts if isinstance(fact, CommandDone)}
    assert set(taken.values()) == {1}
    answered = {cid: outcome for client in clients for cid, outcome in client.outcomes.items()}
    assert len(answered) >= OUTCOMES_A_KILL * (KILLS + 1)
    for command_id, outcome in answered.items():
        said = outcome.body() if isinstance(outcome, SlotbusError) else {**outcome, "warnings": []}
        assert done[command_id].reply == said, command_id
    spawned = [fact.pid for fact in facts if isinstance(fact, WorkerLaunched) and fact.pid]
    for pid in spawned:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
