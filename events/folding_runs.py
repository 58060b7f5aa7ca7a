"""Folding of what befalls runs and jobs: created, waiting, placed, stopping, ended, forgotten.

What lives here: one method a fact of a run or a job, and what is kept of ended jobs. What may
not: workers (``events.folding_workers``) and who calls these (``events.folding``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from msgspec import Raw

from events import facts as f
from events.entities import (
    DrainedRun,
    Job,
    Run,
)
from events.folding_workers import WorkerFolds
from events.states import (
    RUN_RUNNING,
    RUN_STARTING,
    RUN_STOPPING,
    RUN_TABLE,
    RUN_WAITING,
    IllegalTransition,
    RunState,
    step,
)

DEFINITION_BYTES: Final = 16 * 1024 * 1024
"""Programs and environments of ended jobs that are kept for a start from what is remembered,
in bytes of all together; the job that ended first loses its own first."""

NO_PROGRAM: Final = Raw(b"{}")


class RunFolds(WorkerFolds):
    """Changes runs and jobs by facts, and the indexes with them."""

    def _run_created(self, fact: f.RunCreated, at: datetime, epoch: int) -> None:
        if fact.run_id <= self.state.highest_run.get(fact.job_id, 0):
            raise IllegalTransition("run", f"{fact.job_id}/{fact.run_id}", "stale", "run_created")
        self.state.highest_run[fact.job_id] = fact.run_id
        job = self.jobs.get(fact.job_id)
        if job is None:
            job = self.jobs[fact.job_id] = Job(job_id=fact.job_id, name=fact.name)
        else:
            job.name = fact.name
            self._forget_definition(job)
        if fact.restart_of is None:
            job.restarts.clear()
        elif fact.tries:
            job.restarts.append(at)
            del job.restarts[: -fact.policy.restart.limit]
        run = Run(
            job_id=fact.job_id,
            run_id=fact.run_id,
            command_id=fact.command_id,
            state=RUN_WAITING,
            since=at,
            slots=fact.slots,
            name=fact.name,
            hash=fact.hash,
            deadline=fact.deadline,
            program=_kept(fact.program),
            wasm_path=fact.wasm_path,
            env_vars=fact.env_vars,
            scheduler_config=fact.scheduler_config,
            position=self._following,
            priority=fact.priority,
            not_after=fact.not_after,
            policy=fact.policy,
            restart_of=fact.restart_of,
            tries=fact.tries,
        )
        job.runs.append(run)
        self._line_up(run)

    def _run_named(self, fact: Any) -> Run:
        return self.jobs[fact.job_id].run(fact.run_id)

    def _run_moved(self, run: Run, target: RunState, happening: str, at: datetime) -> Run:
        key = (run.job_id, run.run_id)
        state = step(RUN_TABLE, key, run.state, happening, target)
        if run.state is RUN_WAITING:
            if state is not RUN_WAITING:
                self._leave_line(run)
        elif run.state is RUN_STARTING:
            del self.starting[key]
        if state is RUN_STARTING:
            self.starting[key] = None
        run.state, run.since = state, at
        return run

    def _run_waiting(self, fact: f.RunWaiting, at: datetime, epoch: int) -> None:
        run = self._run_moved(self._run_named(fact), RUN_WAITING, "run_waiting", at)
        self._drop_alarms(run)
        run.missing, run.reason, run.not_before = fact.missing, fact.reason, fact.not_before
        self._set_alarms(run)

    def _run_placed(self, fact: f.RunPlaced, at: datetime, epoch: int) -> None:
        run = self.jobs[fact.job_id].run(fact.run_id)
        run.attempt = fact.attempt
        if run.state is RUN_WAITING:
            self._run_moved(run, RUN_STARTING, "run_placed", at)
            run.missing, run.reason, run.not_before = 0, "", None
        run.deadline = fact.deadline or run.deadline
        command = self.pending.get(run.command_id)
        if command is not None and fact.due is not None:
            command.deadline = fact.due

    def _run_running(self, fact: f.RunRunning, at: datetime, epoch: int) -> None:
        self._run_moved(self._run_named(fact), RUN_RUNNING, "run_running", at)

    def _run_stopping(self, fact: f.RunStopping, at: datetime, epoch: int) -> None:
        run = self._run_moved(self._run_named(fact), RUN_STOPPING, "run_stopping", at)
        run.rollback, run.reason = fact.failed, fact.reason
        run.restart, run.next_tries = fact.restart, fact.tries
        if run.moves:
            self.moving[run.job_id, run.run_id] = None
        else:
            self.moving.pop((run.job_id, run.run_id), None)
        if fact.drain:
            self._leaves_drained(run, fact.drain)

    def _leaves_drained(self, run: Run, command_id: str) -> None:
        node = self.nodes[self.commands[command_id].node_id]
        here = self.live_by_node.get(node.node_id, {})
        workers = [worker_id for worker_id in run.workers if worker_id in here]
        if node.drain is not None:
            node.drain.runs.append(
                DrainedRun(job_id=run.job_id, run_id=run.run_id, moved=run.restart, workers=workers)
            )

    def _run_ended(self, fact: f.RunEnded, at: datetime, epoch: int) -> None:
        run = self._run_moved(self._run_named(fact), fact.state, "run_ended", at)
        run.not_before = None
        if self.moving:
            self.moving.pop((run.job_id, run.run_id), None)
        run.reason = fact.reason or run.reason
        job = self.jobs[fact.job_id]
        if job.current is not run:
            _undefine(run)
            return
        kept = self.state.definitions
        kept[job.job_id] = definition_size(run)
        self._defined += kept[job.job_id]
        while self._defined > DEFINITION_BYTES:
            self._forget_definition(self.jobs[next(iter(kept))])

    def _forget_definition(self, job: Job) -> None:
        """An ended job can't be started again from what is remembered."""
        size = self.state.definitions.pop(job.job_id, None)
        if size is not None:
            self._defined -= size
            _undefine(job.current)

    def _run_forgotten(self, fact: f.RunForgotten, at: datetime, epoch: int) -> None:
        job = self.jobs[fact.job_id]
        run = job.run(fact.run_id)
        if job.current is run:
            self._forget_definition(job)
        self._forget_run(run)
        job.runs.remove(run)

    def _job_forgotten(self, fact: f.JobForgotten, at: datetime, epoch: int) -> None:
        self._defined -= self.state.definitions.pop(fact.job_id, 0)
        for run in self.jobs.pop(fact.job_id).runs:
            self._forget_run(run)

    def _forget_run(self, run: Run) -> None:
        self._tallies.pop((run.job_id, run.run_id), None)
        for worker_id in run.workers:
            if not self.workers.pop(worker_id).gone:
                raise IllegalTransition("worker", worker_id, "live", "forgotten")


def definition_size(run: Run) -> int:
    """Bytes of what a run was started with, as it counts for ``DEFINITION_BYTES``."""
    size = len(bytes(run.program))
    for name, value in run.env_vars.items():
        size += len(name) + len(value)
    return size


def _kept(program: Raw) -> Raw:
    """A copy, since what is decoded is a view that would keep the whole record."""
    copy = bytes(program)
    return NO_PROGRAM if copy == b"{}" else Raw(copy)


def _undefine(run: Run) -> None:
    run.program, run.env_vars = NO_PROGRAM, {}
