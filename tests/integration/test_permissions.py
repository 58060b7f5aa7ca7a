"""The permissions that docs/nats.md gives to each role: enough, and not more; what denial says."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
import pytest_asyncio

from controller.embedded import EmbeddedServer
from controller.outside import Outside
from controller.recordsettings import RecordSettings
from events.asking import Patience
from events.client import SlotbusClient
from events.connection import Access
from events.denials import Denied
from events.messages import SchedulerConfig
from events.subjects import Subjects
from schedulers.files import replay_file
from schedulers.node.agent import run_agent
from schedulers.node.config import AgentConfig
from tests.support.controllers import config_for, controller
from tests.support.waiting import DEADLINE_S, background, until

DOCS = Path(__file__).resolve().parents[2] / "docs" / "nats.md"
TALK = ["sh", "-c", "echo hello; trap 'exit 0' TERM; while :; do sleep 0.05; done"]


def documented() -> str:
    """The configuration in docs/nats.md."""
    found = re.search(r"<!-- tested: permissions -->\n```\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(tmp_path / "nats", config=documented()) as made:
        yield made


def violations(server: EmbeddedServer) -> list[str]:
    """What the server refused, by its own log."""
    return re.findall(r"(?:Publish|Subscription) Violation.*", server.log_path.read_text())


def access(user: str, inbox: str) -> Access:
    return Access(user=user, password="change-me", inbox_prefix=inbox)


@asynccontextmanager
async def cluster(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[SlotbusClient]:
    """A controller, an agent and a client, each as its own user."""
    ours = config_for(
        server.url,
        Subjects(),
        tmp_path / "controller",
        scheduler="node",
        user="controller",
        password="change-me",
        inbox_prefix="_INBOX_controller",
    )
    agent = AgentConfig(
        server=server.url,
        node_id="n1",
        slots=4,
        state_dir=str(tmp_path / "n1"),
        http="off",
        user="agent-n1",
        password="change-me",
        inbox_prefix="_INBOX_agent_n1",
        stop_workers_on_exit=True,
        exit_grace_s=0.2,
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    async with (
        controller(ours) as leader,
        background(run_agent(agent, ready=ready.set, stop=stop)) as running,
        SlotbusClient.connect(server.url, access=access("client", "_INBOX_client")) as bus,
    ):
        await leader.leading()
        async with asyncio.timeout(DEADLINE_S):
            await ready.wait()
        yield bus
        stop.set()
        await running


async def test_each_role_can_do_its_work_and_the_server_refuses_nothing(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with cluster(server, tmp_path) as bus:
        reply = await bus.start(job_id="j", slots=2, scheduler_config=SchedulerConfig(command=TALK))
        assert [worker.node_id for worker in reply.workers] == ["n1"]
        assert (await bus.job("j")).defined
        assert (await bus.leader()).nodes == 1
        lines = [piece.text async for piece in bus.logs("j")]
        assert "".join(lines) == "hello\n"
        async with contextlib.aclosing(bus.logs("j", follow=True)) as following:
            async for piece in following:
                assert piece.text == "hello\n"
                break
        assert (await bus.stop("j", grace_s=2)).workers
        facts = [len(record.events) async for record in bus.events(job_id="j")]
        assert facts
    assert violations(server) == []


async def test_a_recorder_may_record_and_nothing_else(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    path, stop = tmp_path / "a.jsonl", asyncio.Event()
    settings = RecordSettings(folder=tmp_path, name=path.name)
    async with (
        cluster(server, tmp_path) as bus,
        SlotbusClient.connect(server.url, access=access("recorder", "_INBOX_recorder")) as ears,
    ):
        outside = Outside(ears, settings, said=print, begun=lambda: None)
        async with background(outside.run(stop)) as recording:
            await until(path.exists)
            await bus.start(job_id="j", slots=1, scheduler_config=SchedulerConfig(command=TALK))
            await until(lambda: "j" in replay_file(path).ledger.jobs)
            stop.set()
            await recording
        with pytest.raises(Denied, match=r"publish on slotbus\.cmd\.stop"):
            await ears.stop("j")
        await bus.stop("j", grace_s=2)
    async with SlotbusClient.connect(server.url, access=access("client", "_INBOX_client")) as bus:
        with pytest.raises(Denied, match=r"slotbus\.(inbox|tap)"):
            await Outside(bus, settings, said=print, begun=lambda: None).run(stop)


async def test_a_client_may_not_pose_as_a_node_or_write_the_log(
    server: EmbeddedServer,
) -> None:
    denied: list[str] = []

    async def on_error(error: Exception) -> None:
        denied.append(str(error))

    nc = await nats.connect(server.url, user="client", password="change-me", error_cb=on_error)
    forbidden = (
        *("slotbus.node.n1.heartbeat", "slotbus.eventlog", "slotbus.event.job.j"),
        *("slotbus.agent.n1.start", "$JS.API.STREAM.DELETE.SLOTBUS_LOG"),
        "$KV.slotbus_lease.leader",
    )
    for subject in forbidden:
        await nc.publish(subject, b"{}")
    await nc.flush()
    await nc.close()
    assert [
        subject for subject in forbidden if not any(subject.lower() in text for text in denied)
    ] == []


async def test_what_may_not_be_asked_is_said_at_once(server: EmbeddedServer) -> None:
    began = time.monotonic()
    async with SlotbusClient.connect(
        server.url, "elsewhere", access=access("client", "_INBOX_client")
    ) as bus:
        with pytest.raises(Denied, match=r"publish on elsewhere\.cmd\.start"):
            await bus.start(job_id="j", slots=1)
        with pytest.raises(Denied, match=r"publish on elsewhere\.query\.jobs"):
            await bus.jobs()
        with pytest.raises(Denied, match=r"CONSUMER\.CREATE\.ELSEWHERE_EVENT"):
            _ = [record async for record in bus.events()]
    assert time.monotonic() - began < 4


async def test_an_inbox_that_may_not_be_listened_on_is_said_at_once(
    server: EmbeddedServer,
) -> None:
    began = time.monotonic()
    async with SlotbusClient.connect(
        server.url, access=access("client", ""), patience=Patience(absent_s=20)
    ) as bus:
        for _ in range(2):
            with pytest.raises(Denied, match=r"listen for answers on _INBOX\..*--inbox-prefix"):
                await bus.jobs()
        with pytest.raises(Denied, match="--inbox-prefix"):
            _ = [record async for record in bus.events()]
    assert time.monotonic() - began < 4
