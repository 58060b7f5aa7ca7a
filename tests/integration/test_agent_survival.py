"""Agents and supervisors that are killed, frozen, replaced: the workers go on."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest
from nats.aio.client import Client

from events.states import WorkerState
from events.subjects import Subjects
from events.traffic import HeartbeatNodeReq, HeartbeatReply, InventoryReply
from schedulers.launcher import Assignment, LaunchAck, StopOrder, Unreachable
from schedulers.node.config import AgentConfig
from schedulers.node.launcher import NatsLauncher
from tests.support.agents import (
    EPOCH,
    Answer,
    NodeLeader,
    NodeMessage,
    order_start,
    process_running,
    rows_in,
    running,
    supervisor_pid,
)
from tests.support.waiting import DEADLINE_S, until

TIMEOUT_S = 10.0


class Node:
    """What a leader does to node n1, as the incarnation that registered last."""

    def __init__(self, nc: Client, subjects: Subjects, leader: NodeLeader) -> None:
        self._launcher = NatsLauncher(nc, subjects)
        self._leader = leader

    @property
    def incarnation(self) -> str:
        return self._leader.registered[-1].incarnation

    async def registered(self, times: int) -> None:
        await until(lambda: len(self._leader.registered) >= times)

    async def start(
        self, worker_id: str, *command: str, timeout_s: float = TIMEOUT_S, **fields: object
    ) -> LaunchAck:
        order = order_start(worker_id, self.incarnation, *command, **fields)
        assignment = msgspec.convert(
            {**msgspec.structs.asdict(order), "node_id": "n1"}, Assignment, from_attributes=True
        )
        return await self._launcher.launch(assignment, timeout_s)

    async def stop(self, worker_id: str) -> None:
        order = StopOrder(
            worker_id=worker_id,
            node_id="n1",
            incarnation=self.incarnation,
            force=False,
            grace_s=5.0,
            epoch=EPOCH,
        )
        await self._launcher.signal(order, TIMEOUT_S)

    async def inventory(self) -> InventoryReply:
        return await self._launcher.inventory("n1", self.incarnation, EPOCH, TIMEOUT_S)


@pytest.fixture
def node(nc: Client, subjects: Subjects, node_leader: NodeLeader) -> Node:
    return Node(nc, subjects, node_leader)


async def test_a_killed_agent_comes_back_to_the_same_workers_and_true_exit_codes(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with process_running(agent_config) as agent:
        await node.registered(1)
        lasting = await node.start("lasting", "sleep", "60")
        await node.start("ending", "sh", "-c", f"read line < '{gate}'; exit 6")
        first = node.incarnation
        await agent.kill()

    assert lasting.pid is not None
    await asyncio.to_thread(gate.write_text, "go\n")  # it ends while there is no agent
    await until_gone(Path(agent_config.state_dir), "ending")

    async with process_running(agent_config):
        await node.registered(2)
        assert node.incarnation > first
        inventory = {row.worker_id: row for row in node_leader.registered[-1].workers or []}
        assert inventory["lasting"].pid == lasting.pid
        assert (inventory["ending"].state, inventory["ending"].exit_code) == (
            WorkerState.FAILED,
            6,
        )
        assert (await node_leader.end_of("ending")).exit_code == 6
        await node.stop("lasting")
        assert (await node_leader.end_of("lasting")).signal == 15


async def until_gone(state_dir: Path, worker_id: str) -> None:
    """Waits until the supervisor, asked directly, lists a worker as ended."""
    live = (WorkerState.RUNNING, WorkerState.STOPPING)
    async with asyncio.timeout(DEADLINE_S):
        while any(  # noqa: ASYNC110  no event tells without an agent
            row.worker_id == worker_id and row.state in live for row in await rows_in(state_dir)
        ):
            await asyncio.sleep(0.02)


async def test_a_frozen_agent_answers_late_and_launches_nothing_twice(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with process_running(agent_config) as agent:
        await node.registered(1)
        agent.freeze()
        with pytest.raises(Unreachable):
            await node.start("w1", "sleep", "60", timeout_s=0.5)
        agent.thaw()
        ack = await node.start("w1", "sleep", "60")
        rows = (await node.inventory()).workers
        assert [(row.worker_id, row.pid) for row in rows] == [("w1", ack.pid)]


async def test_a_stop_sent_while_the_start_sleeps_in_a_frozen_agent_wins(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with process_running(agent_config) as agent:
        await node.registered(1)
        agent.freeze()
        with pytest.raises(Unreachable):
            await node.start("w1", "sleep", "60", timeout_s=0.3)
        stopping = asyncio.create_task(node.stop("w1"))
        agent.thaw()
        await stopping
        await node_leader.end_of("w1")
        assert [r for r in (await node.inventory()).workers if r.state is WorkerState.RUNNING] == []


async def test_an_agent_that_leaves_leaves_its_workers(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with process_running(agent_config) as agent:
        await node.registered(1)
        ack = await node.start("w1", "sleep", "60")
        assert await agent.leave() == 0
    assert ack.pid is not None
    assert psutil.Process(ack.pid).is_running()
    async with running(agent_config):
        assert [row.pid for row in node_leader.registered[-1].workers or []] == [ack.pid]


async def test_an_agent_told_so_takes_its_workers_with_it(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    config = msgspec.structs.replace(agent_config, stop_workers_on_exit=True, exit_grace_s=5.0)
    async with running(config) as agent:
        ack = await node.start("w1", "sleep", "60")
        served_by = await supervisor_pid(Path(config.state_dir))
        await agent.stop()
    assert ack.pid is not None
    assert not psutil.pid_exists(ack.pid)
    assert (await node_leader.end_of("w1")).signal == 15
    await until(lambda: not psutil.pid_exists(served_by))


async def test_a_killed_supervisor_is_replaced_and_its_workers_are_adopted(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    state_dir = Path(agent_config.state_dir)
    async with running(agent_config) as agent:
        before = await node.start("w1", "sleep", "60")
        killed = await supervisor_pid(state_dir)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: agent.stats.supervisors == 2)

        assert await supervisor_pid(state_dir) != killed
        rows = (await node.inventory()).workers
        assert [(row.worker_id, row.pid, row.state) for row in rows] == [
            ("w1", before.pid, WorkerState.RUNNING)
        ]
        await node.start("w2", "sh", "-c", "exit 2")
        assert (await node_leader.end_of("w2")).exit_code == 2
        await node.stop("w1")
        end = await node_leader.end_of("w1")
        assert end.exit_code is None  # an adopted child's exit can't be known
        assert len(node_leader.registered) == 1


async def test_workers_end_when_no_leader_renews_their_lease(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with running(agent_config):
        await node.start("leased", "sleep", "60", stop_after_s=1.0)
        await node.start("free", "sleep", "60")
        beats = len(node_leader.beats)
        await until(lambda: len(node_leader.beats) >= beats + 15)  # longer than the lease
        states = {row.worker_id: row.state for row in (await node.inventory()).workers}
        assert states == {"leased": WorkerState.RUNNING, "free": WorkerState.RUNNING}

        node_leader.policy = lambda message: None
        await until_gone(Path(agent_config.state_dir), "leased")
        node_leader.policy = node_leader.default
        assert (await node_leader.end_of("leased")).signal == 15
        rows = (await node.inventory()).workers
        assert [row.worker_id for row in rows if row.state is WorkerState.RUNNING] == ["free"]


async def test_a_frozen_agent_keeps_no_worker_beyond_its_lease(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    async with process_running(agent_config) as agent:
        await node.registered(1)
        await node.start("leased", "sleep", "60", stop_after_s=1.0)
        await node.start("free", "sleep", "60")
        agent.freeze()
        await until_gone(Path(agent_config.state_dir), "leased")
        agent.thaw()
        end = await node_leader.end_of("leased")
        assert (end.state, end.signal) == (WorkerState.LOST, 15)
        assert end.reason == "no client renewed its lease for 1 s"
        rows = (await node.inventory()).workers
        assert [row.worker_id for row in rows if row.state is WorkerState.RUNNING] == ["free"]


async def test_only_answers_of_the_highest_epoch_renew_a_lease(
    node: Node, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    def of_the_past(message: NodeMessage) -> Answer:
        if isinstance(message, HeartbeatNodeReq):
            return HeartbeatReply(epoch=EPOCH - 1)
        return node_leader.default(message)

    async with running(agent_config):
        await node.start("leased", "sleep", "60", stop_after_s=1.0)
        node_leader.policy = of_the_past
        beats = len(node_leader.beats)
        await until_gone(Path(agent_config.state_dir), "leased")
        assert len(node_leader.beats) > beats  # it spoke, and was answered, all the time
