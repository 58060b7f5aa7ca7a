"""The process table of this machine: who descends from whom, and signals that can't go astray.

What lives here: reading ``/proc``, deciding which processes belong to a worker, and sending
a signal to exactly the process that was seen. What may not: when to do so (``sweep``).
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

PROC: Final = "/proc"
_STAT_BYTES: Final = 4096
_KERNEL_SESSION: Final = 0
"""Kernel threads are in no session, have no environment, and are nobody's workers."""

_PR_SET_CHILD_SUBREAPER: Final = 36


class ProcessId(NamedTuple):
    """A process beyond doubt: a pid is used again, a pid with its start time is not.

    ``start``: clock ticks after boot, as the kernel tells it.
    """

    pid: int
    start: int


class Process(NamedTuple):
    """One line of the process table. ``alive``: not a zombie, or one with live threads."""

    id: ProcessId
    parent: int
    group: int
    session: int
    alive: bool


Table: TypeAlias = Mapping[int, Process]
OwnerOf: TypeAlias = Callable[[Process], str | None]
"""Which worker a process names in its environment."""


def boot_id() -> str:
    """Changes with every start of the machine, where all pids begin anew."""
    return Path(PROC, "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_process(pid: int) -> Process | None:
    """What the table says about one pid now; None if there is no such process."""
    data = _read(f"{PROC}/{pid}/stat", _STAT_BYTES)
    if not data:
        return None
    field = data[data.rindex(b")") + 2 :].split(maxsplit=20)
    state, threads = field[0], int(field[17])
    return Process(
        id=ProcessId(pid, int(field[19])),
        parent=int(field[1]),
        group=int(field[2]),
        session=int(field[3]),
        alive=state not in b"ZXx" or threads > 1,
    )


def read_table() -> dict[int, Process]:
    """All processes, about 8 microseconds each."""
    rows: dict[int, Process] = {}
    for name in os.listdir(PROC):  # noqa: PTH208 - twice as fast as Path.iterdir
        if name.isdigit() and (row := read_process(int(name))) is not None:
            rows[row.id.pid] = row
    return rows


def read_environment(pid: int) -> frozenset[bytes]:
    """``NAME=value`` as the process was started with; empty if it can't be read."""
    chunks = []
    try:
        with open(f"{PROC}/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123
            while chunk := file.read(1 << 18):
                chunks.append(chunk)
    except OSError:
        return frozenset()
    return frozenset(filter(None, b"".join(chunks).split(b"\0")))


def is_running(process: ProcessId) -> bool:
    """Whether exactly this process exists and is no zombie."""
    row = read_process(process.pid)
    return row is not None and row.id == process and row.alive


def open_pidfd(process: ProcessId, *, held: bool = False) -> int | None:
    """A descriptor that becomes readable when exactly this process ends.

    ``held``: it is our child and not reaped, so that its pid can't be anyone else's.
    None where the kernel has no pidfds or it does not exist. Raises OSError (EMFILE).
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if held:
        return fd
    # The descriptor holds on to whoever had the pid; the start time tells who that is.
    row = read_process(process.pid)
    if row is None or row.id != process:
        os.close(fd)
        return None
    return fd


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signals exactly this process. False if it is gone, is another one, or may not be."""
    if process.pid == os.getpid():
        return False
    try:
        fd = open_pidfd(process)
        if fd is not None:
            try:
                signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)
            return True
        if hasattr(os, "pidfd_open") or not is_running(process):
            return False
        os.kill(process.pid, number)
    except OSError:
        return False
    return True


def become_subreaper() -> bool:
    """From now on orphans among our descendants become our children, not init's."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return int(prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


class Ownership:
    """Knows from its environment which worker of this state directory a process is of.

    Answers are remembered for as long as the process exists. An empty environment is none:
    a process has one of its own only a moment after its exec began.
    """

    def __init__(self, supervisor_id: str) -> None:
        self._mark = f"SLOTBUS_SUPERVISOR={supervisor_id}".encode()
        self._seen: dict[ProcessId, str | None] = {}

    def __call__(self, process: Process) -> str | None:
        if process.id in self._seen:
            return self._seen[process.id]
        if process.session == _KERNEL_SESSION:
            return None
        environment = read_environment(process.id.pid)
        owner = self._named_in(environment)
        if environment:
            self._seen[process.id] = owner
        return owner

    def learn(self, process: ProcessId, worker_id: str) -> None:
        """It was seen as a descendant: remembered for when its parent is gone."""
        self._seen[process] = worker_id

    def prune(self, table: Table) -> None:
        """Forgets processes that are no more."""
        gone = [p for p in self._seen if p.pid not in table or table[p.pid].id != p]
        for process in gone:
            del self._seen[process]

    def _named_in(self, environment: frozenset[bytes]) -> str | None:
        if self._mark not in environment:
            return None
        for item in environment:
            if item.startswith(b"SLOTBUS_WORKER_ID="):
                return item.partition(b"=")[2].decode("ascii", "replace")
        return None


def find_members(
    table: Table, mains: Mapping[str, ProcessId], wanted: Collection[str], owner_of: OwnerOf
) -> dict[str, list[Process]]:
    """The living processes of each wanted worker: its session, those that carry its name,
    and all that descend from these.

    ``mains``: the main process of every worker. A session is only believed while its main
    process, alive or a zombie, still holds the number.
    """
    sessions = {
        main.pid: worker
        for worker, main in mains.items()
        if main.pid in table and table[main.pid].id == main
    }
    owned: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        children.setdefault(row.parent, []).append(pid)
        owner = sessions.get(row.session) or owner_of(row)
        if owner is not None:
            owned[pid] = owner
    _inherit(owned, children)
    found: dict[str, list[Process]] = {worker: [] for worker in wanted}
    for pid, owner in owned.items():
        if owner in found and table[pid].alive and pid != os.getpid():
            found[owner].append(table[pid])
    return found


def _inherit(owned: dict[int, str], children: Mapping[int, list[int]]) -> None:
    todo = list(owned)
    while todo:
        parent = todo.pop()
        for child in children.get(parent, ()):
            if child not in owned:
                owned[child] = owned[parent]
                todo.append(child)


def _read(path: str, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)
