"""Ends of workers: told until acknowledged, whatever happens to whom in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest_asyncio
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.codec import encode
from events.errors import Internal, NotLeader, UnknownNode
from events.states import WorkerState
from events.subjects import Subjects
from events.traffic import AgentLogs, AgentLogsReply, FinishedReply, LogLines, WorkerFinishedReq
from schedulers.node.config import AgentConfig
from tests.support.agents import (
    EPOCH,
    Answer,
    NodeLeader,
    NodeMessage,
    Policy,
    RunningAgent,
    order_start,
    rows_in,
    running,
)
from tests.support.nats import connected
from tests.support.waiting import until


@pytest_asyncio.fixture
async def agent(node_leader: NodeLeader, agent_config: AgentConfig) -> AsyncIterator[RunningAgent]:
    async with running(agent_config) as made:
        yield made


def ends_answered(leader: NodeLeader, answer: Answer) -> Policy:
    """A leader like any other, but for what it answers to ends."""
    return lambda message: (
        answer if isinstance(message, WorkerFinishedReq) else leader.default(message)
    )


async def run(nc: Client, subjects: Subjects, leader: NodeLeader, *command: str) -> str:
    """Starts a worker that does ``command``; returns its id."""
    worker_id = f"w-{len(leader.finished)}-{len(leader.beats)}"
    order = order_start(worker_id, leader.registered[-1].incarnation, *command)
    answer = await nc.request(subjects.agent("n1", "start"), encode(order), 10)
    assert b'"pid"' in answer.data, answer.data
    return worker_id


async def test_an_end_says_all_about_the_worker(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent: RunningAgent
) -> None:
    worker_id = await run(nc, subjects, node_leader, "sh", "-c", "exit 7")
    end = await node_leader.end_of(worker_id)
    assert (end.node_id, end.job_id, end.run_id, end.slots) == ("n1", "j", 1, 1)
    assert (end.exit_code, end.signal, end.state) == (7, None, WorkerState.FAILED)
    await until(lambda: agent.stats.ends_reported == 1)
    assert await rows_in(Path(agent.config.state_dir)) == []


async def test_an_end_is_told_until_it_is_acknowledged(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent: RunningAgent
) -> None:
    refusals: list[Answer] = [
        NotLeader("not me"),
        UnknownNode("who?"),
        Internal("oh"),
        b"no json",
        FinishedReply(epoch=EPOCH - 1),
    ]

    def policy(message: NodeMessage) -> Answer:
        if isinstance(message, WorkerFinishedReq) and refusals:
            return refusals.pop(0)
        return node_leader.default(message)

    node_leader.policy = policy
    worker_id = await run(nc, subjects, node_leader, "true")
    await until(lambda: agent.stats.ends_reported == 1)
    told = [end for end in node_leader.finished if end.worker_id == worker_id]
    assert len(told) == 6
    assert all(end == told[0] for end in told)


async def test_an_end_nobody_acknowledged_is_kept_and_told_by_the_next_agent(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    node_leader.policy = ends_answered(node_leader, None)
    async with running(agent_config) as agent:
        worker_id = await run(nc, subjects, node_leader, "sh", "-c", "exit 5")
        await node_leader.end_of(worker_id)
        await agent.stop()
    node_leader.finished.clear()
    node_leader.policy = node_leader.default

    async with running(agent_config) as agent:
        assert [row.exit_code for row in node_leader.registered[-1].workers or []] == [5]
        assert (await node_leader.end_of(worker_id)).exit_code == 5
        await until(lambda: agent.stats.ends_reported == 1)


async def test_a_restart_of_nats_in_mid_report_loses_no_end(
    own_nats_server: EmbeddedServer, agent_config: AgentConfig, subjects: Subjects
) -> None:
    config = msgspec.structs.replace(agent_config, server=own_nats_server.url)
    async with connected(own_nats_server.url) as nc:
        leader = NodeLeader(nc, subjects)
        await leader.start()
        async with running(config) as agent:
            leader.policy = ends_answered(leader, None)
            worker_id = await run(nc, subjects, leader, "sh", "-c", "exit 4")
            await leader.end_of(worker_id)
            own_nats_server.kill()
            await until(lambda: not agent.stats.connected)
            leader.finished.clear()
            leader.policy = leader.default
            await own_nats_server.start()
            assert (await leader.end_of(worker_id)).exit_code == 4
            await until(lambda: agent.stats.ends_reported == 1)


async def test_output_is_published_line_by_line_up_to_the_last(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent: RunningAgent
) -> None:
    heard: list[LogLines] = []
    subscription = await nc.subscribe(subjects.log("*", "*"))
    worker_id = await run(
        nc, subjects, node_leader, "sh", "-c", "echo one; echo two; printf 'no end'"
    )
    await until(lambda: agent.stats.ends_reported == 1)
    while sum(len(lines.text) for lines in heard) < len("one\ntwo\nno end"):
        message = await subscription.next_msg(10)
        assert message.subject == subjects.log("j", worker_id)
        heard.append(msgspec.json.decode(message.data, type=LogLines))
    assert "".join(lines.text for lines in heard) == "one\ntwo\nno end"
    assert heard[-1].offset == 14
    await subscription.unsubscribe()


async def test_the_stored_end_of_the_output_can_be_asked_for(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent: RunningAgent
) -> None:
    worker_id = await run(nc, subjects, node_leader, "sh", "-c", "echo first; echo last")
    await until(lambda: agent.stats.ends_reported == 1)
    request = encode(AgentLogs(worker_id=worker_id, max_bytes=5))
    answer = await nc.request(subjects.agent("n1", "logs"), request, 10)
    assert msgspec.json.decode(answer.data, type=AgentLogsReply) == AgentLogsReply(
        text="last\n", offset=11
    )
