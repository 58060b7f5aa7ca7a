"""What the doctor sees, on clusters that are well and on others."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, tzinfo
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from controller.doctor.finding import Finding
from controller.doctor.jetstream import sync_interval
from controller.doctor.rounds import examine
from controller.embedded import EmbeddedServer
from controller.setup import Wanted, set_up
from events.asking import Patience
from events.client import SlotbusClient
from events.codec import encode
from events.connection import Access
from events.queries import LeaderReply, NodeRow, NodesReply
from events.states import NodeState
from events.subjects import Subjects
from events.traffic import AgentAboutReply
from schedulers.node.config import AgentConfig
from tests.support.agents import running
from tests.support.controllers import Caller, config_for, controller
from tests.support.leader import FakeLeader

BRIEF = Patience(absent_s=0.2, query_s=1.0)


async def findings(bus: SlotbusClient) -> list[Finding]:
    return [finding async for finding in examine(bus)]


def of(found: list[Finding], what: str) -> list[Finding]:
    return [finding for finding in found if finding.what == what]


def levels(found: list[Finding]) -> set[str]:
    return {finding.level for finding in found}


@pytest_asyncio.fixture
async def bus(nats_server: EmbeddedServer, subjects: Subjects) -> AsyncIterator[SlotbusClient]:
    async with SlotbusClient.connect(nats_server.url, subjects.root, patience=BRIEF) as client:
        yield client


async def test_a_cluster_that_is_well(
    bus: SlotbusClient, nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> None:
    async with controller(config_for(nats_server.url, subjects, tmp_path)) as leader:
        info = await leader.leading()
        await bus.start(job_id="j", slots=1)
        found = await findings(bus)
        await bus.stop("j", force=True)
    assert levels(found) <= {"ok", "note"}, found
    (asked,) = of(found, "leader")
    assert f"epoch {info.epoch}" in asked.text
    assert "1 jobs, 1 workers" in asked.text
    (lease,) = of(found, "lease")
    assert info.holder in lease.text
    assert of(found, "server")[0].text.startswith("nats-server 2.")
    assert {f.what for f in found} >= {
        "installation", "JetStream", "sync_interval", f"stream {subjects.log_stream}",
        f"stream {subjects.event_stream}", "controller", "nodes", "clocks",
    }  # fmt: skip


async def test_nothing_was_ever_started_here(bus: SlotbusClient, subjects: Subjects) -> None:
    found = await findings(bus)
    (log,) = of(found, f"stream {subjects.log_stream}")
    assert (log.level, "slotbus init" in log.advice) == ("warning", True)
    (lease,) = of(found, "lease")
    assert (lease.level, lease.text) == ("bad", "nobody holds it")
    (leader,) = of(found, "leader")
    assert (leader.level, "is `slotbus controller` running?" in leader.text) == ("bad", True)


async def test_streams_that_are_not_as_they_should_be(
    bus: SlotbusClient, nc: Client, subjects: Subjects
) -> None:
    js = nc.jetstream()
    await js.add_stream(
        StreamConfig(name=subjects.log_stream, subjects=[subjects.eventlog], max_bytes=2_000)
    )
    (log,) = of(await findings(bus), f"stream {subjects.log_stream}")
    assert (log.level, log.text) == ("bad", "discard is old, which should be new")
    assert "slotbus init" in log.advice
    await set_up(nc, subjects, Wanted())
    await js.publish(subjects.eventlog, b"x" * 1_700)
    (log,) = of(await findings(bus), f"stream {subjects.log_stream}")
    assert (log.level, log.text.startswith("nearly full:")) == ("warning", True)
    assert "--log-max-bytes" in log.advice


def node(node_id: str, state: NodeState = NodeState.READY, version: str = "") -> NodeRow:
    return NodeRow(
        node_id=node_id,
        addr="",
        state=state,
        registered_slots=4,
        free_slots=2,
        scheduled_slots=2,
        heartbeat_age_s=90,
        labels={},
        version=version,
    )


async def test_nodes_that_want_attention_and_clocks_that_are_apart(
    bus: SlotbusClient, nc: Client, subjects: Subjects
) -> None:
    leader = FakeLeader(nc, subjects)
    rows = [
        node("n1"), node("n2", NodeState.EXPIRED), node("n3", NodeState.CORDONED),
        node("n4", version="9.9.9"), node("n5"),
    ]  # fmt: skip
    await leader.will("query.nodes", NodesReply(nodes=rows))
    await leader.will(
        "query.leader",
        lambda _: LeaderReply(
            epoch=7, position=1, now=datetime.now(UTC) + timedelta(seconds=60), cluster="c",
            scheduler="node", nodes=5, jobs=0, workers=0, pending=0,
        ),
    )  # fmt: skip

    async def about(message: Msg) -> None:
        name = message.subject.split(".")[-2]
        late = timedelta(seconds=30 if name == "n1" else 0)
        now = datetime.now(UTC) - late
        reply = AgentAboutReply(
            node_id=name, incarnation="i", epoch=7, now=now, standing="accepted"
        )
        await message.respond(encode(reply))

    for name in ("n1", "n3", "n4"):
        await nc.subscribe(subjects.agent(name, "about"), cb=about)
    await nc.flush()
    found = await findings(bus)
    assert of(found, "nodes")[0].text == "3 of 5 ready, 6 slots free"
    (expired,) = of(found, "node n2")
    assert (expired.level, "2 slots are still held" in expired.text) == ("warning", True)
    assert of(found, "node n3")[0].advice.startswith("`slotbus uncordon n3`")
    assert "9.9.9" in of(found, "node n4")[0].text
    clocks = [finding.text for finding in of(found, "clocks")]
    assert any(text.startswith("the leader is 60.0 s ahead") for text in clocks), clocks
    assert any(text.startswith("node n1 is 30.0 s behind") for text in clocks), clocks
    assert any(text.endswith("not answered: n5") for text in clocks), clocks
    assert not any("n3 is" in text or "n4 is" in text for text in clocks)


class Slow:
    """A clock that is half a minute behind."""

    @staticmethod
    def now(tz: tzinfo) -> datetime:
        return datetime.now(tz) - timedelta(seconds=30)


async def test_a_real_agent_whose_clock_is_behind(
    bus: SlotbusClient,
    nc: Client,
    nats_server: EmbeddedServer,
    subjects: Subjects,
    agent_config: AgentConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_for(nats_server.url, subjects, tmp_path / "c", scheduler="node")
    async with controller(config) as leader, running(agent_config):
        await leader.leading()
        await Caller(nc, subjects).until_nodes(1)
        (clocks,) = of(await findings(bus), "clocks")
        assert (clocks.level, clocks.text.endswith("within 2 s")) == ("ok", True)
        with monkeypatch.context() as patch:
            patch.setattr("schedulers.node.orders.datetime", Slow)
            (clocks,) = of(await findings(bus), "clocks")
        assert clocks.level == "warning"
        assert re.match(rf"node {agent_config.node_id} is (29|30)\.\d s behind this", clocks.text)
        assert "NTP" in clocks.advice


async def test_an_account_without_jetstream(tmp_path: Path) -> None:
    config = 'accounts { A: { users: [{user: u, password: "p"}] } }'
    async with (
        EmbeddedServer(tmp_path / "nats", config=config) as server,
        SlotbusClient.connect(
            server.url, access=Access(user="u", password="p"), patience=BRIEF
        ) as bus,
    ):
        found = await findings(bus)
    (jetstream,) = of(found, "JetStream")
    assert (jetstream.level, "not enabled" in jetstream.text) == ("bad", True)
    assert "jetstream {}" in jetstream.advice


async def test_what_may_not_be_seen_is_unknown(tmp_path: Path) -> None:
    config = (
        'authorization { users: [{user: u, password: "p", permissions: '
        '{publish: ["slotbus.query.>"], subscribe: ["_INBOX.>"]}}] }'
    )
    async with (
        EmbeddedServer(tmp_path / "nats", config=config) as server,
        SlotbusClient.connect(
            server.url, access=Access(user="u", password="p"), patience=BRIEF
        ) as bus,
    ):
        found = await findings(bus)
    unknown = {finding.what for finding in found if finding.level == "unknown"}
    assert {"jetstream", "streams", "lease"} <= unknown
    assert all("docs/nats.md" in f.advice for f in found if f.level == "unknown")


async def test_how_soon_the_server_writes_is_seen_by_the_system_account(tmp_path: Path) -> None:
    config = 'accounts { SYS: { users: [{user: u, password: "p"}] } }\nsystem_account: SYS\n'
    async with (
        EmbeddedServer(tmp_path / "nats", config=config) as server,
        SlotbusClient.connect(
            server.url, access=Access(user="u", password="p"), patience=BRIEF
        ) as bus,
    ):
        finding = await sync_interval(bus)
    assert (finding.level, finding.text) == ("ok", "always")


async def test_the_distribution_that_owns_our_name_is_noticed(
    bus: SlotbusClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "Events-0.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: Events\nVersion: 0.5\n")
    found = [PathDistribution(folder)]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: found)
    (installation,) = of(await findings(bus), "installation")
    assert (installation.level, "Events is installed" in installation.text) == ("warning", True)
