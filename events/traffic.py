"""What agents and the leader say to each other: registrations, heartbeats, orders, output.

What lives here: one struct per message of a node. What may not: commands of people
(``events.messages``), queries (``events.queries``) and what an agent does with an order.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Raw

from events.ids import (
    DEFAULT_EXPIRY_S,
    DEFAULT_GRACE_S,
    DEFAULT_HEARTBEAT_S,
    Capacity,
    Id,
    RunNumber,
    SlotCount,
    WaitSeconds,
)
from events.messages import Counter, Message
from events.states import WorkerState


class Stamp(Message, kw_only=True, frozen=True):
    """Where a worker comes from: the decision that the log must be able to confirm."""

    cluster: str
    epoch: int
    position: int


class InventoryRow(Message, kw_only=True, frozen=True):
    """One worker as its node sees it. ``state`` is running, stopping, or how it ended
    (finished, failed, or lost where nobody can tell); ended ones stay until acknowledged."""

    worker_id: Id
    job_id: Id
    run_id: RunNumber
    slots: SlotCount
    state: WorkerState
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    stamp: Stamp | None = None


class RegisterNodeReq(Message, kw_only=True, frozen=True):
    """``incarnation`` is new at each start of the agent. ``workers``: its inventory; None
    is "not reported", an empty list is "none"."""

    node_id: Id
    task_slots: Capacity
    incarnation: Id
    machine_id: str = ""
    addr: str = ""
    labels: dict[str, str] = {}
    version: str = ""
    workers: list[InventoryRow] | None = None
    epoch: Counter = 0


class RegisterReply(Message, kw_only=True, frozen=True):
    """``heartbeat_s``, ``expiry_s`` in seconds: how often to beat, when silence is death."""

    epoch: int
    heartbeat_s: float = DEFAULT_HEARTBEAT_S
    expiry_s: float = DEFAULT_EXPIRY_S


class HeartbeatNodeReq(Message, kw_only=True, frozen=True, gc=False):
    """``seq`` grows with everything an incarnation says; ``digest`` is ``live_digest`` of
    the workers that run or are being stopped there."""

    node_id: Id
    incarnation: Id
    seq: Counter = 0
    epoch: Counter = 0
    digest: str = ""


class HeartbeatReply(Message, kw_only=True, frozen=True):
    """``epoch``: of the leader that heard it."""

    epoch: int


class WorkerFinishedReq(Message, kw_only=True, frozen=True):
    """A worker ended: with ``exit_code``, or by ``signal``; repeated until acknowledged."""

    node_id: Id
    worker_id: Id
    job_id: Id
    run_id: RunNumber
    slots: SlotCount
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    state: WorkerState | None = None


class FinishedReply(Message, kw_only=True, frozen=True):
    """The end is in the log; ``epoch``: of the leader that wrote it."""

    epoch: int


class AgentStart(Message, kw_only=True, frozen=True):
    """Launch one worker. Idempotent by ``worker_id``; fenced by epoch and incarnation.

    ``command`` empty means: the agent's own worker command, else ``default_command``.
    """

    worker_id: Id
    job_id: Id
    run_id: RunNumber
    slots: SlotCount
    epoch: Counter
    incarnation: Id
    stamp: Stamp
    command: list[str] = []
    default_command: list[str] = []
    env_vars: dict[str, str] = {}
    program: Raw = Raw(b"{}")
    name: str = ""
    hash: str = ""
    wasm_path: str = ""
    stop_after_s: float | None = None


class AgentStartReply(Message, kw_only=True, frozen=True):
    """The process is spawned. ``seq``: an inventory with a higher one was taken later."""

    pid: int
    seq: Counter = 0


class AgentStop(Message, kw_only=True, frozen=True):
    """Stop one worker: TERM, then KILL after ``grace_s`` seconds; ``force`` kills at once."""

    worker_id: Id
    epoch: Counter
    incarnation: Id
    force: bool = False
    grace_s: WaitSeconds = DEFAULT_GRACE_S


class AgentStopReply(Message, kw_only=True, frozen=True):
    """``state``: ``stopping``; ``ended`` (its end is or will be reported); ``unknown``: it
    never ran here and, since a tombstone now stands for it, never will. ``told``: its end was
    acknowledged by a leader, and is not reported again."""

    state: Literal["stopping", "ended", "unknown"]
    told: bool = False
    seq: Counter = 0


class AgentInventory(Message, kw_only=True, frozen=True):
    """List the workers of this node; orders of a lower ``epoch`` are refused from here on."""

    epoch: Counter


class InventoryReply(Message, kw_only=True, frozen=True):
    """What a node runs, and ends that nobody acknowledged yet, as of ``seq``."""

    incarnation: Id
    seq: Counter
    epoch: Counter
    workers: list[InventoryRow]


class AgentLogs(Message, kw_only=True, frozen=True):
    """Ask for the stored end of a worker's output, at most ``max_bytes`` bytes."""

    worker_id: Id
    max_bytes: Annotated[int, Meta(ge=1, le=512 * 1024)] = 64 * 1024


class AgentLogsReply(Message, kw_only=True, frozen=True):
    """``text`` is the end of the output; ``offset`` where it ends, in bytes since start."""

    text: str
    offset: Counter


class AgentAbout(Message, kw_only=True, frozen=True):
    """Ask an agent who it is and what time it has; anybody may."""


class AgentAboutReply(Message, kw_only=True, frozen=True):
    """What an agent says of itself to anybody who asks. ``now``: its machine's clock, which
    decides nothing; ``epoch``: the highest it has seen; ``standing``: how it stands with the
    leader."""

    node_id: str
    incarnation: str
    epoch: int
    now: datetime
    standing: str


class LogLines(Message, kw_only=True, frozen=True):
    """What an agent publishes on ``log.<job_id>.<worker_id>``; ``offset`` in bytes since
    the worker's start is where ``text`` ends, so a reader joins it to a stored tail."""

    worker_id: str
    job_id: str
    run_id: int
    offset: int
    text: str
