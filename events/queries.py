"""The questions of the wire and their answers: what is known of jobs, workers, nodes, leader.

What lives here: one struct per query, row and reply. What may not: commands
(``events.messages``), node traffic (``events.traffic``) and the making of answers
(``schedulers.decide.queries``).
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Raw

from events.ids import (
    Id,
    RunNumber,
)
from events.messages import DrainReply, Message, PageLimit, SchedulerConfig
from events.policies import Policy
from events.states import NodeState, RunState, WorkerState


class QueryWorkers(Message, kw_only=True, frozen=True):
    """``all`` adds the workers that have ended and are still remembered."""

    job_id: Id | None = None
    run_id: RunNumber | None = None
    node_id: Id | None = None
    all: bool = False
    limit: PageLimit = 1_000
    cursor: str = ""


class QueryJobs(Message, kw_only=True, frozen=True):
    """Jobs with their newest run: one, or all."""

    job_id: Id | None = None
    limit: PageLimit = 1_000
    cursor: str = ""


class QueryNodes(Message, kw_only=True, frozen=True):
    """Nodes with their slots: one, or all."""

    node_id: Id | None = None
    limit: PageLimit = 1_000
    cursor: str = ""


class QueryJob(Message, kw_only=True, frozen=True):
    """Everything about one run of a job: the newest, unless ``run_id`` says otherwise."""

    job_id: Id
    run_id: RunNumber | None = None


class QueryNode(Message, kw_only=True, frozen=True):
    """Everything about one node but its workers, which ``QueryWorkers`` lists."""

    node_id: Id


class QueryWorker(Message, kw_only=True, frozen=True):
    """Everything about one worker."""

    worker_id: Id


class QueryLeader(Message, kw_only=True, frozen=True):
    """Who leads, and what its clock says."""


class QueryShortage(Message, kw_only=True, frozen=True):
    """The starts that wait for slots, in the order in which they get them."""

    limit: PageLimit = 1_000
    cursor: str = ""


class WorkerRow(Message, kw_only=True, frozen=True):
    """A worker; ``since``: when it came into its state. ``pid`` is null where it has none;
    ``host`` is the machine where that is not the node's: the node that a pod is on."""

    worker_id: str
    job_id: str
    run_id: int
    node_id: str
    slots: int
    state: WorkerState
    since: datetime
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    host: str = ""


class JobRow(Message, kw_only=True, frozen=True):
    """``workers`` counts those alive; ``slots`` is what the run asked for. Of one that waits:
    ``missing`` slots when it began to, and ``not_before``, where it is about to restart."""

    job_id: str
    name: str
    run_id: int
    state: RunState
    slots: int
    workers: int
    since: datetime
    reason: str = ""
    missing: int = 0
    not_before: datetime | None = None


class NodeRow(Message, kw_only=True, frozen=True):
    """``scheduled_slots``: held by its workers; ``heartbeat_age_s`` in seconds, null for a
    node that needs no heartbeat."""

    node_id: str
    addr: str
    state: NodeState
    registered_slots: int
    free_slots: int
    scheduled_slots: int
    heartbeat_age_s: float | None
    labels: dict[str, str]
    version: str = ""


class WorkersReply(Message, kw_only=True, frozen=True):
    """``next`` is the ``cursor`` of the following page, empty on the last one."""

    workers: list[WorkerRow]
    next: str = ""


class JobsReply(Message, kw_only=True, frozen=True):
    """``next`` as in WorkersReply."""

    jobs: list[JobRow]
    next: str = ""


class NodesReply(Message, kw_only=True, frozen=True):
    """``next`` as in WorkersReply."""

    nodes: list[NodeRow]
    next: str = ""


class WaitingRow(Message, kw_only=True, frozen=True):
    """A start that waits: for ``missing`` of its ``slots`` on nodes that ``selector`` allows,
    or, where ``missing`` is 0, for what ``reason`` says. ``since``: when it began to;
    ``not_before``: a restart whose time has not come."""

    job_id: str
    run_id: int
    slots: int
    missing: int
    priority: int
    since: datetime
    not_before: datetime | None = None
    not_after: datetime | None = None
    selector: dict[str, str] = {}
    reason: str = ""


class ShortageReply(Message, kw_only=True, frozen=True):
    """``missing``: slots that all starts that wait lack, together: so many more would let
    every one of them begin. ``next`` as in WorkersReply."""

    missing: int
    waiting: list[WaitingRow]
    next: str = ""


class RunRow(Message, kw_only=True, frozen=True):
    """A remembered run of a job."""

    run_id: int
    state: RunState
    slots: int
    workers: int
    since: datetime
    reason: str = ""


class JobReply(Message, kw_only=True, frozen=True):
    """One run of a job, and all that are remembered, oldest first.

    ``defined``: ``program`` and ``env_vars`` are what the run was started with. They are
    kept while it runs, and after its end while it is the job's newest and there is room;
    else both are empty here. ``failures``: why launches failed, by node. ``restarts``: how
    often it was restarted lately; ``restart_of``, ``tries``: which run it followed by itself,
    as the how manieth in a row. ``awaits``: workers that must be gone before the next one.
    """

    job_id: str
    name: str
    run_id: int
    state: RunState
    since: datetime
    slots: int
    workers: int
    command_id: str
    hash: str
    defined: bool
    program: Raw = Raw(b"{}")
    wasm_path: str = ""
    env_vars: dict[str, str] = {}
    scheduler_config: SchedulerConfig = SchedulerConfig()
    deadline: datetime
    attempt: int = 0
    failures: dict[str, str] = {}
    reason: str = ""
    priority: int = 0
    not_after: datetime | None = None
    not_before: datetime | None = None
    missing: int = 0
    policy: Policy = Policy()
    restarts: int = 0
    restart_of: int | None = None
    tries: int = 0
    awaits: list[str] = []
    highest_run: int
    runs: list[RunRow] = []


class NodeDetailReply(Message, kw_only=True, frozen=True):
    """``past``: incarnations that were superseded; ``orphans``: workers seen there that the
    log can't confirm; ``watched``: it must send heartbeats or expire. ``drain``: how far its
    drain has come."""

    node: NodeRow
    since: datetime
    incarnation: str
    machine_id: str = ""
    watched: bool = True
    cordon: NodeState = NodeState.READY
    past: list[str] = []
    orphans: list[str] = []
    drain: DrainReply | None = None
    drain_deadline: datetime | None = None
    dead: bool = False


class WorkerReply(Message, kw_only=True, frozen=True):
    """``epoch`` and ``position`` are those of the decision to start it; ``unwanted``: it was
    decided to stop it; ``gone``: its end is in the log; ``seq``: the agent's count when it
    was launched."""

    worker: WorkerRow
    incarnation: str
    epoch: int
    position: int
    launched: bool = False
    unwanted: bool = False
    gone: bool = False
    force: bool = False
    grace_s: float = 0.0
    seq: int = 0


class LeaderReply(Message, kw_only=True, frozen=True):
    """``position``: of the log's last record; ``now``: the leader's clock, which is the
    cluster's; ``pending``: commands without an outcome yet; ``workers``: those alive;
    ``unconfirmed``: workers seen on nodes that the log can't confirm."""

    epoch: int
    position: int
    now: datetime
    cluster: str
    scheduler: str
    nodes: int
    jobs: int
    workers: int
    pending: int
    unconfirmed: int = 0
