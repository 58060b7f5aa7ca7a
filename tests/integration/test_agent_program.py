"""``slotbus agent``: the agent with its pages, from its start to its orderly end."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest
from nats.aio.client import Client

from controller.agent import AgentHealth, AgentMetrics, run_agent_program
from controller.embedded import EmbeddedServer
from controller.http import Phase
from events.errors import Invalid
from events.subjects import Subjects
from events.traffic import HeartbeatReply, RegisterReply
from schedulers.node.config import AgentConfig
from schedulers.node.stats import AgentStats
from tests.support.leader import FakeLeader, eventually


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


ACCEPTED = RegisterReply(epoch=7, heartbeat_s=0.2, expiry_s=5)


@pytest.mark.parametrize(
    ("stats", "phase"),
    [
        (AgentStats(), Phase.CONNECTING),
        (AgentStats(connected=True), Phase.STARTING),
        (AgentStats(connected=True, standing="duplicate"), Phase.STARTING),
        (AgentStats(connected=True, standing="accepted"), Phase.LEADING),
        (AgentStats(connected=False, standing="accepted"), Phase.CONNECTING),
    ],
)
def test_health_follows_the_agents_standing(stats: AgentStats, phase: Phase) -> None:
    assert (AgentHealth(stats).phase, AgentHealth(stats).failure) == (phase, "")


async def test_every_count_is_a_series() -> None:
    stats = AgentStats(starts=3, ends_waiting=2, standing="accepted", connected=True)
    body = (await AgentMetrics(stats).render()).decode()
    for line in (
        "slotbus_agent_starts_total 3.0",
        "slotbus_agent_ends_waiting 2.0",
        "slotbus_agent_accepted 1.0",
        "slotbus_agent_connected 1.0",
    ):
        assert f"\n{line}\n" in body


async def test_the_pages_tell_when_a_controller_has_taken_it(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    leader = FakeLeader(nc, subjects)
    pages = f"127.0.0.1:{free_port()}"
    config = AgentConfig(
        server=nats_server.url,
        root=subjects.root,
        node_id="n1",
        state_dir=str(tmp_path / "n1"),
        http=pages,
        stop_workers_on_exit=True,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(run_agent_program(config, stop=stop))
    async with aiohttp.ClientSession(f"http://{pages}") as http:

        async def page(path: str) -> tuple[int, str]:
            async with http.get(path) as answer:
                return answer.status, await answer.text()

        async with asyncio.timeout(30):
            while True:
                try:
                    status, _ = await page("/readyz")
                    break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.01)
        assert status == 503
        await leader.will("node.n1.register", ACCEPTED)
        await leader.will("node.n1.heartbeat", HeartbeatReply(epoch=7))
        await eventually(lambda: len(leader.bodies("node.n1.heartbeat")) > 1, within=30)
        assert await page("/readyz") == (200, "ok\n")
        _, metrics = await page("/metrics")
        assert "\nslotbus_agent_epoch 7.0\n" in metrics
    stop.set()
    await running
    assert leader.bodies("node.n1.register")[0]["task_slots"] == 16


async def test_an_address_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = AgentConfig(state_dir=str(tmp_path / "n1"), http="nowhere")
    with pytest.raises(Invalid):
        await run_agent_program(config, stop=asyncio.Event())
    assert not (tmp_path / "n1").exists()
