"""The facts of the event log: what happened, in the past tense, and the record around.

What lives here: one struct per fact, tagged by ``type``, and ``Record``. A fact holds all
that folding it needs, so that the ledger never looks at a clock or a configuration. What
may not: folding (``events.ledger``) and requests (``events.messages``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, TypeAlias

from msgspec import Raw, Struct

from events.messages import SchedulerConfig
from events.policies import PLAIN, Policy
from events.states import RunState, WorkerState

SCHEMA_VERSION: Final = 1


class Fact(Struct, kw_only=True, frozen=True, tag_field="type", omit_defaults=True, gc=False):
    """Base of every fact."""


class PassedOver(Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """Why nodes were not taken: ``nodes`` names the first of ``count``."""

    reason: str
    count: int
    nodes: list[str]


class LeaderStarted(Fact, kw_only=True, frozen=True, tag="leader_started", omit_defaults=True):
    """A controller took the lead: everything with a lower epoch is over."""

    epoch: int
    cluster: str
    scheduler: str
    version: str = ""


class CommandTaken(Fact, kw_only=True, frozen=True, tag="command_taken", omit_defaults=True):
    """A valid command was accepted. ``digest``: hex SHA-256 of its body, so that another
    body under the same id is noticed. ``deadline``: when its outcome is due at the latest."""

    command_id: str
    kind: str
    digest: str
    job_id: str = ""
    run_id: int | None = None
    node_id: str = ""
    workers: list[str] = []
    deadline: datetime | None = None


class CommandDone(Fact, kw_only=True, frozen=True, tag="command_done", omit_defaults=True):
    """The one outcome of a command: ``reply`` is the body sent, an error's too.
    ``passed_over``: why no node was taken, where a start was refused for lack of room."""

    command_id: str
    ok: bool
    reply: Any
    passed_over: list[PassedOver] = []


class CommandForgotten(
    Fact, kw_only=True, frozen=True, tag="command_forgotten", omit_defaults=True
):
    """Old commands left the ledger; under the same id they would be new ones."""

    command_ids: list[str]


class QueueTaken(Fact, kw_only=True, frozen=True, tag="queue_taken", omit_defaults=True):
    """A message of the queue was taken as this command. ``stream``: when the stream was
    created, which tells it from another of the same name, and how often it had lost its end
    (``+1``); ``sequence`` of the message; ``stored``: when, in nanoseconds, which tells it from
    another one in the same place."""

    stream: str
    sequence: int
    command_id: str
    stored: str = ""


class QueueSetAside(Fact, kw_only=True, frozen=True, tag="queue_set_aside", omit_defaults=True):
    """A message of the queue is no command that can be taken: it was put aside with the
    reason, and those behind it go on. ``verb``: the last token of its subject; the rest as in
    ``queue_taken``."""

    stream: str
    sequence: int
    verb: str
    code: str
    reason: str
    stored: str = ""


class NodeRegistered(Fact, kw_only=True, frozen=True, tag="node_registered", omit_defaults=True):
    """A node offers slots; a new incarnation supersedes the node's older one. ``watched``:
    it must send heartbeats or expire."""

    node_id: str
    incarnation: str
    task_slots: int
    machine_id: str = ""
    addr: str = ""
    labels: dict[str, str] = {}
    version: str = ""
    watched: bool = True


class NodeExpired(Fact, kw_only=True, frozen=True, tag="node_expired", omit_defaults=True):
    """A node was silent for longer than the expiry."""

    node_id: str
    last_seen: datetime


class NodeReturned(Fact, kw_only=True, frozen=True, tag="node_returned", omit_defaults=True):
    """An expired node was heard again, with the incarnation that expired or a new one."""

    node_id: str


class NodeCordoned(Fact, kw_only=True, frozen=True, tag="node_cordoned", omit_defaults=True):
    """No new workers on this node from here on."""

    node_id: str


class NodeDraining(Fact, kw_only=True, frozen=True, tag="node_draining", omit_defaults=True):
    """No new workers on this node, and those on it move away or stop, as their jobs have it,
    by ``deadline`` at the latest. ``force``: whether there is room elsewhere or not."""

    node_id: str
    command_id: str
    deadline: datetime
    force: bool = False


class NodeConfirmedDead(
    Fact, kw_only=True, frozen=True, tag="node_confirmed_dead", omit_defaults=True
):
    """A person said that nothing runs any more on a node that had expired: its workers are
    gone. Should it return, those that live there after all are stopped."""

    node_id: str
    command_id: str


class NodeUncordoned(Fact, kw_only=True, frozen=True, tag="node_uncordoned", omit_defaults=True):
    """New workers are welcome on this node again."""

    node_id: str


class NodeForgotten(Fact, kw_only=True, frozen=True, tag="node_forgotten", omit_defaults=True):
    """A node that was silent for long, and holds no workers, left the ledger."""

    node_id: str


class RunCreated(Fact, kw_only=True, frozen=True, tag="run_created", omit_defaults=True):
    """A run was accepted; ``deadline``: when its workers must be launched at the latest, if
    it is placed at once. ``not_after``: when one that waits for slots is given up.
    ``policy``: all of it, the configured defaults included. ``restart_of``: the run that it
    follows without a command; ``tries``: the how manieth restart in a row it is, 0 for a run
    that was moved."""

    job_id: str
    run_id: int
    command_id: str
    slots: int
    name: str
    hash: str
    deadline: datetime
    program: Raw = Raw(b"{}")
    wasm_path: str = ""
    env_vars: dict[str, str] = {}
    scheduler_config: SchedulerConfig = SchedulerConfig()
    priority: int = 0
    not_after: datetime | None = None
    policy: Policy = PLAIN
    restart_of: int | None = None
    tries: int = 0


class RunWaiting(Fact, kw_only=True, frozen=True, tag="run_waiting", omit_defaults=True):
    """There is no room for a run yet: ``missing`` slots, or what ``reason`` says;
    ``passed_over`` tells why no node was taken. It is placed when there is, and not before
    ``not_before``."""

    job_id: str
    run_id: int
    missing: int
    reason: str
    passed_over: list[PassedOver] = []
    not_before: datetime | None = None


class RunPlaced(Fact, kw_only=True, frozen=True, tag="run_placed", omit_defaults=True):
    """Where workers go was decided; the ``worker_assigned`` that follow say where, and
    ``passed_over`` why not elsewhere. ``attempt`` grows when a launch is tried again.
    ``deadline`` and ``due``, where the run had waited: when its workers must be launched,
    and its command has its outcome, at the latest."""

    job_id: str
    run_id: int
    attempt: int
    deadline: datetime | None = None
    due: datetime | None = None
    passed_over: list[PassedOver] = []


class WorkerAssigned(Fact, kw_only=True, frozen=True, tag="worker_assigned", omit_defaults=True):
    """A worker was decided on: where it runs, for which run, with how many slots."""

    worker_id: str
    job_id: str
    run_id: int
    node_id: str
    incarnation: str
    slots: int


class WorkerLaunched(Fact, kw_only=True, frozen=True, tag="worker_launched", omit_defaults=True):
    """Its process runs. ``seq``: only inventories of this ``incarnation`` with a higher
    one, or of a later incarnation, say more."""

    worker_id: str
    incarnation: str
    pid: int | None = None
    seq: int = 0


class WorkerHosted(Fact, kw_only=True, frozen=True, tag="worker_hosted", omit_defaults=True):
    """On which machine a worker runs, where that is not for slotbus to choose: a pod's node."""

    worker_id: str
    host: str


class WorkerStopping(Fact, kw_only=True, frozen=True, tag="worker_stopping", omit_defaults=True):
    """It was decided to stop this worker. ``grace_s`` in seconds."""

    worker_id: str
    reason: str
    force: bool = False
    grace_s: float = 0.0


class WorkerLost(Fact, kw_only=True, frozen=True, tag="worker_lost", omit_defaults=True):
    """Its node is silent: it may live on, keeps its slots, and may return."""

    worker_id: str
    reason: str


class WorkerReturned(Fact, kw_only=True, frozen=True, tag="worker_returned", omit_defaults=True):
    """A lost worker was seen alive, and its run still wants it."""

    worker_id: str
    incarnation: str
    pid: int | None = None
    seq: int = 0


class WorkerEnded(Fact, kw_only=True, frozen=True, tag="worker_ended", omit_defaults=True):
    """It is provably gone. ``launched`` false: it never ran. ``state``: finished (exit
    code 0, or stopped as asked), failed, or lost (gone, and nobody knows how)."""

    worker_id: str
    state: WorkerState
    launched: bool = True
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""


class WorkerOrphaned(Fact, kw_only=True, frozen=True, tag="worker_orphaned", omit_defaults=True):
    """A node shows a worker that should not be. ``stopped``: the log confirms that it was
    ours and is over, so it is stopped; else it is left alone and a person must look: all that
    its node says of it is kept here, so that it can be adopted."""

    worker_id: str
    node_id: str
    reason: str
    stopped: bool
    incarnation: str = ""
    job_id: str = ""
    run_id: int = 0
    slots: int = 0
    pid: int | None = None


class OrphansGone(Fact, kw_only=True, frozen=True, tag="orphans_gone", omit_defaults=True):
    """Workers of a node that the log could not confirm are not there any more."""

    node_id: str
    worker_ids: list[str]


class RunAdopted(Fact, kw_only=True, frozen=True, tag="run_adopted", omit_defaults=True):
    """A run that the log has lost is taken in, since workers of it live: what it was started
    with is not known any more. ``slots``: those of its workers that were found."""

    job_id: str
    run_id: int
    command_id: str
    slots: int


class WorkerAdopted(Fact, kw_only=True, frozen=True, tag="worker_adopted", omit_defaults=True):
    """A worker that lives on a node, and that the log has lost, is taken in again."""

    worker_id: str
    job_id: str
    run_id: int
    node_id: str
    incarnation: str
    slots: int
    pid: int | None = None


class RunRunning(Fact, kw_only=True, frozen=True, tag="run_running", omit_defaults=True):
    """All workers of the run were launched."""

    job_id: str
    run_id: int


class RunStopping(Fact, kw_only=True, frozen=True, tag="run_stopping", omit_defaults=True):
    """``failed``: a worker failed, or the start can't be completed; else somebody asked to
    stop it. ``restart``: when all its workers are gone another run follows, as the
    ``tries``-th restart in a row, or, where that is 0, because it moves. ``drain``: the
    command that it leaves a node for."""

    job_id: str
    run_id: int
    reason: str
    failed: bool = False
    restart: bool = False
    tries: int = 0
    drain: str = ""


class RunEnded(Fact, kw_only=True, frozen=True, tag="run_ended", omit_defaults=True):
    """A run is over: finished, failed or stopped."""

    job_id: str
    run_id: int
    state: RunState
    reason: str = ""


class JobForgotten(Fact, kw_only=True, frozen=True, tag="job_forgotten", omit_defaults=True):
    """A finished job left the ledger; the highest run_id of it stays."""

    job_id: str


class RunForgotten(Fact, kw_only=True, frozen=True, tag="run_forgotten", omit_defaults=True):
    """An ended run that a later one replaced left the ledger, with its workers."""

    job_id: str
    run_id: int


AnyFact: TypeAlias = (
    LeaderStarted
    | CommandTaken
    | CommandDone
    | CommandForgotten
    | QueueTaken
    | QueueSetAside
    | NodeRegistered
    | NodeExpired
    | NodeReturned
    | NodeCordoned
    | NodeDraining
    | NodeConfirmedDead
    | NodeUncordoned
    | NodeForgotten
    | RunCreated
    | RunWaiting
    | RunPlaced
    | WorkerAssigned
    | WorkerLaunched
    | WorkerHosted
    | WorkerStopping
    | WorkerLost
    | WorkerReturned
    | WorkerEnded
    | WorkerOrphaned
    | OrphansGone
    | RunAdopted
    | WorkerAdopted
    | RunRunning
    | RunStopping
    | RunEnded
    | RunForgotten
    | JobForgotten
)


class Record(Struct, kw_only=True, frozen=True, gc=False):
    """One entry of the event log: what one message led to.

    ``at``: controller time; ``cause``: the command or message behind it, as one word and,
    where there is one, its id (``start c-1``, ``heartbeat n1``, ``timer``).
    """

    v: int = SCHEMA_VERSION
    at: datetime
    epoch: int
    cause: str
    events: list[AnyFact]


class PublishedRecord(Record, kw_only=True, frozen=True):
    """A record as the event subjects carry it: on each subject the facts that concern it.
    ``position``: where in the log it stands. Where other subjects have more of it, ``part``
    has the places (from 0) of these facts in the record, and ``of`` how many it has in all;
    else both are left out."""

    position: int
    of: int | None = None
    part: list[int] | None = None
