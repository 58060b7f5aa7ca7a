"""Outcomes of effects: launches, signals, inventories; and the passing of time.

What lives here: what an answer from a launcher, or none in time, leads to. What may not:
retrying (that is the shell's).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from events.facts import (
    AnyFact,
    CommandForgotten,
    JobForgotten,
    NodeForgotten,
    RunForgotten,
    WorkerEnded,
    WorkerLaunched,
)
from events.states import WorkerState
from schedulers.decide.draft import Draft
from schedulers.decide.messages import (
    InventoryFailed,
    InventoryTaken,
    Launched,
    LaunchFailed,
    LaunchUncertain,
    StopAnswered,
)
from schedulers.decide.orders import ask, stop_worker
from schedulers.decide.reconcile import reconcile
from schedulers.decide.settle import settle

IDS_A_FACT: Final = 500

LOST_WORD: Final = "it has ended; how was told to a leader, and is not in the log"


def launched(draft: Draft, outcome: Launched) -> None:
    """The worker's process exists. What is known better by now stays."""
    worker = draft.ledger.workers.get(outcome.worker_id)
    if worker is None or worker.gone or worker.launched or worker.state is WorkerState.LOST:
        return
    draft.emit(
        WorkerLaunched(
            worker_id=worker.worker_id,
            incarnation=outcome.incarnation,
            pid=outcome.pid,
            seq=outcome.seq,
        )
    )
    settle(draft, worker.job_id)


def launch_failed(draft: Draft, outcome: LaunchFailed) -> None:
    """It never ran and never will: its slots are free again."""
    worker = draft.ledger.workers.get(outcome.worker_id)
    if worker is None or worker.gone or worker.launched:
        return
    draft.emit(
        WorkerEnded(
            worker_id=worker.worker_id,
            state=WorkerState.FAILED,
            launched=False,
            reason=outcome.reason,
        )
    )
    settle(draft, worker.job_id)


def launch_uncertain(draft: Draft, outcome: LaunchUncertain) -> None:
    """It may run: only once it is known not to may another take its place."""
    worker = draft.ledger.workers.get(outcome.worker_id)
    if worker is None or worker.gone or worker.state is not WorkerState.ASSIGNED:
        return
    stop_worker(draft, worker, outcome.reason, grace_s=draft.rules.rollback_grace_s)
    settle(draft, worker.job_id)


def stop_answered(draft: Draft, outcome: StopAnswered) -> None:
    """``unknown`` proves that the worker is not there: a tombstone stands for it now. An end
    that was told already, to a leader whose word is not in our log, is not told again."""
    worker = draft.ledger.workers.get(outcome.worker_id)
    if worker is None or worker.state is not WorkerState.STOPPING:
        return
    if worker.node_id != outcome.node_id:  # the answer to the stop of an orphan
        return
    told = outcome.state == "ended" and outcome.told
    if outcome.state != "unknown" and not told:
        return
    ran = worker.launched or told
    draft.emit(
        WorkerEnded(
            worker_id=worker.worker_id,
            state=WorkerState.LOST if ran else WorkerState.FAILED,
            launched=ran,
            reason=LOST_WORD if told else worker.reason or "its node does not know it",
        )
    )
    settle(draft, worker.job_id)


def inventory_taken(draft: Draft, outcome: InventoryTaken) -> None:
    """A node answered: it has seen this epoch, and said what it runs."""
    node = draft.ledger.nodes.get(outcome.node_id)
    if node is None or node.incarnation != outcome.inventory.incarnation:
        return
    if node.watched and not node.expired:
        beat = draft.pulse.heard(
            node.node_id,
            draft.now,
            epoch=outcome.inventory.epoch,
            seq=outcome.inventory.seq,
        )
        beat.asked_at = None
        beat.owed = beat.owed and outcome.inventory.epoch < draft.epoch
    if not node.expired and not reconcile(draft, node, outcome.inventory):
        ask(draft, node, anew=True)


def inventory_failed(draft: Draft, outcome: InventoryFailed) -> None:
    """Nothing was learnt; the next heartbeat asks again."""
    beat = draft.pulse.beats.get(outcome.node_id)
    if beat is not None:
        beat.asked_at = None


def overdue(draft: Draft) -> None:
    """Settles every job with a deadline that has passed, and forgets what is old."""
    late = {job_id for job_id, _ in draft.ledger.starting}
    for job_id in sorted(late.union(job_id for job_id in draft.ledger.pending_of if job_id)):
        settle(draft, job_id)
    forget(draft)


def forget(draft: Draft) -> None:
    """Lets what is old leave the ledger, as much as the record has room for."""
    for fact in _old(draft):
        draft.emit(fact)
        if draft.full():
            draft.leave_old()
            return


def _old(draft: Draft) -> Iterator[AnyFact]:
    rules, ledger = draft.rules, draft.ledger
    done = [c.command_id for c in ledger.commands.values() if c.done]
    if len(done) > rules.remembered_commands:
        old = done[: len(done) - rules.remembered_commands]
        for first in range(0, len(old), IDS_A_FACT):
            yield CommandForgotten(command_ids=old[first : first + IDS_A_FACT])
    for job in list(ledger.jobs.values()):
        for run in job.runs[: -max(1, rules.remembered_runs)]:
            if run.ended and not ledger.tally(job.job_id, run.run_id).live:
                yield RunForgotten(job_id=job.job_id, run_id=run.run_id)
    over = [j for j in ledger.jobs.values() if j.current.ended and not ledger.live_count(j.job_id)]
    over.sort(key=lambda job: (job.current.since, job.job_id))
    for job in over[: max(0, len(over) - rules.remembered_jobs)]:
        yield JobForgotten(job_id=job.job_id)
    for node in list(ledger.nodes.values()):
        gone_long = (draft.now - node.since).total_seconds() > rules.node_memory_s
        if node.expired and gone_long and not ledger.live_on(node.node_id):
            yield NodeForgotten(node_id=node.node_id)
