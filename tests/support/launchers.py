"""Every launcher with one node to launch on, made ready for the same tests.

What lives here: ``Rig`` and its factories, one a backend; a new backend joins by adding one
to ``RIGS``. What may not: what is expected of a launcher (tests/contracts/test_launcher.py).
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import psutil
from nats.aio.client import Client

from events.states import WorkerState
from events.subjects import Subjects
from events.traffic import AgentStopReply, InventoryRow, Stamp, WorkerFinishedReq
from schedulers import embedded, manual
from schedulers.embedded import EmbeddedLauncher
from schedulers.launcher import Assignment, LaunchAck, Launcher, StopOrder
from schedulers.manual import ManualLauncher
from schedulers.node.config import AgentConfig
from schedulers.node.launcher import NatsLauncher
from schedulers.process import LOCAL_NODE, ProcessLauncher
from schedulers.supervisor.api import Supervisor
from schedulers.supervisor.core import LocalSupervisor, Settings
from schedulers.supervisor.starter import ensure_supervisor
from tests.support.agents import EPOCH, NodeLeader, end_supervisor, running
from tests.support.person import Person
from tests.support.scripted import Program, ScriptedLauncher, ScriptedNode
from tests.support.tasks import COMMANDS, TERMINATED
from tests.support.waiting import background, until

TIMEOUT_S = 10.0
LIVE = (WorkerState.RUNNING, WorkerState.STOPPING)


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended."""

    exit_code: int | None = None
    signal: int | None = None


BY_TERM = Ending(signal=15)
BY_KILL = Ending(signal=9)


@dataclass
class Rig:
    """One launcher with one node. ``end_of`` waits for the report of a worker's end,
    however this backend's reports travel; ``alive`` looks whether a worker lives, by its id
    and pid. ``pids``: whether a launch tells the pid; ``terminated``: how ``sleep`` ends
    that was asked to, ``killed``: any that was killed."""

    launcher: Launcher
    node_id: str
    incarnation: str
    end_of: Callable[[str], Awaitable[WorkerFinishedReq]]
    epoch: int = EPOCH
    alive: Callable[[str, int | None], bool] = lambda _, pid: psutil.pid_exists(pid or 0)
    pids: bool = True
    terminated: Ending = BY_TERM
    killed: Ending = BY_KILL
    count: int = field(default=0, init=False)

    def assignment(self, *command: str, **fields: object) -> Assignment:
        """A fresh worker of one slot; ``fields`` replace what is usual."""
        self.count += 1
        made = Assignment(
            worker_id=f"w{self.count}",
            job_id="j",
            run_id=1,
            slots=1,
            node_id=self.node_id,
            incarnation=self.incarnation,
            epoch=self.epoch,
            stamp=Stamp(cluster="test", epoch=self.epoch, position=self.count),
            command=list(command),
        )
        return msgspec.structs.replace(made, **fields)

    async def launch(self, assignment: Assignment) -> LaunchAck:
        return await self.launcher.launch(assignment, TIMEOUT_S)

    async def signal(self, worker_id: str, **fields: object) -> AgentStopReply:
        order = StopOrder(
            worker_id=worker_id,
            node_id=self.node_id,
            incarnation=self.incarnation,
            force=False,
            grace_s=5.0,
            epoch=self.epoch,
        )
        return await self.launcher.signal(msgspec.structs.replace(order, **fields), TIMEOUT_S)

    async def rows(self) -> dict[str, InventoryRow]:
        reply = await self.launcher.inventory(self.node_id, self.incarnation, self.epoch, TIMEOUT_S)
        return {row.worker_id: row for row in reply.workers}


@dataclass
class Fixtures:
    """What a factory may build a rig from."""

    nc: Client
    subjects: Subjects
    agent_config: AgentConfig
    node_leader: NodeLeader
    tmp_path: Path


Factory = Callable[[Fixtures], AbstractAsyncContextManager[Rig]]


@asynccontextmanager
async def node_rig(fixtures: Fixtures) -> AsyncIterator[Rig]:
    """A real agent on a real server; a leader that acknowledges the ends it hears of."""
    leader = fixtures.node_leader
    async with running(fixtures.agent_config):
        launcher = NatsLauncher(fixtures.nc, fixtures.subjects)
        registered = leader.registered[-1]
        yield Rig(launcher, registered.node_id, registered.incarnation, leader.end_of)
        await launcher.close()


class Ends:
    """Hears what a launcher reports by itself."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._heard: dict[str, WorkerFinishedReq] = {}

    async def listen(self) -> None:
        async for report in self._launcher.reports():
            if isinstance(report, WorkerFinishedReq):
                self._heard.setdefault(report.worker_id, report)

    async def of(self, worker_id: str) -> WorkerFinishedReq:
        await until(lambda: worker_id in self._heard)
        return self._heard[worker_id]


@asynccontextmanager
async def local_rig(fixtures: Fixtures) -> AsyncIterator[Rig]:
    """The process backend over a supervisor in this process."""
    settings = Settings(close_grace_s=0.2)
    supervisor = LocalSupervisor(fixtures.tmp_path / "local", settings)

    async def connect() -> Supervisor:
        return supervisor

    launcher = ProcessLauncher(connect, "here")
    ends = Ends(launcher)
    async with background(ends.listen()):
        yield Rig(launcher, LOCAL_NODE, "here", ends.of)
        await launcher.close()


@asynccontextmanager
async def supervised_rig(fixtures: Fixtures) -> AsyncIterator[Rig]:
    """The process backend over a supervisor process."""
    state_dir = fixtures.tmp_path / "supervised"
    launcher = ProcessLauncher(partial(ensure_supervisor, state_dir, LOCAL_NODE), "here")
    ends = Ends(launcher)
    try:
        async with background(ends.listen()):
            yield Rig(launcher, LOCAL_NODE, "here", ends.of)
            await launcher.close()
    finally:
        await end_supervisor(state_dir)


@asynccontextmanager
async def scripted_rig(fixtures: Fixtures) -> AsyncIterator[Rig]:
    """The launcher that injects faults elsewhere: without any, it is like the real ones."""
    node = ScriptedNode("n1", incarnation="here", slots=100, program=_acted_out)
    launcher = ScriptedLauncher(node)
    ends = Ends(launcher)

    async with background(ends.listen()):
        yield Rig(
            launcher,
            "n1",
            "here",
            ends.of,
            alive=lambda _, pid: pid in {r.pid for r in node.table.values() if r.state in LIVE},
        )
        await launcher.close()


@asynccontextmanager
async def embedded_rig(fixtures: Fixtures) -> AsyncIterator[Rig]:
    """Workers as tasks of this process, which run the suite's commands."""
    launcher = EmbeddedLauncher(COMMANDS, "here")
    ends = Ends(launcher)
    async with background(ends.listen()):
        yield Rig(
            launcher,
            embedded.NODE,
            "here",
            ends.of,
            alive=lambda worker_id, _: (
                f"worker {worker_id}" in {task.get_name() for task in asyncio.all_tasks()}
            ),
            pids=False,
            terminated=Ending(exit_code=TERMINATED),
        )
        await launcher.close()


@asynccontextmanager
async def manual_rig(fixtures: Fixtures) -> AsyncIterator[Rig]:
    """A person does what the launcher says, and reports ends as the engine would hear them."""
    heard: dict[str, WorkerFinishedReq] = {}

    async def report(end: WorkerFinishedReq) -> None:
        await launcher.acknowledge(end.node_id, end.worker_id)
        heard[end.worker_id] = end

    async def end_of(worker_id: str) -> WorkerFinishedReq:
        await until(lambda: worker_id in heard)
        return heard[worker_id]

    person = Person(report)
    launcher = ManualLauncher(person.tell, "here")
    try:
        yield Rig(
            launcher,
            manual.NODE,
            "here",
            end_of,
            alive=lambda worker_id, _: worker_id not in heard,
            pids=False,
        )
        await launcher.close()
    finally:
        await person.leave()


def _acted_out(assignment: Assignment) -> Program:
    """What this suite's commands do, without doing it."""
    match assignment.command:
        case ["sleep", _]:
            return Program()
        case ["true"]:
            return Program(exit_code=0)
        case ["sh", "-c", script] if "trap" in script:
            Path(assignment.env_vars["READY"]).touch()
            return Program(deaf=True)
        case ["/no/such/program"]:
            return Program(missing=True)
        case command:
            given = {
                "SLOTBUS_JOB_ID": assignment.job_id,
                "SLOTBUS_RUN_ID": str(assignment.run_id),
                "SLOTBUS_SLOTS": str(assignment.slots),
                "SLOTBUS_PROGRAM": bytes(assignment.program).decode(),
                **assignment.env_vars,
            }
            return Program(exit_code=subprocess.run(command, env=given, check=False).returncode)


RIGS: dict[str, Factory] = {
    "embedded": embedded_rig,
    "manual": manual_rig,
    "node": node_rig,
    "process-local": local_rig,
    "process-supervised": supervised_rig,
    "scripted": scripted_rig,
}
