"""An audit that begins in the middle: with a snapshot's ledger instead of all before it.

What lives here: the facts that bring fresh accounts to where a ledger stands. What may not:
judging (``events.audit``). What a ledger has forgotten can't be held against what follows:
a worker id that is used again after its run was forgotten goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from events import facts as f
from events.accounts import TAKES
from events.audit import Auditor
from events.entities import LedgerState, Run, Worker
from events.ids import Position
from events.ledger import Ledger
from events.states import WorkerState

LONG_AGO = datetime.min.replace(tzinfo=UTC)


def audit_from(ledger: Ledger, *, snapshot_every: int | None = None) -> Auditor:
    """An auditor that has seen what a ledger holds, which becomes its own."""
    auditor = Auditor(snapshot_every)
    auditor.begin_with(ledger)
    for fact in told(ledger.state):
        take = TAKES.get(type(fact))
        if take is not None:
            take(auditor.accounts, fact)
    auditor.accounts.touched_nodes.clear()
    auditor.accounts.touched_jobs.clear()
    auditor.position = Position(ledger.position)
    return auditor


def told(state: LedgerState) -> Iterator[f.AnyFact]:
    """What must have happened, as far as accounts go."""
    yield f.LeaderStarted(epoch=state.epoch, cluster=state.cluster, scheduler=state.scheduler)
    for node in state.nodes.values():
        yield f.NodeRegistered(
            node_id=node.node_id, incarnation=node.incarnation, task_slots=node.task_slots
        )
        if node.expired:
            yield f.NodeExpired(node_id=node.node_id, last_seen=LONG_AGO)
    for job in state.jobs.values():
        for run in job.runs:
            yield _created(run)
            for worker_id in run.workers:
                yield from _worker(state.workers[worker_id])
    for entry in state.commands.values():
        yield f.CommandTaken(
            command_id=entry.command_id,
            kind=entry.kind,
            digest=entry.digest,
            deadline=entry.deadline,
        )
        if entry.done:
            yield f.CommandDone(command_id=entry.command_id, ok=entry.ok, reply=None)


def _created(run: Run) -> f.RunCreated:
    return f.RunCreated(
        job_id=run.job_id,
        run_id=run.run_id,
        command_id=run.command_id,
        slots=run.slots,
        name=run.name,
        hash=run.hash,
        deadline=run.deadline,
        restart_of=run.restart_of,
    )


def _worker(worker: Worker) -> Iterator[f.AnyFact]:
    who = worker.worker_id
    yield f.WorkerAssigned(
        worker_id=who,
        job_id=worker.job_id,
        run_id=worker.run_id,
        node_id=worker.node_id,
        incarnation=worker.incarnation,
        slots=worker.slots,
    )
    if worker.launched:
        yield f.WorkerLaunched(worker_id=who, incarnation=worker.incarnation)
    if worker.unwanted:
        yield f.WorkerStopping(worker_id=who, reason="")
    if worker.state is WorkerState.LOST:
        yield f.WorkerLost(worker_id=who, reason="")
    if worker.gone:
        yield f.WorkerEnded(worker_id=who, state=worker.state, launched=worker.launched)
