"""The process table as a drill sees it: everything that carries its mark.

What lives here: one look at the table, and who is what in it. What may not: laws, signals.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from schedulers.supervisor.process_tree import (
    Process,
    ProcessId,
    read_environment,
    read_table,
)

MARK: Final = "DRILL_MARK"
_WORKER: Final = "SLOTBUS_WORKER_ID"
_NODE: Final = "SLOTBUS_NODE_ID"
_STATE_DIR: Final = "--state-dir="
"""With ``=`` only supervisors are told it."""


class Member(Struct, frozen=True):
    """A process of the drill. ``worker_id``: it belongs to this worker. ``supervises``: the
    state directory that it serves."""

    id: ProcessId
    parent: int
    session: int
    worker_id: str = ""
    node_id: str = ""
    supervises: str = ""

    @property
    def leads(self) -> bool:
        """Supervisors give each worker a session of its own."""
        return self.session == self.id.pid


class Picture(Struct, frozen=True):
    """The table at one moment."""

    members: list[Member]

    def workers(self) -> dict[str, list[Member]]:
        """The processes of each worker that runs."""
        found: dict[str, list[Member]] = defaultdict(list)
        for member in self.members:
            if member.worker_id:
                found[member.worker_id].append(member)
        return found

    def supervisors(self, state_dir: str) -> list[Member]:
        """Who serves a state directory; while one begins there may be two for a moment."""
        return [member for member in self.members if member.supervises == state_dir]

    def others(self) -> list[Member]:
        """What is no worker."""
        return [member for member in self.members if not member.worker_id]


def look(mark: str) -> Picture:
    """Reads the table: some milliseconds. Ended processes that nobody reaped don't count."""
    wanted = f"{MARK}={mark}".encode()
    members = (_member(row, wanted) for row in read_table().values() if row.alive)
    return Picture([member for member in members if member is not None])


def _member(row: Process, wanted: bytes) -> Member | None:
    if row.session == 0 or row.id.pid == os.getpid():
        return None
    environment = read_environment(row.id.pid)
    if wanted not in environment:
        return None
    worker_id = _value(environment, _WORKER)
    return Member(
        id=row.id,
        parent=row.parent,
        session=row.session,
        worker_id=worker_id,
        node_id=_value(environment, _NODE),
        supervises="" if worker_id else _supervises(row.id.pid),
    )


def _value(environment: Iterable[bytes], name: str) -> str:
    prefix = f"{name}=".encode()
    return next(
        (item[len(prefix) :].decode() for item in environment if item.startswith(prefix)), ""
    )


def _supervises(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - read in a loop
            words = file.read().decode(errors="replace").split("\0")
    except OSError:
        return ""
    named = (word.removeprefix(_STATE_DIR) for word in words if word.startswith(_STATE_DIR))
    return next(named, "")
