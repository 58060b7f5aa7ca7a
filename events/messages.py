"""The commands of the wire and their replies, and what all messages of the wire share.

What lives here: one struct per message, plain JSON, unknown fields ignored on read. What
may not: queries (``events.queries``), node traffic (``events.traffic``), the facts of the
event log (``events.facts``) and rules that look at more than one field (``events.codec``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

from events.ids import (
    DEFAULT_DRAIN_S,
    DEFAULT_GRACE_S,
    DEFAULT_WAIT_S,
    MAX_INT,
    Id,
    RunNumber,
    SlotCount,
    WaitSeconds,
)
from events.policies import OnDrain, OnEnd, RestartOptions
from events.states import NodeState, RunState

Counter = Annotated[int, Meta(ge=0, le=MAX_INT)]
PageLimit = Annotated[int, Meta(ge=1, le=5_000)]
Priority = Annotated[int, Meta(ge=-1_000, le=1_000)]
Moment = Annotated[datetime, Meta(tz=True)]
"""Of RFC 3339, with its zone."""


class Message(Struct, kw_only=True, frozen=True):
    """Base of every wire message."""


class PodResources(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Kubernetes quantities by the resource's name; numbers are taken as they are written."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class KubernetesOptions(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a job may change of its workers' pods, as far as the operator allows.

    Laid over the controller's configuration: maps merge, lists merge by name, null deletes.
    ``pod_template`` is laid on last. Other backends ignore all of it.
    """

    image: Annotated[str, Meta(min_length=1)] | None = None
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
