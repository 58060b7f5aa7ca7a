"""Real agents for tests, and a leader that says what a test wants it to.

What lives here: ``NodeLeader`` (answers what agents say, records it), agents in this process
and in one of their own, and the end of the supervisors they leave behind. What may not: the
real leader's decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from controller.embedded import EmbeddedServer
from events.codec import decode_with, encode
from events.errors import SlotbusError
from events.subjects import Subjects
from events.traffic import (
    AgentStart,
    FinishedReply,
    HeartbeatNodeReq,
    HeartbeatReply,
    InventoryRow,
    RegisterNodeReq,
    RegisterReply,
    Stamp,
    WorkerFinishedReq,
)
from schedulers.node.agent import run_agent
from schedulers.node.config import AgentConfig
from schedulers.node.stats import AgentStats
from schedulers.supervisor.api import SupervisorGone
from schedulers.supervisor.client import SupervisorClient
from tests.support.waiting import until

NodeMessage: TypeAlias = RegisterNodeReq | HeartbeatNodeReq | WorkerFinishedReq
Answer: TypeAlias = msgspec.Struct | SlotbusError | bytes | None
"""None: no answer at all."""
Policy: TypeAlias = Callable[[NodeMessage], Answer]

HEARTBEAT_S = 0.1
EPOCH = 10


class NodeLeader:
    """Listens to every agent under ``subjects``; ``policy`` may answer before the default
    does (return ``DEFAULT`` for that)."""

    def __init__(self, nc: Client, subjects: Subjects, epoch: int = EPOCH) -> None:
        self._nc = nc
        self._subjects = subjects
        self._subscription: Subscription | None = None
        self.epoch = epoch
        self.policy: Policy = self.default
        self.answers_each = 1
        self.holding = False
        self.held: list[Msg] = []
        self.registered: list[RegisterNodeReq] = []
        self.beats: list[HeartbeatNodeReq] = []
        self.finished: list[WorkerFinishedReq] = []

    async def start(self) -> None:
        self._subscription = await self._nc.subscribe(
            self._subjects.node("*", "*"), cb=self._on_message
        )
        await self._nc.flush()

    async def stop(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None
            await self._nc.flush()

    def default(self, message: NodeMessage) -> Answer:
        """What a content leader answers."""
        if isinstance(message, RegisterNodeReq):
            return RegisterReply(epoch=self.epoch, heartbeat_s=HEARTBEAT_S)
        if isinstance(message, HeartbeatNodeReq):
            return HeartbeatReply(epoch=self.epoch)
        return FinishedReply(epoch=self.epoch)

    async def answer_held(self, index: int, answer: msgspec.Struct) -> None:
        """Answers, late, one message that came while ``holding``."""
        await self.held[index].respond(_body(answer))
        await self._nc.flush()

    async def end_of(self, worker_id: str) -> WorkerFinishedReq:
        """The first report of this worker's end, waited for."""
        await until(lambda: any(end.worker_id == worker_id for end in self.finished))
        return next(end for end in self.finished if end.worker_id == worker_id)

    async def next_beat(self) -> HeartbeatNodeReq:
        """The second heartbeat from now: the first may have been on its way already."""
        count = len(self.beats)
        await until(lambda: len(self.beats) >= count + 2)
        return self.beats[-1]

    async def _on_message(self, message: Msg) -> None:
        subject = self._subjects.parse_node(message.subject)
        said: NodeMessage
        if subject.verb == "register":
            said = decode_with(message.data, RegisterNodeReq, node_id=subject.node_id)
            self.registered.append(said)
        elif subject.verb == "heartbeat":
            said = decode_with(message.data, HeartbeatNodeReq, node_id=subject.node_id)
            self.beats.append(said)
        else:
            said = decode_with(message.data, WorkerFinishedReq, node_id=subject.node_id)
            self.finished.append(said)
        if self.holding:
            self.held.append(message)
            return
        answer = self.policy(said)
        if answer is None:
            return
        for _ in range(self.answers_each):
            await message.respond(_body(answer))


def _body(answer: msgspec.Struct | SlotbusError | bytes) -> bytes:
    if isinstance(answer, bytes):
        return answer
    return encode(answer.body() if isinstance(answer, SlotbusError) else answer)


def order_start(worker_id: str, incarnation: str, *command: str, **fields: object) -> AgentStart:
    """A start of one slot of job ``j`` under EPOCH; ``fields`` replace these."""
    order = AgentStart(
        worker_id=worker_id,
        job_id="j",
        run_id=1,
        slots=1,
        epoch=EPOCH,
        incarnation=incarnation,
        stamp=Stamp(cluster="test", epoch=EPOCH, position=1),
        command=list(command),
    )
    return msgspec.structs.replace(order, **fields)


class RunningAgent:
    """An agent in this process. ``stop`` lets it leave, ``kill`` cancels it where it is."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.stats = AgentStats()
        self.accepted = asyncio.Event()
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(
            run_agent(config, ready=self.accepted.set, stop=self._stop, stats=self.stats)
        )

    async def stop(self) -> None:
        """Raises what the agent raised."""
        self._stop.set()
        async with asyncio.timeout(30):
            await self.task

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


@asynccontextmanager
async def running(config: AgentConfig, *, accepted: bool = True) -> AsyncIterator[RunningAgent]:
    """An agent for a block of code, by default from its first acceptance on."""
    agent = RunningAgent(config)
    try:
        if accepted:
            waiting = asyncio.create_task(agent.accepted.wait())
            await asyncio.wait(
                {waiting, agent.task}, timeout=20, return_when=asyncio.FIRST_COMPLETED
            )
            waiting.cancel()
            if agent.task.done():
                agent.task.result()
            assert agent.accepted.is_set()
        yield agent
    finally:
        await agent.kill()


class AgentProcess:
    """An agent in a process of its own, to be frozen and killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, config: AgentConfig) -> AgentProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tests.support.agent_program"),
            msgspec.json.encode(config).decode(),
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        return cls(process)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL: nothing is said, nothing is saved."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def leave(self) -> int:
        """SIGTERM; returns the exit code."""
        self._process.terminate()
        async with asyncio.timeout(20):
            return await self._process.wait()


@asynccontextmanager
async def process_running(config: AgentConfig) -> AsyncIterator[AgentProcess]:
    """An agent process for a block of code."""
    agent = await AgentProcess.start(config)
    try:
        yield agent
    finally:
        await agent.kill()


async def rows_in(state_dir: Path) -> list[InventoryRow]:
    """What the supervisor of a state directory lists."""
    client = await SupervisorClient.connect(state_dir)
    try:
        return (await client.inventory(0)).workers
    finally:
        await client.close()


async def supervisor_pid(state_dir: Path) -> int:
    """The process that serves a state directory."""
    client = await SupervisorClient.connect(state_dir)
    try:
        return client.welcome.pid
    finally:
        await client.close()


async def end_supervisor(state_dir: Path) -> None:
    """Ends the supervisor of a state directory, if there is one, and its workers."""
    with contextlib.suppress(SupervisorGone):
        client = await SupervisorClient.connect(state_dir)
        await client.shutdown(0.2)


@pytest_asyncio.fixture
async def node_leader(nc: Client, subjects: Subjects) -> AsyncIterator[NodeLeader]:
    """A leader that accepts every agent under ``subjects``."""
    leader = NodeLeader(nc, subjects)
    await leader.start()
    yield leader
    await leader.stop()


@pytest_asyncio.fixture
async def agent_config(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[AgentConfig]:
    """Node ``n1`` with 8 slots. Supervisors of ``agent*`` under ``tmp_path`` are ended."""
    yield AgentConfig(
        server=nats_server.url,
        root=subjects.root,
        node_id="n1",
        slots=8,
        state_dir=str(tmp_path / "agent"),
        addr="10.0.0.1",
        labels={"zone": "a"},
    )
    for state_dir in sorted(tmp_path.glob("agent*")):  # noqa: ASYNC240  a short look
        await end_supervisor(state_dir)
