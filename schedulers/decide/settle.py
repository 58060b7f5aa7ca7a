"""What follows: the consequences for runs and commands after workers changed.

What lives here: placing the workers of a run, trying again elsewhere, rolling back, and
the outcomes of start and stop. What may not: the first reading of a message.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from events.entities import CommandEntry, Run, Worker
from events.errors import StartFailed
from events.facts import RunEnded, RunRunning, RunStopping
from events.ids import MAX_WORKERS_A_RUN
from events.ledger import Ledger
from events.messages import PlacedWorker, StartReply, StopReply
from events.states import RunState, WorkerState
from schedulers.decide import restarts
from schedulers.decide.draft import Draft
from schedulers.decide.orders import refuse, stop_worker, succeed
from schedulers.decide.placing import plan_for, put_workers, wish_of
from schedulers.placement import too_many_workers

NAMED_FAILURES: Final = 5
"""Nodes in a sentence."""

TOLD_NODES: Final = 100
"""Nodes in an error's ``reasons``."""


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
    """Rolls a starting run back: all that was started is stopped. What began by itself is
    tried again, as its policy has it."""
    tries = 0
    if run.restart_of is not None:
        after = restarts.after_failure(draft, run, reason)
        tries, reason = after.tries, after.reason
    draft.emit(
        RunStopping(
            job_id=run.job_id,
            run_id=run.run_id,
            reason=reason,
            failed=True,
            restart=tries > 0,
            tries=tries,
        )
    )
    for worker in draft.ledger.live_of(run.job_id, run.run_id):
        if worker.state is not WorkerState.STOPPING:
            grace_s = draft.rules.rollback_grace_s
            stop_worker(draft, worker, f"start failed: {reason}", grace_s=grace_s)


def supersede(draft: Draft, job_id: str, run_id: int) -> None:
    """Earlier runs have only workers on silent nodes: they are stopped on return."""
    reason = f"replaced by run {run_id}"
    for run in draft.ledger.runs_of(job_id):
        for worker in draft.ledger.live_of(job_id, run.run_id):
            if worker.state is not WorkerState.STOPPING:
                stop_worker(draft, worker, reason, grace_s=draft.rules.rollback_grace_s)
        if not run.ended:
            if run.state is not RunState.STOPPING:
                draft.emit(RunStopping(job_id=job_id, run_id=run.run_id, reason=reason))
            state = RunState.FAILED
            draft.emit(RunEnded(job_id=job_id, run_id=run.run_id, state=state, reason=reason))


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
        # As far as is known by now: what else was ordered is taken back, and not waited for.
        short = f"{plan.missing} of {run.slots} slots"
        fail_start(draft, run, f"{short} could not be launched on any node, so none is")
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
    broken = restarts.broken(draft, run)
    if broken is not None:
        restarts.stop_broken(draft, run, broken)
        return
    if draft.ledger.tally(run.job_id, run.run_id).live:
        return
    workers = [draft.ledger.workers[worker_id] for worker_id in run.workers]
    bad = [w for w in workers if w.serves and w.state is not WorkerState.FINISHED]
    state = RunState.FAILED if bad else RunState.FINISHED
    reason = f"worker {bad[0].worker_id}: {bad[0].reason}" if bad else ""
    draft.emit(RunEnded(job_id=run.job_id, run_id=run.run_id, state=state, reason=reason))


def _settle_stopping(draft: Draft, run: Run) -> None:
    if run.restart:
        if not draft.ledger.live_count(run.job_id):
            restarts.follow(draft, run)
        return
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
