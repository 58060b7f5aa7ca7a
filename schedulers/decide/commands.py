"""Commands: start, stop, cordon, uncordon.

What lives here: accepting a command once per ``command_id``, its refusals, its first
consequences. What may not: what happens when workers answer (``settle``).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from events import codec
from events.entities import Node
from events.errors import (
    Invalid,
    NotEnoughSlots,
    Overloaded,
    RunActive,
    SlotbusError,
    StaleRun,
    TooLarge,
    TooLate,
    UnknownJob,
    UnknownNode,
)
from events.facts import (
    CommandTaken,
    NodeCordoned,
    NodeUncordoned,
    RunCreated,
    RunStopping,
)
from events.ids import MAX_INT, MAX_RECORD_BYTES, MAX_WORKERS_A_RUN
from events.ledger import Ledger
from events.messages import (
    COMMANDS,
    Command,
    ConfirmDeadReply,
    ConfirmDeadReq,
    CordonReq,
    DrainReply,
    DrainReq,
    NodeReply,
    RebuildReply,
    RebuildReq,
    StartPipelineReq,
    StartReply,
    StopReply,
    StopWorkersReq,
    UncordonReq,
)
from events.states import NodeState, RunState, WorkerState
from schedulers.decide import draining, proofs, waiting
from schedulers.decide.draft import Draft
from schedulers.decide.messages import Reply
from schedulers.decide.orders import refuse, signal, stop_worker, succeed
from schedulers.decide.placing import plan_for, put_workers, wish_of
from schedulers.decide.rebuilding import rebuild
from schedulers.decide.restarts import policy_of
from schedulers.decide.settle import settle, start_reply, supersede
from schedulers.decide.words import split_command
from schedulers.placement import Plan, too_many_workers

FACT_BYTES: Final = 200
"""Of a fact on one worker, without the ids of others in it."""

RUN_BYTES: Final = 20_000
"""Of all else in the record of a start: why other nodes were passed over, the command."""

KINDS: dict[type[Command], str] = {kind: verb for verb, kind in COMMANDS.items()}
_REPLIES: dict[str, type[Reply]] = {
    "start": StartReply,
    "stop": StopReply,
    "cordon": NodeReply,
    "uncordon": NodeReply,
    "drain": DrainReply,
    "confirm_dead": ConfirmDeadReply,
    "rebuild": RebuildReply,
}


def command(draft: Draft, message: Command) -> None:
    """Takes a command that is new, joins one that is known. Raises Invalid."""
    command_id = message.command_id or f"c-{draft.token}"
    digest = codec.body_digest(message)
    kind = KINDS[type(message)]
    known = draft.ledger.commands.get(command_id)
    if known is not None:
        if (known.kind, known.digest) != (kind, digest):
            raise Invalid(
                f"command_id {command_id} was used for another command", path="$.command_id"
            )
        draft.joined = command_id
        return
    late = message.not_after is not None and draft.now > message.not_after
    match message:
        case _ if late:
            _too_late(draft, message, command_id, kind, digest)
        case StartPipelineReq():
            _start(draft, message, command_id, digest)
        case StopWorkersReq():
            _stop(draft, message, command_id, digest)
        case DrainReq():
            draining.drain(draft, message, command_id, digest)
        case ConfirmDeadReq():
            proofs.confirm_dead(draft, message, command_id, digest)
        case RebuildReq():
            rebuild(draft, message, command_id, digest)
        case _:
            _cordon(draft, message, command_id, kind, digest)
    draft.joined = command_id


def _too_late(draft: Draft, message: Command, command_id: str, kind: str, digest: str) -> None:
    job_id, node_id = getattr(message, "job_id", ""), getattr(message, "node_id", "")
    draft.emit(
        CommandTaken(
            command_id=command_id, kind=kind, digest=digest, job_id=job_id, node_id=node_id
        )
    )
    refuse(draft, command_id, TooLate(f"it was to be done until {message.not_after}"))


def outcome_of(ledger: Ledger, command_id: str) -> Reply | SlotbusError | None:
    """What a command led to, or None while it is pending (or was forgotten)."""
    entry = ledger.commands.get(command_id)
    if entry is None or not entry.done:
        return None
    if entry.ok:
        return msgspec.json.decode(entry.reply, type=_REPLIES[entry.kind])
    return codec.error_from_body(bytes(entry.reply))


def accepted_reply(ledger: Ledger, command_id: str) -> Reply:
    """What is known of a command whose sender does not want to wait."""
    entry = ledger.commands[command_id]
    if entry.kind == "start":
        for run in ledger.runs_of(entry.job_id, entry.run_id):
            return start_reply(ledger, run)
    if entry.kind == "drain":
        return draining.begun(ledger, ledger.nodes[entry.node_id], command_id)
    live = {w for w in entry.workers if w in ledger.workers and not ledger.workers[w].gone}
    return StopReply(
        command_id=command_id,
        job_id=entry.job_id,
        workers=[w for w in entry.workers if w not in live],
        unconfirmed=[w for w in entry.workers if w in live],
    )


def _start(draft: Draft, request: StartPipelineReq, command_id: str, digest: str) -> None:
    rules, ledger = draft.rules, draft.ledger
    config = request.scheduler_config
    if config.command is not None and not rules.allow_job_command:
        raise Invalid(
            "jobs may not bring a command here (allow_job_command is off)",
            path="$.scheduler_config.command",
        )
    split_command(config.command)
    draft.check(request)
    highest = ledger.state.highest_run.get(request.job_id, 0)
    run_id = request.run_id or highest + 1
    if run_id > MAX_INT:
        raise Invalid("this job has used up all run ids", path="$.run_id")
    may_wait = (request.on_shortage or rules.on_shortage) == "wait"
    draft.emit(
        CommandTaken(
            command_id=command_id,
            kind="start",
            digest=digest,
            job_id=request.job_id,
            run_id=run_id,
            deadline=None if may_wait else draft.after(rules.start_s),
        )
    )
    plan = _room(draft, request, command_id, run_id, highest, may_wait)
    if plan is None:
        return
    supersede(draft, request.job_id, run_id)
    draft.emit(
        RunCreated(
            job_id=request.job_id,
            run_id=run_id,
            command_id=command_id,
            slots=request.slots,
            name=request.name or request.job_id,
            hash=request.hash or codec.content_hash(request.program),
            deadline=draft.after(rules.start_timeout_s),
            program=Raw(msgspec.json.encode(request.program)),
            wasm_path=request.wasm_path,
            env_vars=request.env_vars,
            scheduler_config=config,
            priority=request.priority,
            not_after=request.not_after,
            policy=policy_of(rules, request),
        )
    )
    run = ledger.jobs[request.job_id].run(run_id)
    if plan.missing:
        waiting.wait(draft, run, plan)
    else:
        put_workers(draft, run, plan, anew=may_wait)


def _room(
    draft: Draft,
    request: StartPipelineReq,
    command_id: str,
    run_id: int,
    highest: int,
    may_wait: bool,
) -> Plan | None:
    """The plan of a start, or None where it was refused. Slots are missing from it only
    where it ``may_wait``."""
    ledger = draft.ledger
    if run_id <= highest:
        text = f"run {run_id} of job {request.job_id} is not above the highest seen, {highest}"
        refuse(draft, command_id, StaleRun(text, job_id=request.job_id, highest_run=highest))
        return None
    for run in ledger.runs_of(request.job_id):
        live = ledger.answering(run.job_id, run.run_id)
        if run.state is RunState.WAITING:
            text = f"run {run.run_id} of job {run.job_id} waits to be placed: stop it"
            refuse(draft, command_id, RunActive(text, job_id=run.job_id, run_id=run.run_id))
            return None
        if live or run.state is RunState.STARTING:
            text = f"run {run.run_id} of job {run.job_id} has {live} live workers: stop it"
            refuse(draft, command_id, RunActive(text, job_id=run.job_id, run_id=run.run_id))
            return None
    wish = wish_of(draft.rules, request.scheduler_config, request.slots)
    plan = plan_for(draft, wish, waiting.kept_from(draft, request.priority))
    if may_wait and plan.missing and len(ledger.waiting) >= draft.rules.most_waiting:
        text = f"{len(ledger.waiting)} starts wait already"
        refuse(draft, command_id, Overloaded(text))
        return None
    if plan.missing and not may_wait:
        error = NotEnoughSlots(plan.missing, plan.free)
        refuse(draft, command_id, error, plan.passed_over)
        return None
    if too_many_workers(plan):
        text = f"{len(plan.shares)} workers, {MAX_WORKERS_A_RUN} are allowed a run"
        refuse(draft, command_id, TooLarge(text, limit=MAX_WORKERS_A_RUN, unit="workers"))
        return None
    size = _size_of(draft, request, plan)
    if size > MAX_RECORD_BYTES:
        text = (
            f"the log would need {size} bytes for this start, {MAX_RECORD_BYTES} are allowed: "
            "store the program or the environment elsewhere and pass its address"
        )
        refuse(draft, command_id, TooLarge(text, limit=MAX_RECORD_BYTES, unit="bytes"))
        return None
    return plan


def _size_of(draft: Draft, request: StartPipelineReq, plan: Plan) -> int:
    """Bytes that the record of a start has at the most."""
    nodes = draft.ledger.nodes
    new = sum(
        FACT_BYTES
        + len(request.job_id)
        + len(share.node_id)
        + len(nodes[share.node_id].incarnation)
        for share in plan.shares
    )
    superseded = draft.ledger.live_count(request.job_id) * FACT_BYTES
    return len(codec.encode(request)) + new + superseded + RUN_BYTES


def _stop(draft: Draft, request: StopWorkersReq, command_id: str, digest: str) -> None:
    ledger, job_id = draft.ledger, request.job_id
    targets = ledger.live_of(job_id, request.run_id)
    draft.emit(
        CommandTaken(
            command_id=command_id,
            kind="stop",
            digest=digest,
            job_id=job_id,
            run_id=request.run_id,
            workers=[w.worker_id for w in targets],
            deadline=draft.after(
                (0.0 if request.force else request.grace_s) + draft.rules.stop_timeout_s
            ),
        )
    )
    if job_id not in ledger.state.highest_run:
        refuse(draft, command_id, UnknownJob(f"no job {job_id} was ever started", job_id=job_id))
        return
    reason = f"stopped by {command_id}"
    for run in ledger.runs_of(job_id, request.run_id):
        goes_on = run.state in (RunState.WAITING, RunState.STARTING, RunState.RUNNING)
        if goes_on or (run.state is RunState.STOPPING and run.restart):
            draft.emit(RunStopping(job_id=job_id, run_id=run.run_id, reason=reason))
    for worker in targets:
        if worker.state is not WorkerState.STOPPING or (request.force and not worker.force):
            grace_s = request.grace_s
            stop_worker(draft, worker, reason, force=request.force, grace_s=grace_s)
        else:
            signal(draft, worker)
    settle(draft, job_id)


def _cordon(
    draft: Draft, request: CordonReq | UncordonReq, command_id: str, kind: str, digest: str
) -> None:
    node_id = request.node_id
    draft.emit(CommandTaken(command_id=command_id, kind=kind, digest=digest, node_id=node_id))
    node = draft.ledger.nodes.get(node_id)
    if node is None:
        refuse(draft, command_id, UnknownNode(f"no node {node_id} is known", node_id=node_id))
        return
    draining.cancel(draft, node, f"{kind}ed by {command_id}")
    if kind == "cordon" and node.cordon is not NodeState.CORDONED:
        draft.emit(NodeCordoned(node_id=node_id))
    if kind == "uncordon" and node.cordon is not NodeState.READY:
        draft.emit(NodeUncordoned(node_id=node_id))
    succeed(draft, command_id, _node_reply(command_id, draft.ledger.nodes[node_id]))


def _node_reply(command_id: str, node: Node) -> NodeReply:
    return NodeReply(command_id=command_id, node_id=node.node_id, state=node.state)
