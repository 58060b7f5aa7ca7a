"""What enters the inbox beside the wire's messages, and the effects that leave.

What lives here: outcomes of effects, timers, link changes as messages; effects as values.
What may not: anything that carries an effect out.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from msgspec import Raw, Struct

from events.messages import (
    Command,
    ConfirmDeadReply,
    DrainReply,
    NodeReply,
    RebuildReply,
    StartReply,
    StopReply,
)
from events.queries import (
    JobReply,
    JobsReply,
    LeaderReply,
    NodeDetailReply,
    NodesReply,
    QueryJob,
    QueryJobs,
    QueryLeader,
    QueryNode,
    QueryNodes,
    QueryShortage,
    QueryWorker,
    QueryWorkers,
    ShortageReply,
    WorkerReply,
    WorkersReply,
)
from events.traffic import (
    FinishedReply,
    HeartbeatNodeReq,
    HeartbeatReply,
    InventoryReply,
    RegisterNodeReq,
    RegisterReply,
    WorkerFinishedReq,
)
from schedulers.launcher import Assignment, HostSeen, StopOrder, WorkerSeen

# --- effects ----------------------------------------------------------------------------


class Launch(Struct, frozen=True):
    assignment: Assignment


class Stop(Struct, frozen=True):
    """``orphan``: the ledger has the worker as over, its node shows it alive."""

    order: StopOrder
    orphan: bool = False


class TakeInventory(Struct, frozen=True):
    """Ask a node what it runs; that raises the epoch it has seen."""

    node_id: str
    incarnation: str
    epoch: int


class Acknowledge(Struct, frozen=True):
    """The end of a worker is in the log: its launcher may forget it."""

    node_id: str
    worker_id: str


Effect: TypeAlias = Launch | Stop | TakeInventory | Acknowledge

# --- outcomes of effects and other inner messages ---------------------------------------


class Launched(Struct, frozen=True):
    """``incarnation``: that of the agent which acknowledged."""

    worker_id: str
    incarnation: str
    pid: int | None = None
    seq: int = 0


class LaunchFailed(Struct, frozen=True):
    """It does not run and never will."""

    worker_id: str
    reason: str


class LaunchUncertain(Struct, frozen=True):
    """Nobody answered in time: it may run."""

    worker_id: str
    reason: str


class StopAnswered(Struct, frozen=True):
    """``state`` and ``told`` as in ``AgentStopReply``; ``node_id``: who answered."""

    worker_id: str
    state: str
    node_id: str
    told: bool = False


class InventoryTaken(Struct, frozen=True):
    node_id: str
    inventory: InventoryReply


class InventoryFailed(Struct, frozen=True):
    node_id: str
    reason: str


class Tick(Struct, frozen=True):
    """Time has come to look for expiries and deadlines."""


class Continue(Struct, frozen=True):
    """What one decision left over, since its record would have grown too large: workers of
    expired ``nodes`` (and when these were heard last), consequences for ``jobs``, what is
    ``old`` and to be forgotten, and whatever is due at this time."""

    nodes: dict[str, datetime] = {}
    jobs: list[str] = []
    old: bool = False


class Grace(Struct, frozen=True):
    """We could not have heard the nodes: each gets a new full term."""

    reason: str


class LedRead(Struct, frozen=True):
    """The log was read and this controller leads from here on."""

    cluster: str
    scheduler: str
    version: str


class Queued(Struct, frozen=True, kw_only=True):
    """A message of the queue, to be taken if it is the one after ``previous``. ``stream`` and
    ``stored``: as in ``QueueTaken``; ``verb``: the last token of its subject; ``body``: its
    command, with an id. ``code`` and ``reason``: why it can't be taken, where it can't."""

    stream: str
    sequence: int
    previous: int
    verb: str
    stored: str = ""
    body: Raw = Raw(b"{}")
    code: str = ""
    reason: str = ""


class QueueMoved(Struct, frozen=True):
    """The queue is done up to ``sequence``."""

    sequence: int


Outcome: TypeAlias = (
    Launched | LaunchFailed | LaunchUncertain | StopAnswered | InventoryTaken | InventoryFailed
)
Query: TypeAlias = (
    QueryWorkers
    | QueryJobs
    | QueryNodes
    | QueryJob
    | QueryNode
    | QueryWorker
    | QueryLeader
    | QueryShortage
)
NodeTraffic: TypeAlias = RegisterNodeReq | HeartbeatNodeReq | WorkerFinishedReq
Inbound: TypeAlias = (
    Command
    | Query
    | NodeTraffic
    | Outcome
    | WorkerSeen
    | HostSeen
    | Tick
    | Continue
    | Grace
    | LedRead
    | Queued
)
Reply: TypeAlias = (
    StartReply
    | StopReply
    | NodeReply
    | DrainReply
    | ConfirmDeadReply
    | WorkersReply
    | JobsReply
    | NodesReply
    | JobReply
    | NodeDetailReply
    | WorkerReply
    | LeaderReply
    | ShortageReply
    | RegisterReply
    | HeartbeatReply
    | FinishedReply
    | QueueMoved
    | RebuildReply
)
