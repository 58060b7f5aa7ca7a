"""Programs with deliberate faults: ``python -m tests.drills.broken FAULT ARGUMENTS``.

What lives here: one small change to the real code for each fault; ARGUMENTS are those of the
real program, ``controller``, ``agent`` or ``supervisor``. What may not: anything else. A drill
that doesn't find one of these is worth nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller.entry import main as slotbus
from schedulers.loop import EngineLoop
from schedulers.node.orders import Orders
from schedulers.supervisor import __main__ as supervisor_program
from schedulers.supervisor import starter
from schedulers.supervisor.core import LocalSupervisor
from schedulers.supervisor.journal import NAME, EpochSeen
from schedulers.supervisor.memory import Memory
from schedulers.supervisor.process_tree import Process
from schedulers.supervisor.sweep import Sweeper
from tests.drills.cluster import Programs

_SUPERVISOR: Final = "supervisor"


def obeys_every_epoch() -> None:
    """Agent and supervisor do what leaders of the past say."""

    def pass_all(_orders: Orders, _epoch: int, _incarnation: str | None = None) -> None:
        return

    def only_remember(supervisor: LocalSupervisor, epoch: int) -> None:
        if epoch > supervisor._state.epoch:
            supervisor._memory.record(EpochSeen(epoch=epoch))

    _set(Orders, "_fence", pass_all)
    _set(LocalSupervisor, "_fence", only_remember)


def forgets_its_journal() -> None:
    """A supervisor begins with an empty memory, whatever ran under the last one."""
    plain_open = Memory.open

    def forgetful_open(memory: Memory) -> None:
        Path(memory._dir, NAME).unlink(missing_ok=True)
        plain_open(memory)

    _set(Memory, "open", forgetful_open)


def acts_before_it_appends() -> None:
    """Answers and effects go out before the log has the decision."""
    plain_append = EngineLoop._append

    async def hasty_append(loop: EngineLoop) -> None:
        undone = list(loop._unreleased)
        loop._release_all()
        loop._unreleased = deque(undone)
        await plain_append(loop)
        loop._unreleased.clear()

    _set(EngineLoop, "_append", hasty_append)


def leaves_children() -> None:
    """Of a worker that is killed, only the first process is."""
    plain_freeze = Sweeper._freeze

    def only_mains(sweeper: Sweeper) -> dict[str, list[Process]]:
        found = plain_freeze(sweeper)
        mains = sweeper._mains
        return {
            worker: [p for p in rows if p.id == mains.get(worker)] for worker, rows in found.items()
        }

    _set(Sweeper, "_freeze", only_mains)


FAULTS: Final[dict[str, Callable[[], None]]] = {
    "obeys-every-epoch": obeys_every_epoch,
    "forgets-its-journal": forgets_its_journal,
    "acts-before-it-appends": acts_before_it_appends,
    "leaves-children": leaves_children,
}


def programs_with(fault: str) -> Programs:
    """Controllers and agents, and their supervisors, that have this fault."""
    words = ("tests.drills.broken", fault)
    return Programs(controller=words, agent=words)


def main(arguments: list[str]) -> int:
    """Breaks the program and runs it."""
    fault, program, *rest = arguments
    FAULTS[fault]()
    if program == _SUPERVISOR:
        return supervisor_program.main(rest)
    plain_command = starter._command

    def broken_command(*given: object) -> list[str]:
        command: list[str] = plain_command(*given)  # type: ignore[arg-type]
        at = command.index("schedulers.supervisor")
        return [*command[:at], "tests.drills.broken", fault, _SUPERVISOR, *command[at + 1 :]]

    _set(starter, "_command", broken_command)
    return slotbus([program, *rest])


def _set(owner: object, name: str, value: object) -> None:
    """A seam that needs nothing of the product: it is replaced from here."""
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, value)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
