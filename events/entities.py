"""What the ledger remembers: nodes, workers, runs, jobs, commands, leaderships.

What lives here: the mutable structs that the fold fills and their plain properties. What
may not: how facts change them (``events.ledger``).
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Raw, Struct, field

from events.messages import SchedulerConfig
from events.policies import PLAIN, Policy
from events.states import NODE_EXPIRED, RUN_ENDED, NodeState, RunState, WorkerState


class DrainedRun(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A run that left a node because that is drained: it ``moved``, or was stopped;
    ``workers``: those it had there."""

    job_id: str
    run_id: int
    moved: bool
    workers: list[str]


class Drain(Struct, kw_only=True, omit_defaults=True):
    """A node is being emptied: by which command, until when, and what has left so far."""

    command_id: str
    deadline: datetime
    force: bool = False
    runs: list[DrainedRun] = field(default_factory=list)


class Node(Struct, kw_only=True, omit_defaults=True, gc=False):
    """A machine with task slots. ``cordon``: ready, cordoned or draining, also while it
    is expired. ``past``: incarnations that were superseded, newest last. While it is expired:
    ``last_seen``, the latest moment at which anybody can have heard it (a log that lost its end
    knows less than an earlier leader did, so that is at least the start of this one), and
    whether a person said that it is ``dead``."""

    node_id: str
    incarnation: str
    task_slots: int
    state: NodeState
    since: datetime
    machine_id: str = ""
    addr: str = ""
    labels: dict[str, str] = {}
    version: str = ""
    watched: bool = True
    cordon: NodeState = NodeState.READY
    past: list[str] = []
    last_seen: datetime | None = None
    dead: bool = False
    drain: Drain | None = None

    @property
    def expired(self) -> bool:
        return self.state is NODE_EXPIRED


class Worker(Struct, kw_only=True, omit_defaults=True, gc=False):
    """One process, pod or task. ``gone``: its end is in the log; until then it is live
    and holds its slots. ``epoch`` and ``position`` are those of its decision; ``unwanted``:
    it was decided to stop it; ``acked``: the epoch under which its launch was heard of;
    ``host``: the machine, where that is not the node."""

    worker_id: str
    job_id: str
    run_id: int
    node_id: str
    incarnation: str
    slots: int
    state: WorkerState
    since: datetime
    epoch: int
    position: int
    launched: bool = False
    acked: int = 0
    unwanted: bool = False
    gone: bool = False
    force: bool = False
    grace_s: float = 0.0
    pid: int | None = None
    seq: int = 0
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    host: str = ""

    @property
    def serves(self) -> bool:
        """Whether it counts for its run: nobody stopped it, and it ran or still may."""
        return not self.unwanted and (self.launched or not self.gone)


class Run(Struct, kw_only=True, omit_defaults=True, gc=False):
    """One attempt at a job. ``failures``: why launches failed, by node. ``rollback``: it
    is being stopped because its start can't be completed. ``position``: of the record that
    created it; ``missing``: slots that it lacked when it began to wait; ``not_before``: when
    it may be placed. ``restart_of``: the run that it follows by itself, as the ``tries``-th
    restart in a row (0: it moved). ``restart``, ``next_tries``: whether, and as what, another
    one follows when it is stopped. ``adopted``: what it was started with is not known."""

    job_id: str
    run_id: int
    command_id: str
    state: RunState
    since: datetime
    slots: int
    name: str
    hash: str
    deadline: datetime
    program: Raw = Raw(b"{}")
    wasm_path: str = ""
    env_vars: dict[str, str] = {}
    scheduler_config: SchedulerConfig = SchedulerConfig()
    position: int = 0
    priority: int = 0
    not_after: datetime | None = None
    policy: Policy = PLAIN
    restart_of: int | None = None
    tries: int = 0
    not_before: datetime | None = None
    missing: int = 0
    attempt: int = 0
    workers: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    adopted: bool = False
    rollback: bool = False
    restart: bool = False
    next_tries: int = 0
    reason: str = ""

    @property
    def moves(self) -> bool:
        """Whether it is stopped in order to go on elsewhere."""
        return self.restart and not self.next_tries

    @property
    def ended(self) -> bool:
        return self.state in RUN_ENDED


class Job(Struct, kw_only=True, omit_defaults=True, gc=False):
    """The runs of a job that are remembered, oldest first; run_ids only grow. ``restarts``:
    when it was restarted since somebody started it, as many times as its limit counts."""

    job_id: str
    name: str
    runs: list[Run] = field(default_factory=list)
    restarts: list[datetime] = field(default_factory=list)

    @property
    def current(self) -> Run:
        return self.runs[-1]

    def run(self, run_id: int) -> Run:
        """Raises KeyError for a run that is not remembered."""
        for run in reversed(self.runs):
            if run.run_id == run_id:
                return run
        raise KeyError(run_id)


class CommandEntry(Struct, kw_only=True, omit_defaults=True, gc=False):
    """A command that was taken, and its outcome once there is one: ``reply`` as JSON."""

    command_id: str
    kind: str
    digest: str
    taken_at: datetime
    job_id: str = ""
    run_id: int | None = None
    node_id: str = ""
    workers: list[str] = []
    deadline: datetime | None = None
    done: bool = False
    ok: bool = False
    reply: Raw = Raw(b"null")


class Orphan(Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """A worker that a node shows and the log can't confirm."""

    node_id: str
    incarnation: str = ""
    job_id: str = ""
    run_id: int = 0
    slots: int = 0
    pid: int | None = None


class Leadership(Struct, kw_only=True, frozen=True, gc=False):
    """An epoch and the position of its first record; it wrote up to the next one's."""

    epoch: int
    start: int


class QueueCursor(Struct, kw_only=True, frozen=True, gc=False):
    """Up to which message the queue is done. ``stream`` and ``stored``: as in ``queue_taken``."""

    stream: str
    sequence: int
    stored: str = ""


class LedgerState(Struct, kw_only=True, omit_defaults=True):
    """Everything that a snapshot holds."""

    position: int = 0
    at: datetime | None = None
    epoch: int = 0
    cluster: str = ""
    scheduler: str = ""
    leaderships: list[Leadership] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    highest_run: dict[str, int] = field(default_factory=dict)
    commands: dict[str, CommandEntry] = field(default_factory=dict)
    queue: QueueCursor | None = None
    definitions: dict[str, int] = field(default_factory=dict)
    """Ended jobs whose last run still has its program and environment, in the order of their
    ends: job_id to the size in bytes."""
    orphans: dict[str, Orphan] = field(default_factory=dict)
    """Workers seen on a node that the log can't confirm, by their ids."""
