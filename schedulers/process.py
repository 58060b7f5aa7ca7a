"""The process backend: workers as processes of this machine, under a supervisor.

What lives here: its launcher over the supervisor's port, and ``ProcessScheduler``, which
works alone as a library. What may not: NATS, and spawning (the supervisor's).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from events.log import EventLog, MemoryLog
from events.messages import AgentStopReply, InventoryReply, InventoryRow, WorkerFinishedReq
from schedulers.decide import Rules
from schedulers.engine import Backend, Engine, EngineSettings, LocalNode
from schedulers.idle import idle_command
from schedulers.launcher import (
    Assignment,
    Fenced,
    LaunchAck,
    LaunchRefused,
    StopOrder,
    Unreachable,
)
from schedulers.supervisor.api import SpawnRefused, Supervisor, SupervisorGone, WorkerSpec
from schedulers.supervisor.core import LocalSupervisor

LOCAL_NODE: Final = "local"
SLOTS_PER_PROCESS: Final = 16
"""As in Arroyo's process scheduler."""

TASK_SLOTS: Final = 1_000
RENEW_S: Final = 2.0
RECONNECT_S: Final = 0.5

log = structlog.get_logger("slotbus.process")


class ProcessLauncher:
    """Implements ``schedulers.launcher.Launcher`` over one supervisor.

    ``connect`` gives a supervisor that answers; it is called again whenever the one in use
    is gone, which then has been adopted by a new one.
    """

    def __init__(self, connect: Callable[[], Awaitable[Supervisor]], incarnation: str) -> None:
        self._connect = connect
        self._incarnation = incarnation
        self._supervisor: Supervisor | None = None
        self._connecting = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._closed = False

    async def supervisor(self) -> Supervisor:
        """The supervisor in use. Raises SupervisorGone."""
        async with self._connecting:
            if self._closed:
                raise SupervisorGone("this launcher is closed")
            if self._supervisor is None:
                self._supervisor = await self._connect()
            if self._renewing is None:
                self._renewing = asyncio.create_task(self._renew(), name="supervisor lease")
            return self._supervisor

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        """Spawns a worker. Raises LaunchRefused, Fenced, Unreachable."""
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
        if not spec.command:
            raise LaunchRefused("no worker command: neither the job nor this controller has one")
        async with self._asking(timeout_s) as supervisor:
            spawned = await supervisor.launch(spec, assignment.epoch)
        return LaunchAck(pid=spawned.pid, seq=spawned.seq)

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        """Begins to stop a worker. Raises Fenced, Unreachable."""
        async with self._asking(timeout_s) as supervisor:
            return await supervisor.stop(
                order.worker_id, force=order.force, grace_s=order.grace_s, epoch=order.epoch
            )

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        """Lists the workers under ``epoch``. Raises Fenced, Unreachable."""
        async with self._asking(timeout_s) as supervisor:
            taken = await supervisor.inventory(epoch)
        return InventoryReply(
            incarnation=self._incarnation, seq=taken.seq, epoch=epoch, workers=taken.workers
        )

    async def reports(self) -> AsyncIterator[WorkerFinishedReq]:
        """Every worker's end, again after the supervisor was replaced."""
        while not self._closed:
            try:
                supervisor = await self.supervisor()
                async for row in supervisor.reports():
                    yield _finished(row)
            except (SupervisorGone, OSError) as error:
                log.warning("supervisor gone", error=str(error))
            self._supervisor = None
            if not self._closed:
                await asyncio.sleep(RECONNECT_S)

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        """The end of this worker is in the log. Raises Unreachable."""
        async with self._asking(RECONNECT_S) as supervisor:
            await supervisor.acknowledge([worker_id])

    async def close(self) -> None:
        """Lets go of the supervisor; one in this process stops its workers first."""
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._supervisor is not None:
            await self._supervisor.close()

    @contextlib.asynccontextmanager
    async def _asking(self, timeout_s: float) -> AsyncIterator[Supervisor]:
        try:
            async with asyncio.timeout(timeout_s):
                yield await self.supervisor()
        except SpawnRefused as error:
            kind = Fenced if "epoch_seen" in error.facts else LaunchRefused
            raise kind(error.message, **error.facts) from error
        except (SupervisorGone, TimeoutError) as error:
            self._supervisor = None
            raise Unreachable(f"the supervisor does not answer: {error}") from error

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(Unreachable):
                async with self._asking(RENEW_S) as supervisor:
                    await supervisor.renew()


def _finished(row: InventoryRow) -> WorkerFinishedReq:
    return WorkerFinishedReq(
        node_id=LOCAL_NODE,
        worker_id=row.worker_id,
        job_id=row.job_id,
        run_id=row.run_id,
        slots=row.slots,
        exit_code=row.exit_code,
        signal=row.signal,
        reason=row.reason,
        state=row.state,
    )


def process_backend(
    connect: Callable[[], Awaitable[Supervisor]],
    *,
    machine_id: str,
    task_slots: int = TASK_SLOTS,
) -> Backend:
    """The process backend over a supervisor; ``machine_id`` keeps a controller on another
    machine from taking it over."""
    machine = msgspec.json.encode(machine_id).hex()[:100] or "none"
    incarnation = f"local-{machine}"
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
        log.info("no worker command: jobs without their own run the packaged idle worker")
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
        super().__init__(
            process_backend(
                self._make_supervisor, machine_id=socket.gethostname(), task_slots=task_slots
            ),
            log or MemoryLog(),
            EngineSettings(rules=process_rules(rules, slots_per_process)),
        )

    async def close(self) -> None:
        """Stops all workers, each with the grace it has, and lets go of everything."""
        await super().close()
        await self.backend.launcher.close()
        atexit.unregister(self._kill_leftovers)
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)

    async def _make_supervisor(self) -> Supervisor:
        if self._state_dir is None:
            self._own_dir = self._state_dir = Path(tempfile.mkdtemp(prefix="slotbus-"))
        atexit.register(self._kill_leftovers)
        return LocalSupervisor(self._state_dir)

    def _kill_leftovers(self) -> None:
        """The program ends without ``close``: its workers would outlive it unwatched. Their
        pids are our children's, not reaped yet, so nobody else can have them."""
        for worker in self.ledger.workers.values():
            if not worker.gone and worker.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signal.SIGKILL)
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)
