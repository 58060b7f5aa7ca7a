"""Restarts: when a run is stopped because a worker of it ended, and the run that follows.

What lives here: policies applied, back-off, the limit, and the next run. What may not: which
workers count as gone (``proofs``), and when a run that waits is placed (``waiting``).

A run is a gang: it is stopped as a whole, and the next one begins when every copy of the job
is provably gone, never beside one that may live.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Struct

from events.entities import Run, Worker
from events.facts import RunCreated, RunEnded, RunStopping, RunWaiting
from events.ids import DEFAULT_GRACE_S, MAX_INT
from events.messages import StartPipelineReq
from events.policies import PLAIN, Policy, chance_of, drain_default
from events.states import RunState, WorkerState
from schedulers.decide.draft import Draft, Rules
from schedulers.decide.orders import stop_worker

OTHER_BYTES: Final = 5_000
"""Of the facts beside the one that creates a run: the end of the old one, and why it waits."""


class Next(Struct, frozen=True):
    """What follows a run that failed: another one as the ``tries``-th restart in a row, or,
    where that is 0, none. ``reason`` says why it is stopped, and why none follows."""

    tries: int
    reason: str


def policy_of(rules: Rules, request: StartPipelineReq) -> Policy:
    """The policy of a start, with nothing left open."""
    on_failure = request.on_failure or rules.on_failure
    on_lost = request.on_lost or rules.on_lost
    policy = Policy(
        on_failure=on_failure,
        on_lost=on_lost,
        on_drain=request.on_drain or rules.on_drain or drain_default(on_failure, on_lost),
        restart=rules.restart.with_options(request.restart),
    )
    return PLAIN if policy == PLAIN else policy


def broken(draft: Draft, run: Run) -> Worker | None:
    """The worker of a running run for whose end its policy stops the whole run."""
    tally = draft.ledger.tally(run.job_id, run.run_id)
    ends = []
    if tally.failed and run.policy.on_failure == "restart":
        ends.append(WorkerState.FAILED)
    if tally.vanished and run.policy.on_lost == "restart":
        ends.append(WorkerState.LOST)
    if not ends:
        return None
    workers = (draft.ledger.workers[worker_id] for worker_id in run.workers)
    return next(w for w in workers if w.gone and w.serves and w.state in ends)


def stop_broken(draft: Draft, run: Run, worker: Worker) -> None:
    """Stops a run because of a worker's end; another one may follow."""
    after = after_failure(draft, run, f"worker {worker.worker_id}: {worker.reason}")
    draft.emit(
        RunStopping(
            job_id=run.job_id,
            run_id=run.run_id,
            reason=after.reason,
            failed=True,
            restart=after.tries > 0,
            tries=after.tries,
        )
    )
    stop_others(draft, run, f"its run is restarted: {after.reason}")


def stop_others(draft: Draft, run: Run, reason: str) -> None:
    """Stops what a run still has, with the usual grace."""
    for worker in draft.ledger.live_of(run.job_id, run.run_id):
        if worker.state is not WorkerState.STOPPING:
            stop_worker(draft, worker, reason, grace_s=DEFAULT_GRACE_S)


def after_failure(draft: Draft, run: Run, reason: str) -> Next:
    """What follows a run that failed, or could not start."""
    how = run.policy.restart
    window = timedelta(seconds=how.window_s)
    recent = [at for at in draft.ledger.jobs[run.job_id].restarts if draft.now - at < window]
    if len(recent) >= how.limit:
        text = f"it was restarted {len(recent)} times within {how.window_s:g} s, the limit"
        return Next(0, f"{reason}; not restarted: {text}")
    quiet = timedelta(seconds=how.quiet_s)
    was_quiet = run.state is RunState.RUNNING and draft.now - run.since >= quiet
    return Next(1 if was_quiet else run.tries + 1, reason)


def follow(draft: Draft, run: Run) -> None:
    """Ends a run that was stopped for another one, and creates that: all its workers are
    gone. Left to the next decision where this one's record has no room for it."""
    created = _created(draft, run)
    if not draft.has_room(len(msgspec.json.encode(created)) + OTHER_BYTES):
        draft.leave(run.job_id)
        return
    state = RunState.FAILED if run.rollback else RunState.STOPPED
    draft.emit(RunEnded(job_id=run.job_id, run_id=run.run_id, state=state, reason=run.reason))
    if created.run_id > MAX_INT:
        return  # as a start would be refused
    draft.emit(created)
    if created.tries:
        how = created.policy.restart
        pause_s = how.backoff_s(created.tries, chance_of(draft.token, run.job_id))
        draft.emit(
            RunWaiting(
                job_id=run.job_id,
                run_id=created.run_id,
                missing=0,
                reason=f"restart {created.tries} in a row, after {pause_s:.1f} s: {run.reason}",
                not_before=draft.after(pause_s),
            )
        )


def _created(draft: Draft, run: Run) -> RunCreated:
    """The run that follows: all of it as before."""
    return RunCreated(
        job_id=run.job_id,
        run_id=draft.ledger.state.highest_run[run.job_id] + 1,
        command_id="",
        slots=run.slots,
        name=run.name,
        hash=run.hash,
        deadline=draft.after(draft.rules.start_timeout_s),
        program=run.program,
        wasm_path=run.wasm_path,
        env_vars=run.env_vars,
        scheduler_config=run.scheduler_config,
        priority=run.priority,
        policy=run.policy,
        restart_of=run.run_id,
        tries=run.next_tries,
    )
