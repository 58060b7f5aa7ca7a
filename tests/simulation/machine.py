"""A machine of the story: its process table, which is the truth, and what signals do to it.

What lives here: processes of workers and of bystanders, pids that are used again, programs
that end by themselves or don't hear. What may not: supervisors (``supervision``), agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from schedulers.supervisor.process_tree import Process as Row
from schedulers.supervisor.process_tree import ProcessId
from tests.simulation.loop import Proc

FIRST_PID: Final = 100
PIDS: Final = 40
"""So few that they are soon used again."""

BRIEF_S: Final = 0.002
INIT: Final = 1
BOOT_PROCESSES: Final = 3
TERM, KILL = 15, 9
TERM_TAKES_S: Final = (0.01, 1.5)


class Program(Struct):
    """What the workers of a job are. ``deaf``: TERM does nothing. ``missing``: there is no
    such program. ``brief``: it ends at once, with an error. ``stuck_s``: how long after
    KILL it is still in the kernel."""

    deaf: bool = False
    missing: bool = False
    stuck_s: float = 0.0
    brief: bool = False


class Running(Struct):
    """One process; ``worker_id`` empty: a bystander. Ended ones stay until they are reaped."""

    pid: int
    start: int
    worker_id: str
    job_id: str
    run_id: int
    slots: int
    owner: str
    program: Program
    parent: int
    alive: bool = True
    code: int | None = None
    signal: int | None = None
    dying: bool = False
    ended: list[Callable[[], None]] = []

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.start)

    def row(self) -> Row:
        return Row(self.id, self.parent, group=self.pid, session=self.pid, alive=self.alive)


class Kernel(Protocol):
    """Who looks on."""

    def spawned(self, machine: Machine, process: Running) -> None: ...
    def signalled(self, machine: Machine, process: Running, number: int) -> None: ...
    def ended(self, machine: Machine, process: Running) -> None: ...


class Machine:
    """``boots`` counts its starts; ``refusals``: how many of the next spawns fail."""

    def __init__(self, kernel: Proc, node_id: str, slots: int, watch: Kernel) -> None:
        self.node_id = node_id
        self.slots = slots
        self.kernel = kernel
        self.watch = watch
        self.boots = 1
        self.refusals = 0
        self.epoch = 0
        """The highest under which anything was done here."""
        self.programs: Callable[[str], Program] = lambda _job_id: Program()
        self.table: dict[int, Running] = {}
        self._next = 0
        self._clock = 0

    @property
    def boot(self) -> str:
        return f"{self.node_id}/{self.boots}"

    def alive(self) -> list[Running]:
        """The living processes of workers."""
        return [p for p in self.table.values() if p.alive and p.worker_id]

    def process(self, worker_id: str) -> Running | None:
        return next((p for p in self.alive() if p.worker_id == worker_id), None)

    # --- what a supervisor does ---------------------------------------------------------

    def spawn(self, variables: Mapping[str, str]) -> Running:
        """Raises FileNotFoundError."""
        job_id = variables["SLOTBUS_JOB_ID"]
        program = self.programs(job_id)
        if program.missing or self.refusals > 0:
            self.refusals = max(0, self.refusals - 1)
            raise FileNotFoundError(2, "No such file or directory", "program")
        process = self._make(variables, program)
        self.watch.spawned(self, process)
        if program.brief:
            self.kernel.post_at(self.kernel.loop.time() + BRIEF_S, self.exit, process, 1)
        return process

    def bystander(self) -> None:
        """Somebody else's process takes the next pid."""
        self._make({}, Program())

    def _make(self, variables: Mapping[str, str], program: Program) -> Running:
        while FIRST_PID + self._next % PIDS in self.table:
            self._next += 1
        self._clock += 1
        process = Running(
            pid=FIRST_PID + self._next % PIDS,
            start=self._clock,
            worker_id=variables.get("SLOTBUS_WORKER_ID", ""),
            job_id=variables.get("SLOTBUS_JOB_ID", ""),
            run_id=int(variables.get("SLOTBUS_RUN_ID", "0")),
            slots=int(variables.get("SLOTBUS_SLOTS", "0")),
            owner=variables.get("SLOTBUS_SUPERVISOR", ""),
            program=program,
            parent=INIT + 1,
        )
        self._next += 1
        self.table[process.pid] = process
        return process

    def terminate(self, pid: int, after_s: float) -> None:
        """TERM to a group: most programs end ``after_s`` seconds later."""
        process = self.table.get(pid)
        if process is None or not process.alive:
            return
        self.watch.signalled(self, process, TERM)
        if not process.program.deaf:
            self._later(after_s, process, TERM)

    def kill(self, process: Running) -> None:
        """KILL: gone at once, or when the kernel lets go of it."""
        if process.alive and not process.dying:
            self.watch.signalled(self, process, KILL)
            process.dying = True
            if process.program.stuck_s:
                self._later(process.program.stuck_s, process, KILL)
            else:
                self._die(process, KILL)

    def reap(self, pid: int) -> None:
        process = self.table.get(pid)
        if process is not None and not process.alive:
            del self.table[pid]

    # --- what happens -------------------------------------------------------------------

    def exit(self, process: Running, code: int) -> None:
        """It ends by itself."""
        if process.alive:
            self._end(process, code, None)

    def _later(self, after_s: float, process: Running, number: int) -> None:
        self.kernel.post_at(self.kernel.loop.time() + after_s, self._die, process, number)

    def _die(self, process: Running, number: int) -> None:
        if process.alive and self.table.get(process.pid) is process:
            self._end(process, None, number)

    def _end(self, process: Running, code: int | None, number: int | None) -> None:
        process.alive, process.code, process.signal = False, code, number
        if process.parent == INIT or not process.worker_id:
            del self.table[process.pid]  # nobody else would take it
        self.watch.ended(self, process)
        told, process.ended = process.ended, []
        for tell in told:
            tell()

    def orphan(self) -> None:
        """The supervisor died: its children are init's, and the ended among them are gone."""
        for process in list(self.table.values()):
            process.parent = INIT
            process.ended = []
            if not process.alive:
                del self.table[process.pid]

    def reboot(self) -> None:
        """Power off and on: everything is gone."""
        table, self.table = self.table, {}
        self.boots += 1
        self._next = 0
        for _ in range(BOOT_PROCESSES):
            self.bystander()
        for process in table.values():
            if process.alive:
                process.alive = False
                self.watch.ended(self, process)
