"""An agent's presence: how it registers and beats, whatever answers or does not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller.embedded import EmbeddedServer
from events.connection import Access
from events.errors import DuplicateNode, Invalid, UnknownNode
from events.pulse import live_digest
from events.subjects import Subjects
from events.traffic import HeartbeatNodeReq, HeartbeatReply, RegisterNodeReq, RegisterReply
from schedulers.launcher import Unreachable
from schedulers.node.config import AgentConfig
from schedulers.node.identity import StateDirUnusable
from schedulers.node.launcher import NatsLauncher
from schedulers.node.link import Link, NotConnected
from schedulers.node.stats import AgentStats
from tests.support.agents import (
    EPOCH,
    HEARTBEAT_S,
    Answer,
    NodeLeader,
    NodeMessage,
    order_start,
    running,
)
from tests.support.nats import connected
from tests.support.waiting import background, until

IMPATIENT_S = 0.2


def impatient(config: AgentConfig) -> AgentConfig:
    return msgspec.structs.replace(config, request_timeout_s=IMPATIENT_S)


async def test_an_agent_registers_with_what_it_offers_and_then_beats(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with running(agent_config) as agent:
        beat = await node_leader.next_beat()

        said = node_leader.registered[-1]
        assert (said.node_id, said.task_slots, said.addr) == ("n1", 8, "10.0.0.1")
        assert said.labels == {"zone": "a"}
        assert said.workers == []
        assert said.machine_id
        assert beat.incarnation == said.incarnation
        assert beat.epoch == EPOCH
        assert beat.digest == live_digest([])
        assert agent.stats.standing == "accepted"
        seqs = [one.seq for one in node_leader.beats]
        assert seqs == sorted(set(seqs))
    assert len(node_leader.registered) == 1


async def test_a_heartbeat_carries_the_digest_of_what_runs(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with running(agent_config):
        incarnation = node_leader.registered[-1].incarnation
        for worker_id in ("b", "a"):
            await ask_start(nc, subjects, worker_id, incarnation)
        assert (await node_leader.next_beat()).digest == live_digest(["a", "b"])


async def test_silence_is_answered_with_patience(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    node_leader.policy = lambda message: None
    async with running(impatient(agent_config), accepted=False) as agent:
        await until(lambda: len(node_leader.registered) >= 3)
        assert agent.stats.standing == "new"
        assert node_leader.beats == []

        node_leader.policy = node_leader.default
        await until(agent.accepted.is_set)
    assert len({said.incarnation for said in node_leader.registered}) == 1


async def test_an_answer_that_comes_too_late_is_not_taken(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    node_leader.holding = True
    async with running(impatient(agent_config), accepted=False) as agent:
        await until(lambda: len(node_leader.held) == 2)
        await node_leader.answer_held(0, RegisterReply(epoch=EPOCH))
        await until(lambda: len(node_leader.held) == 3)
        assert not agent.accepted.is_set()
        await node_leader.answer_held(2, RegisterReply(epoch=EPOCH))
        await until(agent.accepted.is_set)


async def test_answers_that_come_twice_do_no_harm(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    node_leader.answers_each = 2
    async with running(agent_config) as agent:
        await node_leader.next_beat()
        assert agent.stats.standing == "accepted"
    assert len(node_leader.registered) == 1


@pytest.mark.parametrize(
    "answer", [b"", b"no json", b"[1, 2]", b'{"epoch": "x"}', b"\xff\xfe", Invalid("nonsense")]
)
async def test_answers_nobody_can_use_do_not_end_an_agent(
    node_leader: NodeLeader, agent_config: AgentConfig, answer: Answer
) -> None:
    node_leader.policy = lambda message: answer
    async with running(agent_config, accepted=False) as agent:
        await until(lambda: len(node_leader.registered) >= 2)
        assert not agent.accepted.is_set()
        node_leader.policy = node_leader.default
        await until(agent.accepted.is_set)
        node_leader.policy = lambda message: answer
        await node_leader.next_beat()
        assert not agent.task.done()


async def test_an_unknown_node_registers_again_as_the_same(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with running(agent_config) as agent:
        node_leader.policy = lambda message: (
            UnknownNode("who?")
            if isinstance(message, HeartbeatNodeReq)
            else node_leader.default(message)
        )
        await until(lambda: len(node_leader.registered) >= 2)
        node_leader.policy = node_leader.default
        await node_leader.next_beat()
        assert agent.stats.standing == "accepted"
    assert len({said.incarnation for said in node_leader.registered}) == 1


async def test_the_answer_of_an_old_leader_counts_for_nothing(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    node_leader.epoch = EPOCH + 5
    async with running(agent_config) as agent:
        await node_leader.next_beat()
        counted = agent.stats.heartbeats
        node_leader.policy = lambda message: HeartbeatReply(epoch=EPOCH)
        await node_leader.next_beat()
        beat = await node_leader.next_beat()
        assert beat.epoch == EPOCH + 5
        assert agent.stats.heartbeats <= counted + 1
        assert agent.stats.unanswered >= 1


async def test_the_highest_epoch_outlives_the_agent(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    node_leader.epoch = EPOCH + 7
    async with running(agent_config) as agent:
        await node_leader.next_beat()
        await agent.stop()
    async with running(agent_config):
        assert node_leader.registered[-1].epoch == EPOCH + 7


async def test_of_two_agents_with_one_name_only_the_first_serves(
    nc: Client,
    subjects: Subjects,
    node_leader: NodeLeader,
    agent_config: AgentConfig,
    tmp_path: Path,
) -> None:
    def first_machine_wins(message: NodeMessage) -> Answer:
        if isinstance(message, RegisterNodeReq) and message.machine_id != "one":
            return DuplicateNode("n1 is another machine, and alive")
        return node_leader.default(message)

    node_leader.policy = first_machine_wins
    one = msgspec.structs.replace(agent_config, machine_id="one")
    other = msgspec.structs.replace(
        agent_config, machine_id="other", state_dir=str(tmp_path / "agent-other")
    )
    async with running(one) as first, running(other, accepted=False) as second:
        await until(lambda: second.stats.standing == "duplicate")
        incarnation = node_leader.registered[0].incarnation
        reply = await NatsLauncher(nc, subjects).inventory("n1", incarnation, EPOCH, 5.0)
        assert reply.incarnation == incarnation
        await ask_start(nc, subjects, "w1", incarnation)
        assert (first.stats.starts, second.stats.starts) == (1, 0)

        node_leader.policy = node_leader.default  # the first is gone, say
        await first.stop()
        await until(second.accepted.is_set)
        assert node_leader.registered[-1].machine_id == "other"


async def test_two_agents_cannot_share_a_state_directory(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with running(agent_config) as first:
        with pytest.raises(StateDirUnusable, match="another agent"):
            async with running(agent_config):
                raise AssertionError("the second agent runs")
        await node_leader.next_beat()
        assert not first.task.done()


async def test_an_agent_needs_no_nats_to_start(
    own_nats_server: EmbeddedServer, agent_config: AgentConfig, subjects: Subjects
) -> None:
    config = msgspec.structs.replace(agent_config, server=own_nats_server.url)
    await own_nats_server.stop()
    async with running(config, accepted=False) as agent:
        await until(lambda: agent.stats.supervisors == 1)
        assert not agent.stats.connected
        await own_nats_server.start()
        async with connected(own_nats_server.url) as nc:
            leader = NodeLeader(nc, subjects)
            await leader.start()
            await until(agent.accepted.is_set)


async def test_a_restart_of_nats_is_noticed_and_survived(
    own_nats_server: EmbeddedServer, agent_config: AgentConfig, subjects: Subjects
) -> None:
    config = msgspec.structs.replace(agent_config, server=own_nats_server.url)
    async with connected(own_nats_server.url) as nc:
        leader = NodeLeader(nc, subjects)
        await leader.start()
        async with running(config) as agent:
            await leader.next_beat()
            await own_nats_server.stop()
            await until(lambda: not agent.stats.connected)
            await own_nats_server.start()
            await until(lambda: agent.stats.connected)
            await leader.next_beat()
            incarnation = leader.registered[0].incarnation
            await ask_start(nc, subjects, "w1", incarnation)
        assert len(leader.registered) == 1


async def test_an_agent_that_leaves_is_heard_no_more(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with running(agent_config) as agent:
        incarnation = node_leader.registered[-1].incarnation
        await agent.stop()
    with pytest.raises(Unreachable, match="no agent listens"):
        await NatsLauncher(nc, subjects).inventory("n1", incarnation, EPOCH, 5.0)


async def test_the_leader_says_how_often_to_beat(
    node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    node_leader.policy = lambda message: (
        RegisterReply(epoch=EPOCH, heartbeat_s=3_600.0)
        if isinstance(message, RegisterNodeReq)
        else node_leader.default(message)
    )
    async with running(agent_config) as agent:
        await until(lambda: agent.stats.registrations == 1)
        with pytest.raises(TimeoutError):
            await until(lambda: bool(node_leader.beats), deadline_s=5 * HEARTBEAT_S)


async def ask_start(nc: Client, subjects: Subjects, worker_id: str, incarnation: str) -> None:
    order = order_start(worker_id, incarnation, "sleep", "60")
    answer = await nc.request(subjects.agent("n1", "start"), msgspec.json.encode(order), 10)
    assert b'"pid"' in answer.data


async def test_a_connection_given_up_for_good_is_made_anew(
    nc: Client, subjects: Subjects, nats_server: EmbeddedServer
) -> None:
    ups: list[bool] = []
    heard: list[bytes] = []

    async def receive(message: Msg) -> None:
        heard.append(message.data)

    link = Link(
        nats_server.url,
        name="test",
        access=Access(),
        connect_timeout_s=5.0,
        subject=subjects.agent("n1", "*"),
        receive=receive,
        on_up=lambda: ups.append(True),
        stats=AgentStats(),
    )
    async with background(link.run()):
        await until(lambda: len(ups) == 1)
        assert link._nc is not None
        await link._nc.close()  # as nats-py does by itself after an error of the server
        with pytest.raises(NotConnected):
            await link.ask("q", b"", 1.0)
        await until(lambda: len(ups) == 2)
        await nc.publish(subjects.agent("n1", "start"), b"order")
        await until(lambda: heard == [b"order"])
