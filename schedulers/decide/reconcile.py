"""Reconciliation: a node's inventory against the ledger.

What lives here: what each difference means, and what follows. What may not: asking for
inventories. An inventory concludes only for the incarnation that the ledger has, under
this leader's epoch, and about starts acknowledged before it was taken (``seq``).
"""

from __future__ import annotations

from events.entities import Node, Worker
from events.facts import OrphansGone, WorkerEnded, WorkerLaunched, WorkerOrphaned, WorkerReturned
from events.states import WorkerState
from events.traffic import InventoryReply, InventoryRow
from schedulers.decide.draft import Draft
from schedulers.decide.messages import Stop
from schedulers.decide.orders import launch, signal, stop_worker
from schedulers.decide.settle import settle
from schedulers.launcher import StopOrder, never_ran

ALIVE = (WorkerState.RUNNING, WorkerState.STOPPING)
HERE = (WorkerState.ASSIGNED, *ALIVE)


def reconcile(draft: Draft, node: Node, inventory: InventoryReply) -> bool:
    """Takes what a node says it runs; ignores what is of another epoch or incarnation. False
    where the draft is full before all was taken: another inventory is needed."""
    if inventory.incarnation != node.incarnation or inventory.epoch != draft.epoch:
        return True
    jobs: dict[str, None] = {}
    whole = _take_rows(draft, node, inventory, jobs)
    for job_id in jobs:
        settle(draft, job_id)
    return whole


def _take_rows(draft: Draft, node: Node, inventory: InventoryReply, jobs: dict[str, None]) -> bool:
    """``jobs`` gets those whose workers were looked at."""
    rows = {row.worker_id: row for row in inventory.workers}
    for worker in draft.ledger.live_on(node.node_id):
        if draft.full():
            return False
        row = rows.get(worker.worker_id)
        if row is None:
            _absent(draft, worker, inventory)
        elif row.state is WorkerState.ASSIGNED:
            _waiting(draft, worker)
        elif row.state in ALIVE:
            _alive(draft, worker, row, inventory)
        else:
            _ended(draft, worker, row)
        jobs[worker.job_id] = None
    for row in inventory.workers:
        if draft.full():
            return False
        worker_known = draft.ledger.workers.get(row.worker_id)
        if row.state in HERE and (
            worker_known is None or worker_known.gone or worker_known.node_id != node.node_id
        ):
            _orphan(draft, node, row, worker_known)
    _forget_orphans(draft, node, rows)
    return True


def _forget_orphans(draft: Draft, node: Node, rows: dict[str, InventoryRow]) -> None:
    """Those that are not there any more have ended by themselves."""
    gone = [
        worker_id
        for worker_id in draft.ledger.doubted.get(node.node_id, {})
        if worker_id not in rows or rows[worker_id].state not in HERE
    ]
    if gone:
        draft.emit(OrphansGone(node_id=node.node_id, worker_ids=gone))


def _absent(draft: Draft, worker: Worker, inventory: InventoryReply) -> None:
    if worker.state is WorkerState.ASSIGNED:
        # Never acknowledged: the order was lost or is on its way, so it is sent (again).
        launch(draft, worker)
        return
    if worker.launched and _is_later(worker, inventory):
        reason = "its node no longer has it"
        draft.emit(WorkerEnded(worker_id=worker.worker_id, state=WorkerState.LOST, reason=reason))
    elif worker.state is WorkerState.STOPPING:
        # It may be on its way there; a stop leaves a tombstone and so an answer.
        signal(draft, worker)


def _waiting(draft: Draft, worker: Worker) -> None:
    """It exists, and does not run (yet): what was ordered is ordered again."""
    if worker.state is WorkerState.ASSIGNED:
        launch(draft, worker)
    elif worker.state is WorkerState.STOPPING:
        signal(draft, worker)


def _is_later(worker: Worker, inventory: InventoryReply) -> bool:
    """Whether a list was taken after the worker's launch was acknowledged: to an earlier
    incarnation, which is over; to an earlier leader, whose orders the node refused from
    when it was asked for this list; or with a lower ``seq``."""
    return (
        worker.incarnation != inventory.incarnation
        or worker.acked < inventory.epoch
        or worker.seq < inventory.seq
    )


def _alive(draft: Draft, worker: Worker, row: InventoryRow, inventory: InventoryReply) -> None:
    here = {"worker_id": worker.worker_id, "incarnation": inventory.incarnation}
    seq = inventory.seq
    match worker.state:
        case WorkerState.ASSIGNED:
            draft.emit(WorkerLaunched(**here, pid=row.pid, seq=seq))
        case WorkerState.LOST if _wanted(draft, worker):
            draft.emit(WorkerReturned(**here, pid=row.pid, seq=seq))
        case WorkerState.LOST:
            stop_worker(draft, worker, "its run is over", grace_s=draft.rules.rollback_grace_s)
        case WorkerState.STOPPING:
            if not worker.launched:
                draft.emit(WorkerLaunched(**here, pid=row.pid, seq=seq))
            signal(draft, worker)
        case _:
            pass


def _wanted(draft: Draft, worker: Worker) -> bool:
    """Whether the run of a worker is its job's current one and goes on."""
    job = draft.ledger.jobs[worker.job_id]
    return job.current.run_id == worker.run_id and not job.current.ended


def _ended(draft: Draft, worker: Worker, row: InventoryRow) -> None:
    asked = worker.state is WorkerState.STOPPING and row.state is WorkerState.FAILED
    draft.emit(
        WorkerEnded(
            worker_id=worker.worker_id,
            state=WorkerState.FINISHED if asked else row.state,
            launched=worker.launched or not never_ran(row),
            exit_code=row.exit_code,
            signal=row.signal,
            reason=row.reason,
        )
    )


def _orphan(draft: Draft, node: Node, row: InventoryRow, known: Worker | None) -> None:
    """A worker that the ledger has as gone, or not at all."""
    stamp = row.stamp
    confirmed = known is not None or (
        stamp is not None
        and stamp.cluster == draft.ledger.state.cluster
        and draft.ledger.wrote(stamp.epoch, stamp.position)
    )
    if not confirmed:
        known_as = draft.ledger.state.orphans.get(row.worker_id)
        if known_as is None or known_as.incarnation != node.incarnation:
            draft.emit(
                WorkerOrphaned(
                    worker_id=row.worker_id,
                    node_id=node.node_id,
                    reason="the log can't confirm where it comes from: it may have lost its tail",
                    stopped=False,
                    incarnation=node.incarnation,
                    job_id=row.job_id,
                    run_id=row.run_id,
                    slots=row.slots,
                    pid=row.pid,
                )
            )
        return
    draft.emit(
        WorkerOrphaned(
            worker_id=row.worker_id,
            node_id=node.node_id,
            reason="it is over in the log and runs on the node",
            stopped=True,
        )
    )
    draft.effect(
        Stop(
            StopOrder(
                worker_id=row.worker_id,
                node_id=node.node_id,
                incarnation=node.incarnation,
                force=False,
                grace_s=draft.rules.rollback_grace_s,
                epoch=draft.epoch,
            ),
            orphan=True,
        )
    )
