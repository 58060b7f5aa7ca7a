"""Folding of what befalls workers: assigned, launched, lost, ended, and orphans.

What lives here: one method a fact of a worker. What may not: runs (``events.folding_runs``)
and who calls these (``events.folding``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from events import facts as f
from events.entities import (
    Orphan,
    Worker,
)
from events.indexes import Indexes
from events.states import (
    RUN_STARTING,
    WORKER_ASSIGNED,
    WORKER_LOST,
    WORKER_RUNNING,
    WORKER_STOPPING,
    WORKER_TABLE,
    IllegalTransition,
    WorkerState,
    step,
)

T = TypeVar("T")


class WorkerFolds(Indexes):
    """Changes workers and orphans by facts, and the indexes with them."""

    def _worker_assigned(self, fact: f.WorkerAssigned, at: datetime, epoch: int) -> None:
        worker_id = fact.worker_id
        if worker_id in self.workers:
            raise IllegalTransition("worker", worker_id, "known", "worker_assigned")
        run = self.jobs[fact.job_id].run(fact.run_id)
        node = self.nodes.get(fact.node_id)
        # What many workers have in common is held once.
        worker = Worker(
            worker_id=worker_id,
            job_id=run.job_id,
            run_id=run.run_id,
            node_id=node.node_id if node else fact.node_id,
            incarnation=_same(fact.incarnation, node.incarnation if node else ""),
            slots=fact.slots,
            state=WORKER_ASSIGNED,
            since=at,
            epoch=_same(epoch, self.state.epoch),
            position=self._following,
        )
        self.workers[worker_id] = worker
        run.workers.append(worker_id)
        self._count_new(worker)
        self._hold(worker)

    def _worker_moved(self, fact: Any, target: WorkerState, happening: str, at: datetime) -> Worker:
        worker = self.workers[fact.worker_id]
        if worker.gone:
            raise IllegalTransition("worker", worker.worker_id, "gone", happening)
        if worker.state is not target:
            worker.since = at
        worker.state = step(WORKER_TABLE, worker.worker_id, worker.state, happening, target)
        self._digests.pop(worker.node_id, None)
        return worker

    def _worker_launched(self, fact: f.WorkerLaunched, at: datetime, epoch: int) -> None:
        stopping = self.workers[fact.worker_id].state is WORKER_STOPPING
        target = WORKER_STOPPING if stopping else WORKER_RUNNING
        worker = self._worker_moved(fact, target, "worker_launched", at)
        self._heard_of(worker, fact, epoch)

    def _worker_hosted(self, fact: f.WorkerHosted, at: datetime, epoch: int) -> None:
        self.workers[fact.worker_id].host = fact.host

    def _worker_stopping(self, fact: f.WorkerStopping, at: datetime, epoch: int) -> None:
        worker = self._worker_moved(fact, WORKER_STOPPING, "worker_stopping", at)
        if not worker.unwanted:
            self._count_unwanted(worker)
        worker.unwanted, worker.force = True, worker.force or fact.force
        worker.grace_s, worker.reason = float(fact.grace_s), fact.reason
        self._note_failure(worker, fact.reason)

    def _worker_lost(self, fact: f.WorkerLost, at: datetime, epoch: int) -> None:
        worker = self._worker_moved(fact, WORKER_LOST, "worker_lost", at)
        worker.reason = fact.reason
        self._note_failure(worker, fact.reason)

    def _worker_returned(self, fact: f.WorkerReturned, at: datetime, epoch: int) -> None:
        worker = self._worker_moved(fact, WORKER_RUNNING, "worker_returned", at)
        worker.reason = ""
        self._heard_of(worker, fact, epoch)

    def _heard_of(
        self, worker: Worker, fact: f.WorkerLaunched | f.WorkerReturned, epoch: int
    ) -> None:
        if not worker.launched:
            self._count_launched(worker)
        worker.launched, worker.acked = True, _same(epoch, worker.epoch)
        worker.incarnation = _same(fact.incarnation, worker.incarnation)
        worker.pid, worker.seq = fact.pid or worker.pid, fact.seq

    def _worker_ended(self, fact: f.WorkerEnded, at: datetime, epoch: int) -> None:
        worker = self._worker_moved(fact, fact.state, "worker_ended", at)
        self._unlease(worker)
        self._count_gone(worker, fact.launched)
        worker.gone, worker.since, worker.launched = True, at, fact.launched
        for command_id in self.pending_of.get(worker.job_id, ()):
            if command_id in self.unended:
                self.unended[command_id].pop(worker.worker_id, None)
        worker.exit_code, worker.signal = fact.exit_code, fact.signal
        worker.reason = fact.reason or worker.reason
        self._held[worker.node_id] -= worker.slots
        del self.live_by_node[worker.node_id][worker.worker_id]
        self.capacity.changed(worker.node_id)
        if not fact.launched:
            self._note_failure(worker, fact.reason)

    def _note_failure(self, worker: Worker, reason: str) -> None:
        run = self.run_of(worker)
        if run.state is RUN_STARTING:
            run.failures[worker.node_id] = reason

    def _worker_orphaned(self, fact: f.WorkerOrphaned, at: datetime, epoch: int) -> None:
        if not fact.stopped:
            self._forget_orphan(fact.worker_id)
            orphan = self.state.orphans[fact.worker_id] = Orphan(
                node_id=fact.node_id,
                incarnation=fact.incarnation,
                job_id=fact.job_id,
                run_id=fact.run_id,
                slots=fact.slots,
                pid=fact.pid,
            )
            self._doubt(fact.worker_id, orphan)

    def _forget_orphan(self, worker_id: str) -> None:
        orphan = self.state.orphans.pop(worker_id, None)
        if orphan is not None:
            self._doubt_no_more(worker_id, orphan)

    def _orphans_gone(self, fact: f.OrphansGone, at: datetime, epoch: int) -> None:
        for worker_id in fact.worker_ids:
            self._forget_orphan(worker_id)


def _same(value: T, known: T) -> T:
    """``value``, as the object that is known already where they are equal."""
    return known if value == known else value
