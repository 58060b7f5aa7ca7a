"""Supervisors for tests: the one in this process and the one in its own, alike.

What lives here: the ``home`` fixture, which ends by proving that no process of its state
directory is left. What may not: little programs (``workers``).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from events.traffic import InventoryRow, Stamp
from schedulers.supervisor.api import OutputTail, Supervisor, WorkerSpec
from schedulers.supervisor.client import SupervisorClient
from schedulers.supervisor.core import LocalSupervisor, Settings
from schedulers.supervisor.process_tree import (
    ProcessId,
    read_environment,
    read_process,
    read_table,
    send_signal,
)
from schedulers.supervisor.starter import ensure_supervisor

NODE = "node-1"
EPOCH = 7
DEADLINE_S = 30.0
STAMP = Stamp(cluster="test", epoch=EPOCH, position=1)


def spec(
    worker_id: str,
    command: list[str],
    *,
    program: bytes = b"{}",
    env_vars: dict[str, str] | None = None,
    stop_after_s: float | None = None,
) -> WorkerSpec:
    return WorkerSpec(
        worker_id=worker_id,
        job_id="job",
        run_id=3,
        slots=2,
        node_id=NODE,
        command=command,
        stamp=STAMP,
        env_vars=env_vars or {},
        program=Raw(program),
        name="a name",
        hash="abc",
        wasm_path="/some.wasm",
        stop_after_s=stop_after_s,
    )


class Home:
    """A state directory and whoever supervises it."""

    def __init__(self, mode: str, state_dir: Path, workdir: Path) -> None:
        self.mode = mode
        self.state_dir = state_dir
        self.workdir = workdir
        self.settings = Settings(
            workdir=str(workdir), tick_s=0.05, close_grace_s=0.2, output_file_bytes=20_000
        )
        self.supervisor: Supervisor
        self.marks: set[str] = set()
        self.servers: set[int] = set()
        self._opened: list[Supervisor] = []
        self._rows: dict[str, list[InventoryRow]] = {}
        self._heard = asyncio.Event()
        self._listening: list[asyncio.Task[None]] = []

    async def open(self) -> Supervisor:
        """A supervisor for this directory, that the tests' helpers use from now on."""
        if self.mode == "local":
            local = LocalSupervisor(self.state_dir, self.settings)
            local.open()
            self.marks.add(local.supervisor_id)
            self.supervisor = local
        else:
            client = await ensure_supervisor(self.state_dir, NODE, self.settings)
            self.marks.add(client.welcome.supervisor_id)
            self.servers.add(client.welcome.pid)
            self.supervisor = client
        self._opened.append(self.supervisor)
        return self.supervisor

    async def launch(self, worker_id: str, command: list[str], **more: Any) -> int:
        spawned = await self.supervisor.launch(spec(worker_id, command, **more), EPOCH)
        return spawned.pid

    async def stop(self, worker_id: str, *, force: bool = False, grace_s: float = 10.0) -> str:
        reply = await self.supervisor.stop(worker_id, force=force, grace_s=grace_s, epoch=EPOCH)
        return reply.state

    async def row(self, worker_id: str) -> InventoryRow | None:
        rows = (await self.supervisor.inventory(EPOCH)).workers
        return next((row for row in rows if row.worker_id == worker_id), None)

    async def ends(self, *worker_ids: str) -> list[InventoryRow]:
        """The reports of these workers, waited for; each must have come exactly once."""
        if not self._listening:
            self._listening.append(asyncio.create_task(self._listen(self.supervisor)))
        async with asyncio.timeout(DEADLINE_S):
            while not all(worker_id in self._rows for worker_id in worker_ids):
                self._heard.clear()
                await self._heard.wait()
        for worker_id in worker_ids:
            assert len(self._rows[worker_id]) == 1, self._rows[worker_id]
        return [self._rows[worker_id][0] for worker_id in worker_ids]

    async def end(self, worker_id: str) -> InventoryRow:
        return (await self.ends(worker_id))[0]

    async def printed(
        self, worker_id: str, enough: Callable[[OutputTail], bool] | bytes
    ) -> OutputTail:
        """Its output from the start, once it is enough (or contains these bytes)."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                tail = await self.supervisor.output(worker_id, since=0, max_bytes=1_000_000)
                if enough in tail.data if isinstance(enough, bytes) else enough(tail):
                    return tail
                await asyncio.sleep(0.01)

    def forget_reports(self) -> None:
        """As for a new reader: what was heard is over."""
        for task in self._listening:
            task.cancel()
        self._listening.clear()
        self._rows.clear()

    async def close(self) -> None:
        """Ends all that was opened. Workers that had to be killed here fail the test."""
        for supervisor in self._opened:
            if isinstance(supervisor, SupervisorClient) and not supervisor.gone:
                await supervisor.shutdown(0.2)
            await supervisor.close()
        await asyncio.gather(*self._listening, return_exceptions=True)
        left = [row for mark in self.marks for row in processes_of(mark)]
        servers = [p for p in map(read_process, self.servers) if p and p.alive and p.id.pid]
        for process in left + [server.id for server in servers]:
            send_signal(process, signal.SIGKILL)
        assert not left, f"processes of {self.state_dir} are left: {left}"
        assert not servers, f"supervisors of {self.state_dir} are left: {servers}"

    async def _listen(self, supervisor: Supervisor) -> None:
        async for row in supervisor.reports():
            self._rows.setdefault(row.worker_id, []).append(row)
            self._heard.set()


def processes_of(mark: str, worker_id: str | None = None) -> list[ProcessId]:
    """Living processes that carry this supervisor's mark (and worker id)."""
    wanted = {f"SLOTBUS_SUPERVISOR={mark}".encode()}
    if worker_id is not None:
        wanted.add(f"SLOTBUS_WORKER_ID={worker_id}".encode())
    return [
        row.id
        for row in read_table().values()
        if row.alive and wanted <= read_environment(row.id.pid)
    ]


def zombies_of(pid: int) -> list[ProcessId]:
    """Ended children that this process has not taken."""
    return [row.id for row in read_table().values() if row.parent == pid and not row.alive]


def alive(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.alive


def pids_in(path: Path) -> list[int]:
    """The pids a little program wrote down."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture(params=["local", "process"])
async def home(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Home]:
    """An opened supervisor of either kind."""
    async for made in _home(request.param, tmp_path):
        yield made


@pytest.fixture
async def process_home(tmp_path: Path) -> AsyncIterator[Home]:
    """A supervisor process with one client."""
    async for made in _home("process", tmp_path):
        yield made


@pytest.fixture
async def local_home(tmp_path: Path) -> AsyncIterator[Home]:
    """A supervisor in this process."""
    async for made in _home("local", tmp_path):
        yield made


async def _home(mode: str, tmp_path: Path) -> AsyncIterator[Home]:
    workdir = tmp_path / "workdir"
    workdir.mkdir()
    made = Home(mode, tmp_path / "state", workdir)
    await made.open()
    try:
        yield made
    finally:
        await made.close()
    assert not [z for z in zombies_of(os.getpid()) if z.pid in made.servers]
