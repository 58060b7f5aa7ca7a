"""Decisions: a message, the ledger, the pulse and a time in; facts, effects, an answer out.

What lives here: the table from message to rule. What may not: I/O, clocks, randomness;
same input, same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from events.errors import SlotbusError
from events.ledger import Ledger
from events.messages import (
    ConfirmDeadReq,
    CordonReq,
    DrainReq,
    RebuildReq,
    StartPipelineReq,
    StopWorkersReq,
    UncordonReq,
)
from events.pulse import Pulse
from events.queries import (
    QueryJob,
    QueryJobs,
    QueryLeader,
    QueryNode,
    QueryNodes,
    QueryShortage,
    QueryWorker,
    QueryWorkers,
)
from events.traffic import HeartbeatNodeReq, RegisterNodeReq, WorkerFinishedReq
from schedulers.decide import (
    commands,
    draining,
    nodes,
    outcomes,
    proofs,
    queries,
    queued,
    waiting,
)
from schedulers.decide.draft import Draft, Rules
from schedulers.decide.messages import (
    Continue,
    Grace,
    Inbound,
    InventoryFailed,
    InventoryTaken,
    Launched,
    LaunchFailed,
    LaunchUncertain,
    LedRead,
    Queued,
    StopAnswered,
    Tick,
)
from schedulers.decide.nodes import only_beats
from schedulers.decide.settle import settle
from schedulers.decide.words import cause_of
from schedulers.launcher import HostSeen, WorkerSeen

__all__ = ["Draft", "Rules", "decide", "next_due", "only_beats"]


def _tick(draft: Draft, message: Tick) -> None:
    proofs.leases(draft)
    outcomes.overdue(draft)


def _continue(draft: Draft, message: Continue) -> None:
    nodes.lose(draft, message.nodes)
    proofs.leases(draft)
    for job_id in message.jobs:
        settle(draft, job_id)
    if message.old:
        outcomes.forget(draft)


def _grace(draft: Draft, message: Grace) -> None:
    draft.pulse.grace(draft.now)


_RULES: Final[dict[type, Callable[[Draft, Any], None]]] = {
    StartPipelineReq: commands.command,
    StopWorkersReq: commands.command,
    CordonReq: commands.command,
    UncordonReq: commands.command,
    DrainReq: commands.command,
    ConfirmDeadReq: commands.command,
    RebuildReq: commands.command,
    QueryWorkers: queries.workers,
    QueryJobs: queries.jobs,
    QueryNodes: queries.nodes,
    QueryJob: queries.job,
    QueryNode: queries.node,
    QueryWorker: queries.worker,
    QueryLeader: queries.leader,
    QueryShortage: waiting.shortage,
    RegisterNodeReq: nodes.register,
    HeartbeatNodeReq: nodes.heartbeat,
    WorkerFinishedReq: nodes.finished,
    WorkerSeen: nodes.seen,
    HostSeen: nodes.hosted,
    Launched: outcomes.launched,
    LaunchFailed: outcomes.launch_failed,
    LaunchUncertain: outcomes.launch_uncertain,
    StopAnswered: outcomes.stop_answered,
    InventoryTaken: outcomes.inventory_taken,
    InventoryFailed: outcomes.inventory_failed,
    LedRead: nodes.led,
    Queued: queued.queued,
    Tick: _tick,
    Continue: _continue,
    Grace: _grace,
}


_OPENING: Final = (Tick, Continue)
"""What may let a run be placed, or leave a node, without a fact that says so."""


def decide(
    ledger: Ledger,
    pulse: Pulse,
    rules: Rules,
    message: Inbound,
    *,
    now: datetime,
    epoch: int,
    token: str,
    check: Callable[[StartPipelineReq], None] | None = None,
) -> Draft:
    """Decides what a message received at ``now`` leads to, and folds it at once.

    ``token`` makes ids that must be fresh (1 to 100 characters of an id). Nodes that are
    expired by ``now`` are declared so first: as many as a record holds, so ask ``silence``
    before. A refusal is the draft's answer. ``check``: what a backend has to say on a start
    that is new; pure, raises Invalid. The draft's ``rest``, if there is one, is decided next.
    """
    command_id = getattr(message, "command_id", "") or f"c-{token}"
    cause = cause_of(message, command_id if hasattr(message, "command_id") else "")
    draft = Draft(ledger, pulse, rules, now=now, epoch=epoch, token=token, cause=cause)
    draft.check = check or draft.check
    if not isinstance(message, Grace | LedRead):
        nodes.expire(draft)
    try:
        _RULES[type(message)](draft, message)
    except SlotbusError as error:
        draft.answer = error
    if ledger.waiting and (draft.events or isinstance(message, _OPENING)):
        waiting.offer(draft)
    if ledger.draining and (draft.events or isinstance(message, _OPENING)):
        draining.advance(draft, look=isinstance(message, _OPENING))
    draft.finish()
    return draft


def next_due(ledger: Ledger, pulse: Pulse) -> datetime | None:
    """When time itself will have something to decide, at the earliest: just after a
    node's expiry, at a deadline, at the end of a lease, or when a restart may be placed."""
    times = [c.deadline for c in ledger.pending.values() if c.deadline is not None]
    times += [ledger.jobs[job_id].run(run_id).deadline for job_id, run_id in ledger.starting]
    if ledger.leases:
        times.append(ledger.leases[0][0])
    times += [time for time in (pulse.due, waiting.next_time(ledger)) if time is not None]
    return min(times, default=None)
