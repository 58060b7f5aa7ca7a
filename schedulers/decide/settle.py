"""What follows: the consequences for runs and commands after workers changed.

What lives here: placing the workers of a run, trying again elsewhere, rolling back, and
the outcomes of start and stop. What may not: the first reading of a message.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from events.entities import CommandEntry, Node, Run, Worker
from events.errors import SlotbusError, StartFailed
from events.facts import (
    CommandDone,
    PassedOver,
    RunEnded,
    RunPlaced,
    RunRunning,
    RunStopping,
    WorkerAssigned,
    WorkerStopping,
)
from events.ids import MAX_WORKERS_A_RUN
from events.ledger import Ledger
from events.messages import PlacedWorker, SchedulerConfig, StartReply, StopReply
from events.states import RunState, WorkerState
from schedulers.decide.draft import Draft, Rules
from schedulers.decide.messages import Launch, Reply, Stop
from schedulers.decide.words import split_command
from schedulers.launcher import Assignment, StopOrder
from schedulers.placement import (
    NAMED_NODES,
    NO_ROOM,
    Candidate,
    Fleet,
    Plan,
    Wish,
    place,
    too_many_workers,
)

NAMED_FAILURES: Final = 5
"""Nodes in a sentence."""

TOLD_NODES: Final = 100
"""Nodes in an error's ``reasons``."""


KEPT: Final = "kept for a start that waits"


def settle(draft: Draft, job_id: str) -> None:
    """Draws every consequence for the runs and the pending commands of a job; those for
    which a full draft has no room, in the next decision."""
    if draft.full():
        draft.leave(job_id)
        return
    for run in draft.ledger.runs_of(job_id):
        if run.state is RunState.STARTING:
            _settle_starting(draft, run)
        if run.state is RunState.RUNNING:
            _settle_running(draft, run)
        if run.state is RunState.STOPPING:
            _settle_stopping(draft, run)
    for command in list(draft.ledger.pending_of.get(job_id, {}).values()):
        if command.kind == "stop":
            if draft.full():
                draft.leave(job_id)
                return
            _settle_stop_command(draft, command)


def wish_of(
    rules: Rules, config: SchedulerConfig, slots: int, excluded: dict[str, str] | None = None
) -> Wish:
    """What placement is asked for on behalf of a run of ``slots``."""
    return Wish(
        slots=slots,
        selector=config.selector if rules.chooses_nodes else {},
        spread=config.spread,
        per_worker=rules.per_worker,
        excluded=excluded or {},
    )


def plan_for(draft: Draft, wish: Wish, kept: Sequence[dict[str, str]] = ()) -> Plan:
    """Asks placement, with the nodes as this decision sees them, but for those whose labels
    match a selector of ``kept``: they are left to starts that wait."""
    capacity = draft.ledger.capacity
    if {} in kept:
        every = PassedOver(reason=KEPT, count=capacity.with_room, nodes=[])
        return Plan([], wish.slots, 0, [every])
    shut = [
        PassedOver(reason=str(state), count=count, nodes=nodes)
        for state, (count, nodes) in capacity.shut(NAMED_NODES).items()
    ]
    count, nodes = capacity.full(NAMED_NODES)
    if count:
        shut.append(PassedOver(reason=NO_ROOM, count=count, nodes=nodes))
    whole = not (wish.selector or wish.excluded or kept) and _all_usable(draft)
    if whole and wish.slots > capacity.free:  # no need to look at each of them
        return Plan([], wish.slots - capacity.free, capacity.free, shut)
    fleet = Fleet(
        ranked=(_candidate(draft, node_id, kept) for node_id in capacity.most_free()),
        count=capacity.with_room,
        free=capacity.free,
        shut=shut,
    )
    return place(fleet, wish)


def _all_usable(draft: Draft) -> bool:
    """Whether every node that is not expired has agents that obey this leader."""
    return draft.pulse.heard_under(draft.epoch) == draft.ledger.capacity.present


def _candidate(draft: Draft, node_id: str, kept: Sequence[dict[str, str]]) -> Candidate:
    node = draft.ledger.nodes[node_id]
    blocked = ""
    if draft.rules.theirs(node):
        blocked = "belongs to another scheduler"
    elif node.watched and _epoch_seen(draft, node) < draft.epoch:
        blocked = "not heard from under this leader yet"
    elif any(matches(node.labels, selector) for selector in kept):
        blocked = KEPT
    return Candidate(node_id, draft.ledger.free_slots(node_id), node.labels, blocked)


def matches(labels: dict[str, str], selector: dict[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in selector.items())


def _epoch_seen(draft: Draft, node: Node) -> int:
    beat = draft.pulse.beats.get(node.node_id)
    return beat.epoch if beat else 0


def put_workers(draft: Draft, run: Run, plan: Plan, *, anew: bool = False) -> None:
    """Records where the workers go, and asks for their launch. ``anew``: the run had waited,
    and its time begins now."""
    rules = draft.rules
    draft.emit(
        RunPlaced(
            job_id=run.job_id,
            run_id=run.run_id,
            attempt=run.attempt + 1,
            deadline=draft.after(rules.start_timeout_s) if anew else None,
            due=draft.after(rules.start_s) if anew else None,
            passed_over=plan.passed_over,
        )
    )
    for share in plan.shares:
        worker_id = draft.fresh_worker_id()
        draft.emit(
            WorkerAssigned(
                worker_id=worker_id,
                job_id=run.job_id,
                run_id=run.run_id,
                node_id=share.node_id,
                incarnation=draft.ledger.nodes[share.node_id].incarnation,
                slots=share.slots,
            )
        )
        launch(draft, draft.ledger.workers[worker_id])


def launch(draft: Draft, worker: Worker) -> None:
    """Asks for the launch of an assigned worker, under its own stamp, on the incarnation
    its node has now."""
    run = draft.ledger.run_of(worker)
    config = run.scheduler_config
    draft.effect(
        Launch(
            Assignment(
                worker_id=worker.worker_id,
                job_id=worker.job_id,
                run_id=worker.run_id,
                slots=worker.slots,
                node_id=worker.node_id,
                incarnation=draft.ledger.nodes[worker.node_id].incarnation,
                epoch=draft.epoch,
                stamp=msgspec.structs.replace(
                    draft.stamp, epoch=worker.epoch, position=worker.position
                ),
                command=split_command(config.command),
                default_command=draft.rules.worker_command,
                env_vars=run.env_vars,
                program=run.program,
                name=run.name,
                hash=run.hash,
                wasm_path=run.wasm_path,
                selector=config.selector,
                spread=config.spread,
                stop_after_s=config.stop_after_s,
                kubernetes=config.kubernetes,
            )
        )
    )


def stop_worker(
    draft: Draft, worker: Worker, reason: str, *, force: bool = False, grace_s: float
) -> None:
    """Decides that a live worker is to end, and asks its node for it."""
    draft.emit(
        WorkerStopping(worker_id=worker.worker_id, reason=reason, force=force, grace_s=grace_s)
    )
    signal(draft, worker)


def signal(draft: Draft, worker: Worker) -> None:
    """Asks a node to stop a worker; a silent node is asked when it returns."""
    if draft.ledger.answers(worker):
        draft.effect(
            Stop(
                StopOrder(
                    worker_id=worker.worker_id,
                    node_id=worker.node_id,
                    incarnation=draft.ledger.nodes[worker.node_id].incarnation,
                    force=worker.force,
                    grace_s=worker.grace_s,
                    epoch=draft.epoch,
                )
            )
        )


def refuse(
    draft: Draft, command_id: str, error: SlotbusError, passed_over: list[PassedOver] | None = None
) -> None:
    """The outcome of a command is an error."""
    draft.emit(
        CommandDone(
            command_id=command_id, ok=False, reply=error.body(), passed_over=passed_over or []
        )
    )


def succeed(draft: Draft, command_id: str, reply: Reply) -> None:
    """The outcome of a command is its reply."""
    draft.emit(CommandDone(command_id=command_id, ok=True, reply=msgspec.to_builtins(reply)))


def start_reply(ledger: Ledger, run: Run) -> StartReply:
    """The workers of a run that were placed and not found unable to run."""
    return StartReply(
        command_id=run.command_id,
        job_id=run.job_id,
        run_id=run.run_id,
        workers=[
            PlacedWorker(worker_id=w.worker_id, node_id=w.node_id, slots=w.slots)
            for w in (ledger.workers[worker_id] for worker_id in run.workers)
            if w.serves
        ],
    )


def fail_start(draft: Draft, run: Run, reason: str) -> None:
    """Rolls a starting run back: all that was started is stopped."""
    draft.emit(RunStopping(job_id=run.job_id, run_id=run.run_id, reason=reason, failed=True))
    for worker in draft.ledger.live_of(run.job_id, run.run_id):
        if worker.state is not WorkerState.STOPPING:
            grace_s = draft.rules.rollback_grace_s
            stop_worker(draft, worker, f"start failed: {reason}", grace_s=grace_s)


def _settle_starting(draft: Draft, run: Run) -> None:
    tally = draft.ledger.tally(run.job_id, run.run_id)
    if tally.silent:
        live = draft.ledger.live_of(run.job_id, run.run_id)
        node_id = next(w.node_id for w in live if not draft.ledger.answers(w))
        fail_start(draft, run, f"node {node_id} fell silent before all had started")
        return
    if draft.now >= run.deadline:
        live = draft.ledger.live_of(run.job_id, run.run_id)
        late = {w.node_id for w in live if not w.launched}
        where = f", waiting for {some_of(late)}" if late else ""
        fail_start(draft, run, f"not all workers were launched in time{where}")
        return
    missing = run.slots - tally.serving
    # A worker that may run has a successor only once it is known not to.
    if missing > tally.leaving:
        _try_elsewhere(draft, run, missing - tally.leaving)
    elif missing == 0 and not tally.waiting:
        draft.emit(RunRunning(job_id=run.job_id, run_id=run.run_id))
        if run.command_id in draft.ledger.pending:
            succeed(draft, run.command_id, start_reply(draft.ledger, run))


def _try_elsewhere(draft: Draft, run: Run, missing: int) -> None:
    wish = wish_of(draft.rules, run.scheduler_config, missing, run.failures)
    plan = plan_for(draft, wish)
    if plan.missing:
        fail_start(draft, run, f"{plan.missing} slots could not be launched on any node")
    elif too_many_workers(plan, beside=draft.ledger.tally(run.job_id, run.run_id).live):
        fail_start(draft, run, f"it would need more than {MAX_WORKERS_A_RUN} workers")
    else:
        put_workers(draft, run, plan)


def some_of(node_ids: Collection[str]) -> str:
    """The first few by id, and how many more."""
    named = ", ".join(sorted(node_ids)[:NAMED_FAILURES])
    more = len(node_ids) - NAMED_FAILURES
    return f"{named} and {more} more" if more > 0 else named


def _settle_running(draft: Draft, run: Run) -> None:
    if draft.ledger.tally(run.job_id, run.run_id).live:
        return
    workers = [draft.ledger.workers[worker_id] for worker_id in run.workers]
    bad = [w for w in workers if w.serves and w.state is not WorkerState.FINISHED]
    state = RunState.FAILED if bad else RunState.FINISHED
    reason = f"worker {bad[0].worker_id}: {bad[0].reason}" if bad else ""
    draft.emit(RunEnded(job_id=run.job_id, run_id=run.run_id, state=state, reason=reason))


def _settle_stopping(draft: Draft, run: Run) -> None:
    start = draft.ledger.pending.get(run.command_id)
    overdue = bool(start and start.deadline and draft.now >= start.deadline)
    if draft.ledger.answering(run.job_id, run.run_id) and not overdue:
        return
    state = RunState.FAILED if run.rollback else RunState.STOPPED
    draft.emit(RunEnded(job_id=run.job_id, run_id=run.run_id, state=state, reason=run.reason))
    if start:
        live = draft.ledger.live_of(run.job_id, run.run_id)
        refuse(draft, run.command_id, _start_error(run, live))


def _start_error(run: Run, live: list[Worker]) -> StartFailed:
    reason = run.reason if run.rollback else f"it was stopped while it started: {run.reason}"
    reasons = dict(sorted(run.failures.items())[:TOLD_NODES])
    told = "".join(f"; {node}: {why}" for node, why in list(reasons.items())[:NAMED_FAILURES])
    more = len(run.failures) - NAMED_FAILURES
    others = f"; and {more} more nodes" if more > 0 else ""
    return StartFailed(
        f"job {run.job_id} run {run.run_id} did not start: {reason}{told}{others}",
        job_id=run.job_id,
        run_id=run.run_id,
        reasons=reasons,
        unconfirmed=[w.worker_id for w in live],
    )


def _settle_stop_command(draft: Draft, command: CommandEntry) -> None:
    ledger = draft.ledger
    unended = ledger.unended[command.command_id]
    overdue = command.deadline is not None and draft.now >= command.deadline
    if not overdue and any(ledger.answers(ledger.workers[w]) for w in unended):
        return
    unconfirmed = list(unended)
    stopped = [w for w in command.workers if w not in set(unconfirmed)]
    reply = StopReply(
        command_id=command.command_id,
        job_id=command.job_id,
        workers=stopped,
        unconfirmed=unconfirmed,
    )
    succeed(draft, command.command_id, reply)
