"""The process backend: workers as processes of this machine, under a supervisor.

What lives here: its launcher over the supervisor's port, and ``ProcessScheduler``, which
works alone as a library. What may not: NATS, and spawning (the supervisor's).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import random
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from events.errors import Internal, SlotbusError
from events.log import EventLog, MemoryLog
from events.traffic import AgentStopReply, InventoryReply, WorkerFinishedReq
from schedulers.decide import Rules
from schedulers.ending import stop_all_jobs
from schedulers.engine import Backend, Engine, EngineSettings, LocalNode
from schedulers.idle import idle_command
from schedulers.launcher import (
    Assignment,
    Fenced,
    LaunchAck,
    StopOrder,
    Unreachable,
    refused,
    report_of,
)
from schedulers.supervisor.api import SpawnRefused, Supervisor, SupervisorGone, WorkerSpec
from schedulers.supervisor.core import LocalSupervisor

LOCAL_NODE: Final = "local"
SLOTS_PER_PROCESS: Final = 16
"""As in Arroyo's process scheduler."""

TASK_SLOTS: Final = 1_000
RENEW_S: Final = 2.0
RECONNECT_S: Final = 0.2
RECONNECT_MOST_S: Final = 5.0
ACKNOWLEDGE_S: Final = 3.0

logger = structlog.get_logger("slotbus.process")


class ProcessLauncher:
    """Implements ``schedulers.launcher.Launcher`` over one supervisor.

    ``connect`` gives a supervisor that answers; it is called again whenever the one in use
    is gone, which then has been adopted by a new one. ``incarnation``: the node's, always.
    """

    def __init__(self, connect: Callable[[], Awaitable[Supervisor]], incarnation: str) -> None:
        self._connect = connect
        self._incarnation = incarnation
        self._supervisor: Supervisor | None = None
        self._connecting: asyncio.Task[Supervisor] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._dropping: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()

    async def supervisor(self) -> Supervisor:
        """The supervisor in use. Who gives up waiting for it doesn't end its start. Raises
        SupervisorGone, StateDirBusy, OSError."""
        if self._closed.is_set():
            raise SupervisorGone("this launcher is closed")
        if self._supervisor is not None:
            return self._supervisor
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._attach(), name="supervisor connect")
            self._connecting.add_done_callback(_seen)
        connecting = self._connecting
        await asyncio.wait({connecting})
        if connecting.cancelled():
            raise SupervisorGone("this launcher is closed")
        return connecting.result()

    async def _attach(self) -> Supervisor:
        try:
            supervisor = self._supervisor = await self._connect()
        finally:
            self._connecting = None
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew(), name="supervisor lease")
        await supervisor.renew()  # nobody may have done so for long
        return supervisor

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        """Spawns a worker. Raises LaunchRefused, LaunchDoubtful, Fenced, Unreachable."""
        spec = WorkerSpec(
            worker_id=assignment.worker_id,
            job_id=assignment.job_id,
            run_id=assignment.run_id,
            slots=assignment.slots,
            node_id=assignment.node_id,
            command=assignment.command or assignment.default_command,
            stamp=assignment.stamp,
            env_vars=assignment.env_vars,
            program=assignment.program,
            name=assignment.name,
            hash=assignment.hash,
            wasm_path=assignment.wasm_path,
            stop_after_s=assignment.stop_after_s,
        )
        self._check(assignment.incarnation)
        async with self._asking(timeout_s) as supervisor:
            spawned = await supervisor.launch(spec, assignment.epoch)
        return LaunchAck(pid=spawned.pid, seq=spawned.seq)

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        """Begins to stop a worker. Raises Fenced, Unreachable."""
        self._check(order.incarnation)
        async with self._asking(timeout_s) as supervisor:
            return await supervisor.stop(
                order.worker_id, force=order.force, grace_s=order.grace_s, epoch=order.epoch
            )

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        """Lists the workers under ``epoch``. Raises Fenced, Unreachable, StateDirBusy, and
        Internal where the state directory can't be used."""
        self._check(incarnation)
        async with self._asking(timeout_s) as supervisor:
            taken = await supervisor.inventory(epoch)
        return InventoryReply(
            incarnation=self._incarnation, seq=taken.seq, epoch=taken.epoch, workers=taken.workers
        )

    async def reports(self) -> AsyncIterator[WorkerFinishedReq]:
        """Every worker's end, again after the supervisor was replaced; until ``close``."""
        pause_s = RECONNECT_S
        while not self._closed.is_set():
            supervisor: Supervisor | None = None
            try:
                supervisor = await self.supervisor()
                async for row in supervisor.reports():
                    pause_s = RECONNECT_S
                    yield report_of(row, LOCAL_NODE)
            except (SlotbusError, OSError) as error:
                logger.warning("no supervisor", cause=str(error))
            self._drop(supervisor)
            await self._pause(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, RECONNECT_MOST_S)

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        """The end of this worker is in the log. Raises Unreachable."""
        async with self._asking(ACKNOWLEDGE_S) as supervisor:
            await supervisor.acknowledge([worker_id])

    async def close(self) -> None:
        """Lets go of the supervisor; one in this process stops its workers first."""
        self._closed.set()
        supervisor = await self.let_go()
        if supervisor is not None:
            await supervisor.close()

    async def let_go(self) -> Supervisor | None:
        """As if it had never been connected. The supervisor that was in use is the
        caller's to close."""
        own = [task for task in (self._renewing, self._connecting) if task is not None]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, *self._dropping, return_exceptions=True)
        self._renewing = None
        supervisor, self._supervisor = self._supervisor, None
        return supervisor

    def _check(self, incarnation: str) -> None:
        if incarnation != self._incarnation:
            raise Fenced(
                f"this node is {self._incarnation}, not {incarnation}",
                incarnation=self._incarnation,
            )

    @contextlib.asynccontextmanager
    async def _asking(self, timeout_s: float) -> AsyncIterator[Supervisor]:
        supervisor: Supervisor | None = None
        try:
            async with asyncio.timeout(timeout_s):
                supervisor = await self.supervisor()
                yield supervisor
        except SpawnRefused as error:
            if "epoch_seen" in error.facts:
                raise Fenced(error.message, **error.facts) from error
            raise refused(error.message, error.facts) from error
        except SupervisorGone as error:
            self._drop(supervisor)
            raise Unreachable(f"the supervisor does not answer: {error}") from error
        except TimeoutError as error:
            raise Unreachable(f"the supervisor does not answer within {timeout_s:g} s") from error
        except OSError as error:
            raise Internal(f"the supervisor can't be used: {error}") from error

    def _drop(self, supervisor: Supervisor | None) -> None:
        """The next who asks gets another one, unless that has happened already."""
        if supervisor is None or supervisor is not self._supervisor or self._closed.is_set():
            return
        self._supervisor = None
        task = asyncio.create_task(_let_go(supervisor), name="supervisor gone")
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                async with self._asking(RENEW_S) as supervisor:
                    await supervisor.renew()
            except SlotbusError as error:
                logger.debug("lease not renewed", cause=error.message)

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._closed.wait()


def _seen(task: asyncio.Task[Supervisor]) -> None:
    """Those who waited for it may all have given up: its error is no surprise then."""
    if not task.cancelled():
        task.exception()


async def _let_go(supervisor: Supervisor) -> None:
    try:
        await supervisor.close()
    except (SlotbusError, OSError) as error:
        logger.debug("supervisor not closed", cause=str(error))


def process_backend(
    connect: Callable[[], Awaitable[Supervisor]],
    *,
    machine_id: str,
    task_slots: int = TASK_SLOTS,
) -> Backend:
    """The process backend over a supervisor; ``machine_id`` keeps a controller on another
    machine from taking it over."""
    incarnation = f"local-{hashlib.sha256(machine_id.encode()).hexdigest()[:16]}"
    return Backend(
        name="process",
        launcher=ProcessLauncher(connect, incarnation),
        local=LocalNode(
            node_id=LOCAL_NODE,
            task_slots=task_slots,
            incarnation=incarnation,
            machine_id=machine_id,
        ),
    )


def process_rules(rules: Rules, slots_per_process: int = SLOTS_PER_PROCESS) -> Rules:
    """Rules as the process backend needs them; who names no worker command gets the
    packaged idle worker."""
    if not rules.worker_command:
        logger.info("no worker command: jobs without their own run the packaged idle worker")
    return msgspec.structs.replace(
        rules,
        per_worker=slots_per_process,
        local_node=LOCAL_NODE,
        worker_command=rules.worker_command or idle_command(),
    )


class ProcessScheduler(Engine):
    """Runs pipelines as processes of this machine, on a log in memory unless one is given.

    Works without ``async with``: the first call starts it. ``close`` stops its workers;
    so does the end of the program. ``slots_per_process``: the most slots a worker gets,
    ``task_slots``: slots in all.
    """

    def __init__(
        self,
        *,
        slots_per_process: int = SLOTS_PER_PROCESS,
        task_slots: int = TASK_SLOTS,
        worker_command: list[str] | None = None,
        state_dir: Path | None = None,
        log: EventLog | None = None,
        rules: Rules | None = None,
    ) -> None:
        rules = rules or Rules()
        if worker_command is not None:
            rules = msgspec.structs.replace(rules, worker_command=worker_command)
        self._state_dir = state_dir
        self._own_dir: Path | None = None
        self._supervisor: LocalSupervisor | None = None
        machine_id = socket.gethostname()
        super().__init__(
            process_backend(self._make_supervisor, machine_id=machine_id, task_slots=task_slots),
            log or MemoryLog(),
            EngineSettings(rules=process_rules(rules, slots_per_process)),
        )

    async def close(self) -> None:
        """Stops all workers, each with the grace it has, and lets go of everything."""
        if not self.runs_here():
            self._kill_leftovers()
            await super().close()
            return
        await stop_all_jobs(self)
        await super().close()
        await self.backend.launcher.close()
        self._forget_directory()

    async def _after_failed_start(self) -> None:
        """Workers of an earlier program in the state directory stay as they were."""
        if isinstance(self.backend.launcher, ProcessLauncher):
            await self.backend.launcher.let_go()
        if self._supervisor is not None:
            await self._supervisor.detach()
            self._supervisor = None
        self._forget_directory()

    async def _make_supervisor(self) -> Supervisor:
        if self._supervisor is None:
            state_dir = self._state_dir
            if state_dir is None:
                state_dir = self._own_dir = Path(tempfile.mkdtemp(prefix="slotbus-"))
            atexit.register(self._kill_leftovers)
            self._supervisor = LocalSupervisor(state_dir)
        return self._supervisor

    def _kill_leftovers(self) -> None:
        """The program ends without ``close``: its workers would outlive it unwatched."""
        if self._supervisor is not None:
            self._supervisor.kill_all()
        self._forget_directory()

    def _forget_directory(self) -> None:
        atexit.unregister(self._kill_leftovers)
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)
            self._own_dir = None
