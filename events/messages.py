"""The messages of the wire: what clients, the leader and the agents say to each other.

What lives here: one struct per message, plain JSON, unknown fields ignored on read. What
may not: the facts of the event log (``events.facts``) and rules that look at more than
one field (``events.codec``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Raw, Struct, field

from events.ids import (
    DEFAULT_DRAIN_S,
    DEFAULT_EXPIRY_S,
    DEFAULT_GRACE_S,
    DEFAULT_HEARTBEAT_S,
    DEFAULT_WAIT_S,
    MAX_INT,
    Capacity,
    Id,
    RunNumber,
    SlotCount,
    WaitSeconds,
)
from events.policies import OnDrain, OnEnd, Policy, RestartOptions
from events.states import NodeState, RunState, WorkerState

Counter = Annotated[int, Meta(ge=0, le=MAX_INT)]
PageLimit = Annotated[int, Meta(ge=1, le=5_000)]
Priority = Annotated[int, Meta(ge=-1_000, le=1_000)]
Moment = Annotated[datetime, Meta(tz=True)]
"""Of RFC 3339, with its zone."""


class Message(Struct, kw_only=True, frozen=True):
    """Base of every wire message."""


# --- commands ---------------------------------------------------------------------------


class PodResources(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Kubernetes quantities by the resource's name; numbers are taken as they are written."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class KubernetesOptions(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a job may change of its workers' pods, as far as the operator allows.

    Laid over the controller's configuration: maps merge, lists merge by name, null deletes.
    ``pod_template`` is laid on last. Other backends ignore all of it.
    """

    image: str = ""
    resources: PodResources = PodResources()
    labels: dict[str, str | None] = {}
    annotations: dict[str, str | None] = {}
    node_selector: dict[str, str | None] = {}
    tolerations: list[dict[str, object]] = []
    pod_template: dict[str, object] = {}


class SchedulerConfig(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How and where a job's workers run.

    ``command``: what a worker executes, a list or one string split like a shell's words
    (no shell), if the operator allows jobs to bring one. ``selector``: labels a node must
    have, all of them. ``spread``: ``pack`` fills the node with the most free slots first,
    ``even`` hands out slots one by one to the node with the most free ones.
    ``stop_after_s``: seconds without a controller after which a worker is stopped by its
    supervisor (None: never). ``kubernetes``: how its pods differ from the configured ones.
    """

    command: str | list[str] | None = None
    selector: dict[str, str] = {}
    spread: Literal["pack", "even"] = "pack"
    stop_after_s: WaitSeconds | None = None
    kubernetes: KubernetesOptions = KubernetesOptions()


class StartPipelineReq(Message, kw_only=True, frozen=True):
    """Start a run of a job: ``slots`` units of parallelism, all or nothing.

    ``program`` is any JSON value, handed to the workers as it is. An empty ``hash``
    becomes the hex SHA-256 of the program's JSON with sorted keys; a missing ``run_id``
    the job's next. ``wait_s`` in seconds: how long the reply may wait for the launch, 0
    answers on acceptance. The field names are Arroyo's.

    ``on_shortage``: what happens where slots are missing: ``fail`` refuses the start,
    ``wait`` keeps it until they come (None: as the controller is configured). ``priority``:
    of two starts that wait the higher one is first, and what waits goes before what comes.
    ``not_after``: a start that has not been placed by then is given up.

    ``on_failure``, ``on_lost``: what happens where a worker ends with an exit code that is
    not 0 or by a signal, or is gone with its node: ``report`` lets the others go on,
    ``restart`` stops the whole run and begins another one, as ``restart`` says. ``on_drain``:
    whether the run moves when a node is drained, or stops. None: as configured.
    """

    job_id: Id
    slots: SlotCount
    name: str = ""
    program: Any = field(default_factory=dict)
    wasm_path: str = ""
    hash: str = ""
    run_id: RunNumber | None = None
    env_vars: dict[str, str] = {}
    scheduler_config: SchedulerConfig = SchedulerConfig()
    on_shortage: Literal["fail", "wait"] | None = None
    priority: Priority = 0
    not_after: Moment | None = None
    on_failure: OnEnd | None = None
    on_lost: OnEnd | None = None
    on_drain: OnDrain | None = None
    restart: RestartOptions = RestartOptions()
    command_id: Id | None = None
    wait_s: WaitSeconds = DEFAULT_WAIT_S


class StopWorkersReq(Message, kw_only=True, frozen=True):
    """Stop the workers of a job: of one run, or of all. ``grace_s`` in seconds is the
    time between TERM and KILL; ``force`` kills at once. ``not_after``, as in every command:
    it is refused when it is read later than that."""

    job_id: Id
    run_id: RunNumber | None = None
    force: bool = False
    grace_s: WaitSeconds = DEFAULT_GRACE_S
    wait_s: WaitSeconds = DEFAULT_WAIT_S
    not_after: Moment | None = None
    command_id: Id | None = None


class CordonReq(Message, kw_only=True, frozen=True):
    """No new workers on this node."""

    node_id: Id
    not_after: Moment | None = None
    command_id: Id | None = None
    wait_s: WaitSeconds = DEFAULT_WAIT_S


class UncordonReq(Message, kw_only=True, frozen=True):
    """New workers are welcome on this node again."""

    node_id: Id
    not_after: Moment | None = None
    command_id: Id | None = None
    wait_s: WaitSeconds = DEFAULT_WAIT_S


class DrainReq(Message, kw_only=True, frozen=True):
    """Empty a node: no new workers, and the runs of those on it move elsewhere or stop, as
    their jobs have it. What can't leave within ``deadline_s`` seconds stays. A run moves when
    there is room for it elsewhere; with ``force`` it is stopped in any case, and waits."""

    node_id: Id
    deadline_s: WaitSeconds = DEFAULT_DRAIN_S
    force: bool = False
    not_after: Moment | None = None
    command_id: Id | None = None
    wait_s: WaitSeconds = DEFAULT_WAIT_S


class RebuildReq(Message, kw_only=True, frozen=True):
    """Take in the workers that live and that the log can't confirm, since it lost its end or
    is a new one. Nothing is stopped."""

    not_after: Moment | None = None
    command_id: Id | None = None
    wait_s: WaitSeconds = DEFAULT_WAIT_S


class ConfirmDeadReq(Message, kw_only=True, frozen=True):
    """Nothing runs any more on this node, which has expired: you have seen it. Its workers
    count as gone, so that others may take their place."""

    node_id: Id
    not_after: Moment | None = None
    command_id: Id | None = None
    wait_s: WaitSeconds = DEFAULT_WAIT_S


Command: TypeAlias = (
    StartPipelineReq
    | StopWorkersReq
    | CordonReq
    | UncordonReq
    | DrainReq
    | ConfirmDeadReq
    | RebuildReq
)

COMMANDS: Final[dict[str, type[Command]]] = {
    "start": StartPipelineReq,
    "stop": StopWorkersReq,
    "cordon": CordonReq,
    "uncordon": UncordonReq,
    "drain": DrainReq,
    "confirm_dead": ConfirmDeadReq,
    "rebuild": RebuildReq,
}
"""By the last token of the subject they are sent or queued on."""


class PlacedWorker(Message, kw_only=True, frozen=True):
    """Where a worker of a run was placed, and with how many slots."""

    worker_id: str
    node_id: str
    slots: int


class StartReply(Message, kw_only=True, frozen=True):
    """Every worker that was launched, or assigned where ``wait_s`` is 0."""

    command_id: str
    job_id: str
    run_id: int
    workers: list[PlacedWorker]
    warnings: list[str] = []


class StopReply(Message, kw_only=True, frozen=True):
    """``workers``: ids that were stopped; ``unconfirmed``: ids whose node is silent."""

    command_id: str
    job_id: str
    workers: list[str]
    unconfirmed: list[str] = []
    warnings: list[str] = []


class NodeReply(Message, kw_only=True, frozen=True):
    """The answer to cordon and uncordon."""

    command_id: str
    node_id: str
    state: NodeState
    warnings: list[str] = []


class MovedRun(Message, kw_only=True, frozen=True):
    """A run that left a drained node to go on elsewhere, as run ``to_run`` (null while its
    workers end) in ``state``."""

    job_id: str
    run_id: int
    to_run: int | None = None
    state: RunState


class RemainingWorker(Message, kw_only=True, frozen=True):
    """A worker that is still on a node that is or was to be empty, and why."""

    worker_id: str
    job_id: str
    run_id: int
    slots: int
    reason: str


class DrainReply(Message, kw_only=True, frozen=True):
    """What became of a node's workers; ``complete``: none is left. ``moved``: runs, with all
    their workers; ``stopped``: ids of workers whose runs were stopped; ``remaining``: those
    still there, ``remaining_count`` in all. Of each the first 1,000. ``reason``: why it is over
    before its time."""

    command_id: str
    node_id: str
    state: NodeState
    complete: bool
    moved: list[MovedRun] = []
    stopped: list[str] = []
    remaining: list[RemainingWorker] = []
    remaining_count: int = 0
    reason: str = ""
    warnings: list[str] = []


class ConfirmDeadReply(Message, kw_only=True, frozen=True):
    """``workers``: ids of those that count as gone now, the first 1,000 of ``count``."""

    command_id: str
    node_id: str
    count: int
    workers: list[str]
    warnings: list[str] = []


class RebuildReply(Message, kw_only=True, frozen=True):
    """``workers``: ids of those taken in; ``left``: why not, by the ids of others; ``more``:
    how many are left for another rebuild; ``unheard``: nodes that have not said under this
    leader what they run; ``nodes``: how many are known at all, none right after a loss."""

    command_id: str
    workers: list[str]
    left: dict[str, str] = {}
    more: int = 0
    unheard: list[str] = []
    nodes: int = 0
    warnings: list[str] = []


# --- queries ----------------------------------------------------------------------------


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


# --- node traffic -----------------------------------------------------------------------


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


# --- leader to agent --------------------------------------------------------------------


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
    never ran here and, since a tombstone now stands for it, never will."""

    state: Literal["stopping", "ended", "unknown"]
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
