"""What the supervisor takes for the kernel: each call goes to the machine it runs on.

What lives here: stand-ins for what ``schedulers.supervisor.workers`` uses of processes, under
the same names and shapes. What may not: the machines (``machine``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from schedulers.supervisor.api import OutputTail
from schedulers.supervisor.endings import Exit
from schedulers.supervisor.process_tree import Process as Row
from schedulers.supervisor.process_tree import ProcessId
from tests.simulation.loop import current
from tests.simulation.machine import TERM_TAKES_S, Machine, Running

SWEEP_AGAIN_S: Final = 0.05
LAST_SWEEP_S: Final = 1.0


def here() -> Machine:
    """The machine of the process that runs now."""
    machine = current().machine
    assert isinstance(machine, Machine)
    return machine


class Child:
    """In the place of ``subprocess.Popen``."""

    def __init__(self, process: Running) -> None:
        self.process = process
        self.pid = process.pid
        self.returncode: int | None = None

    def wait(self, _timeout: float | None = None) -> int:
        return 0


def spawn(command: list[str], environment: Mapping[str, str], workdir: Path, output: int) -> Child:
    return Child(here().spawn(environment))


def take_exit(child: Child) -> Exit | None:
    if child.returncode is not None:
        return Exit()
    if child.process.alive:
        return None
    child.returncode = child.process.code if child.process.code is not None else -9
    here().reap(child.pid)
    return Exit(code=child.process.code, signal=child.process.signal)


def terminate_group(leader: int) -> None:
    here().terminate(leader, current().rng.uniform(*TERM_TAKES_S))


def boot_id() -> str:
    return here().boot


def read_process(pid: int) -> Row | None:
    process = here().table.get(pid)
    return None if process is None else process.row()


def read_table() -> dict[int, Row]:
    return {pid: process.row() for pid, process in here().table.items()}


def is_running(process: ProcessId) -> bool:
    found = here().table.get(process.pid)
    return found is not None and found.id == process and found.alive


def reap_strays(mains: Iterable[ProcessId], *, kill: bool) -> None:
    return None


class Ownership:
    def __init__(self, supervisor_id: str) -> None:
        self._supervisor_id = supervisor_id

    def __call__(self, process: Row) -> str | None:
        found = here().table.get(process.id.pid)
        if found is None or found.owner != self._supervisor_id:
            return None
        return found.worker_id or None


class ExitWatch:
    """Calls back in the supervisor's process when one of these has ended."""

    def __init__(self) -> None:
        self._proc = current()
        self._machine = here()
        self._watched: dict[ProcessId, Callable[[], None]] = {}

    def add(self, process: ProcessId, ended: Callable[[], None], *, held: bool) -> None:
        self._watched[process] = ended
        found = self._machine.table.get(process.pid)
        if found is None or found.id != process or not found.alive:
            self._proc.post(self._tell, process)
        else:
            found.ended.append(lambda: self._post(process))

    def _post(self, process: ProcessId) -> None:
        self._proc.post(self._tell, process)

    def _tell(self, process: ProcessId) -> None:
        ended = self._watched.pop(process, None)
        if ended is not None:
            ended()

    def remove(self, process: ProcessId) -> None:
        self._watched.pop(process, None)

    def close(self) -> None:
        self._watched.clear()

    abandon = close


class Sweeper:
    """Kills what is left of workers, and says when nothing is; as the real one, in rounds."""

    def __init__(
        self,
        owner_of: Ownership,
        mains: Mapping[str, ProcessId],
        gone: Callable[[str], None],
    ) -> None:
        self._machine = here()
        self._owner_of = owner_of
        self._mains = mains
        self._gone = gone
        self._batch: dict[str, None] = {}
        self._timer: asyncio.Handle | None = None
        self._retry_s = SWEEP_AGAIN_S

    def add(self, worker_id: str) -> None:
        self._batch[worker_id] = None
        if self._timer is not None:
            self._timer.cancel()
        self._retry_s = SWEEP_AGAIN_S
        self._timer = asyncio.get_running_loop().call_soon(self._round)

    def kill_all(self) -> None:
        for worker_id in self._mains:
            for process in self._members(worker_id):
                self._machine.kill(process)

    def close(self) -> None:
        self._batch.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _members(self, worker_id: str) -> list[Running]:
        main = self._mains.get(worker_id)
        return [
            process
            for process in list(self._machine.table.values())
            if process.alive and (process.id == main or self._owner_of(process.row()) == worker_id)
        ]

    def _round(self) -> None:
        self._timer = None
        done = []
        for worker_id in self._batch:
            for process in self._members(worker_id):
                self._machine.kill(process)
            if not self._members(worker_id):
                done.append(worker_id)
        for worker_id in done:
            del self._batch[worker_id]
        for worker_id in done:
            self._gone(worker_id)
        if self._batch and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._retry_s, self._round)
            self._retry_s = min(self._retry_s * 2, LAST_SWEEP_S)


class NoOutput:
    """In the place of ``OutputStore``: workers of stories print nothing."""

    def __init__(self, root: Path, file_bytes: int, files: int, kept: int) -> None:
        self._root = root

    def recover(self, living: set[str]) -> None:
        return None

    def create(self, worker_id: str) -> Path:
        return self._root

    def open_for_worker(self, worker_id: str) -> int:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def rotate(self, worker_ids: Iterator[str]) -> None:
        return None

    def ended(self, worker_id: str) -> None:
        return None

    def remove(self, worker_id: str) -> None:
        return None

    def read(self, worker_id: str, since: int, max_bytes: int) -> OutputTail:
        return OutputTail(data=b"", offset=0)
