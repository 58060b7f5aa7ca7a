"""The launcher: a backend's thin port to the outside.

What lives here: what the engine asks of a backend and what comes back. What may not:
decisions, and anything about NATS, processes or Kubernetes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Literal, Protocol, TypeAlias

from msgspec import Raw, Struct

from events.errors import Fact, SlotbusError
from events.messages import KubernetesOptions
from events.states import WorkerState
from events.traffic import AgentStopReply, InventoryReply, InventoryRow, Stamp, WorkerFinishedReq


class Assignment(Struct, kw_only=True, frozen=True):
    """One worker to be launched: where, under which epoch, and what it runs.

    ``command`` empty means: the node's own worker command, else ``default_command``. The
    stamp's epoch is the one that decided, ``epoch`` the one that acts now. ``selector`` and
    ``spread`` are for backends whose nodes slotbus does not choose.
    """

    worker_id: str
    job_id: str
    run_id: int
    slots: int
    node_id: str
    incarnation: str
    epoch: int
    stamp: Stamp
    command: list[str] = []
    default_command: list[str] = []
    env_vars: dict[str, str] = {}
    program: Raw = Raw(b"{}")
    name: str = ""
    hash: str = ""
    wasm_path: str = ""
    selector: dict[str, str] = {}
    spread: Literal["pack", "even"] = "pack"
    stop_after_s: float | None = None
    kubernetes: KubernetesOptions = KubernetesOptions()


class StopOrder(Struct, kw_only=True, frozen=True):
    """One worker to be stopped; ``grace_s`` seconds lie between TERM and KILL."""

    worker_id: str
    node_id: str
    incarnation: str
    force: bool
    grace_s: float
    epoch: int


class WorkerSeen(Struct, kw_only=True, frozen=True):
    """What a launcher sees of a worker that has not ended, or can't be proved to have.

    ``lost``: nobody can say whether it runs; else it is ``stopping`` still, for ``reason``.
    """

    worker_id: str
    lost: bool
    reason: str


class HostSeen(Struct, kw_only=True, frozen=True):
    """On which machine a worker runs, where slotbus did not choose it."""

    worker_id: str
    host: str


Report: TypeAlias = WorkerFinishedReq | WorkerSeen | HostSeen | InventoryReply
"""What a launcher says by itself. An inventory is of the backend's one local node."""


class LaunchAck(Struct, kw_only=True, frozen=True):
    """The worker's process exists. An inventory with a ``seq`` above was taken later."""

    pid: int | None = None
    seq: int = 0


class LaunchRefused(SlotbusError):
    """The worker does not run and, under this worker_id, never will.

    The fact ``ran`` says that an earlier order for it was obeyed: it has ended since, which is
    reported if it was not yet, or, with the fact ``told``, was acknowledged by a leader.
    """

    code = "start_failed"
    status = 500


class LaunchDoubtful(SlotbusError):
    """The order was refused, which says nothing about an earlier one like it: its answer may
    have been lost. Whether the worker ever ran is known after a stop."""

    code = "start_failed"
    status = 500


class Fenced(SlotbusError):
    """The node obeys a newer leader, or is another incarnation by now: this order is void,
    and says nothing about what an earlier one like it did."""

    code = "not_leader"
    status = 503


class Unreachable(SlotbusError):
    """No answer in time: nothing is known about whether it was done. Ask again."""

    code = "timeout"
    status = 503
    retriable = True


def refused(message: str, facts: Mapping[str, Fact]) -> LaunchRefused | LaunchDoubtful:
    """What the refusal of an order proves: only who looked at this very worker says ``ran``."""
    proves = isinstance(facts.get("ran"), bool)
    return (LaunchRefused if proves else LaunchDoubtful)(message, **facts)


def never_ran(end: InventoryRow | WorkerFinishedReq) -> bool:
    """Whether an end says that there never was a process: it failed, and has no exit. Who is
    lost, or ended as asked without an exit, may have run."""
    return end.state is WorkerState.FAILED and end.exit_code is None and end.signal is None


def report_of(row: InventoryRow, node_id: str) -> WorkerFinishedReq:
    """The end of a worker, as its node's inventory has it, as the report of it."""
    return WorkerFinishedReq(
        node_id=node_id,
        worker_id=row.worker_id,
        job_id=row.job_id,
        run_id=row.run_id,
        slots=row.slots,
        exit_code=row.exit_code,
        signal=row.signal,
        reason=row.reason,
        state=row.state,
    )


class Launcher(Protocol):
    """Every method is idempotent; each has its own deadline, in seconds."""

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        """Starts a worker. Raises LaunchRefused, LaunchDoubtful, Fenced, Unreachable."""
        ...

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        """Begins to stop a worker; its end comes as a report. Raises Fenced, LaunchRefused,
        LaunchDoubtful, Unreachable."""
        ...

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        """Raises the node's epoch and lists its workers. Raises Fenced, Unreachable."""
        ...

    def reports(self) -> AsyncIterator[Report]:
        """Ends of workers that the launcher itself hears of, until they are acknowledged, and
        what else it sees. Backends whose reports come as messages (agents) yield nothing."""
        ...

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        """The end of this worker is in the log."""
        ...

    async def close(self) -> None:
        """Lets go of connections, processes and files made by this launcher."""
        ...
