"""The supervisor's port: what an agent or the process backend asks of it.

What lives here: the structs and the protocol that the in-process supervisor and the
client of the supervisor process both implement, under one contract suite. What may not:
processes and sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Raw, Struct

from events.errors import SlotbusError
from events.traffic import AgentStopReply, InventoryRow, Stamp


class WorkerSpec(Struct, kw_only=True, frozen=True):
    """All that is needed to spawn one worker.

    ``command`` is an argument vector (no shell). ``env_vars`` come on top of what the
    supervisor itself sets (``SLOTBUS_*``) and of an allow-list from its environment.
    ``program`` is JSON: up to 64 KiB in ``SLOTBUS_PROGRAM``, else in a file named by
    ``SLOTBUS_PROGRAM_FILE``. ``stop_after_s``: seconds without a client's renewal after
    which the worker is stopped (None: never).
    """

    worker_id: str
    job_id: str
    run_id: int
    slots: int
    node_id: str
    command: list[str]
    stamp: Stamp
    env_vars: dict[str, str] = {}
    program: Raw = Raw(b"{}")
    name: str = ""
    hash: str = ""
    wasm_path: str = ""
    stop_after_s: float | None = None


class Spawned(Struct, frozen=True):
    """``seq`` grows with every change the supervisor makes or reports."""

    pid: int
    seq: int


class Inventory(Struct, frozen=True):
    """All workers alive, and those ended whose end was not acknowledged yet."""

    seq: int
    epoch: int
    workers: list[InventoryRow]


class OutputTail(Struct, frozen=True):
    """``offset``: bytes written since the worker's start, where ``data`` ends."""

    data: bytes
    offset: int


class SpawnRefused(SlotbusError):
    """This worker does not run here and, under this worker_id, never will.

    The message says why: no such program, a tombstone, a lower epoch than seen. But for the
    last, a tombstone then stands for it, and the fact ``ran`` says whether it did run: its end
    is reported, or, with the fact ``told``, was acknowledged before.
    """

    code = "start_failed"
    status = 500


class SupervisorGone(SlotbusError):
    """The supervisor can't be reached: nothing is known about what was asked."""

    code = "timeout"
    status = 503
    retriable = True


class StateDirBusy(SlotbusError):
    """Another supervisor holds this state directory."""

    code = "internal"
    status = 500


class Supervisor(Protocol):
    """One supervisor of one node. Every method is safe to repeat.

    All may raise SupervisorGone where a process is between caller and workers.
    """

    async def launch(self, spec: WorkerSpec, epoch: int) -> Spawned:
        """Spawns the worker, or answers as before if it already did.

        Raises SpawnRefused: also when the worker already ended or was ever stopped, when
        the epoch is lower than seen, and when a ``stop_after_s`` is over already because
        no client renewed (renew first). Raises Invalid for a worker_id that is no id.
        """
        ...

    async def stop(
        self, worker_id: str, *, force: bool, grace_s: float, epoch: int
    ) -> AgentStopReply:
        """Begins to stop a worker: TERM, then KILL to the whole tree after ``grace_s``
        seconds; ``force`` kills at once, also a worker already being stopped. Returns
        before it is gone. An unknown id leaves a tombstone. Raises SpawnRefused for a
        lower epoch than seen."""
        ...

    async def inventory(self, epoch: int) -> Inventory:
        """Raises the epoch seen to at least ``epoch`` (0: leave it) and lists workers.

        Raises SpawnRefused for a lower epoch than seen (0 is never refused).
        """
        ...

    async def acknowledge(self, worker_ids: Sequence[str]) -> None:
        """The ends of these workers are in the log: forget them (a tombstone stays)."""
        ...

    async def renew(self, sent_at: float | None = None) -> None:
        """A client is here: all ``stop_after_s`` leases count from ``sent_at`` (None: from
        now), never from earlier than they already do. It is when the heartbeat was sent whose
        answer is the proof, in seconds since boot with those in suspend: a moment and not an
        age, since whoever is frozen on the way would make an age too young. The opening of a
        state directory counts as a renewal where nobody in it has a lease yet."""
        ...

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        """Stored output from byte ``since`` on (negative: the last ``max_bytes``), of a
        worker alive or ended. An unknown worker has none: empty data, offset 0."""
        ...

    def reports(self) -> AsyncIterator[InventoryRow]:
        """Every worker's end, once as it happens; first all that are unacknowledged, the
        oldest first. Ends when the supervisor is closed or gone."""
        ...

    async def close(self) -> None:
        """Lets go. In-process: stops all workers first; a client only disconnects."""
        ...
