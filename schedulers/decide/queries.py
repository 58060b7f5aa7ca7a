"""Queries: rows of the ledger and the pulse, in pages.

What lives here: building replies. What may not: changing anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from events.entities import Job, Node, Worker
from events.messages import (
    JobRow,
    JobsReply,
    NodeRow,
    NodesReply,
    QueryJobs,
    QueryNodes,
    QueryWorkers,
    WorkerRow,
    WorkersReply,
)
from schedulers.decide.draft import Draft

T = TypeVar("T")


class Page(Struct, frozen=True):
    """Keys of one page, and the cursor of the next ("" where there is none)."""

    keys: Sequence[str]
    next: str


def page(keys: Iterable[str], cursor: str, limit: int) -> Page:
    """The keys after a cursor, in order; the cursor is the last key of the page before."""
    rest = sorted(key for key in keys if key > cursor)
    return Page(rest[:limit], rest[limit - 1] if len(rest) > limit else "")


def workers(draft: Draft, query: QueryWorkers) -> None:
    ledger = draft.ledger
    if query.job_id is None:
        found: Iterable[Worker] = ledger.workers.values()
    else:
        runs = ledger.runs_of(query.job_id, query.run_id)
        found = [ledger.workers[worker_id] for run in runs for worker_id in run.workers]
    chosen = {
        w.worker_id: w
        for w in found
        if (query.all or not w.gone) and query.run_id in (None, w.run_id)
    }
    part = page(chosen, query.cursor, query.limit)
    draft.answer = WorkersReply(workers=[worker_row(chosen[k]) for k in part.keys], next=part.next)


def jobs(draft: Draft, query: QueryJobs) -> None:
    keys = draft.ledger.jobs if query.job_id is None else {query.job_id} & set(draft.ledger.jobs)
    part = page(keys, query.cursor, query.limit)
    rows = [_job_row(draft, draft.ledger.jobs[key]) for key in part.keys]
    draft.answer = JobsReply(jobs=rows, next=part.next)


def nodes(draft: Draft, query: QueryNodes) -> None:
    known = draft.ledger.nodes
    keys = known if query.node_id is None else {query.node_id} & set(known)
    part = page(keys, query.cursor, query.limit)
    rows = [_node_row(draft, known[key]) for key in part.keys]
    draft.answer = NodesReply(nodes=rows, next=part.next)


def worker_row(worker: Worker) -> WorkerRow:
    """A worker as queries show it."""
    return WorkerRow(
        worker_id=worker.worker_id,
        job_id=worker.job_id,
        run_id=worker.run_id,
        node_id=worker.node_id,
        slots=worker.slots,
        state=worker.state,
        since=worker.since,
        pid=worker.pid,
        exit_code=worker.exit_code,
        signal=worker.signal,
        reason=worker.reason,
    )


def _job_row(draft: Draft, job: Job) -> JobRow:
    run = job.current
    return JobRow(
        job_id=job.job_id,
        name=job.name,
        run_id=run.run_id,
        state=run.state,
        slots=run.slots,
        workers=len(draft.ledger.live_of(job.job_id)),
        since=run.since,
        reason=run.reason,
    )


def _node_row(draft: Draft, node: Node) -> NodeRow:
    age = draft.pulse.age(node.node_id, draft.now)
    return NodeRow(
        node_id=node.node_id,
        addr=node.addr,
        state=node.state,
        registered_slots=node.task_slots,
        free_slots=draft.ledger.free_slots(node.node_id),
        scheduled_slots=draft.ledger.held_slots(node.node_id),
        heartbeat_age_s=None if age is None else round(age.total_seconds(), 3),
        labels=node.labels,
        version=node.version,
    )
