"""Queries: rows of the ledger and the pulse, in pages.

What lives here: building replies. What may not: changing anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from events.entities import Job, Node, Run, Worker
from events.errors import UnknownJob, UnknownNode, UnknownWorker
from events.queries import (
    JobReply,
    JobRow,
    JobsReply,
    LeaderReply,
    NodeDetailReply,
    NodeRow,
    NodesReply,
    QueryJob,
    QueryJobs,
    QueryLeader,
    QueryNode,
    QueryNodes,
    QueryWorker,
    QueryWorkers,
    RunRow,
    WorkerReply,
    WorkerRow,
    WorkersReply,
)
from events.states import RunState
from schedulers.decide import draining
from schedulers.decide.draft import Draft
from schedulers.decide.paging import fill, page

TOLD_ORPHANS: Final = 1_000
TOLD_WORKERS: Final = 1_000


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
        if (query.all or not w.gone)
        and query.run_id in (None, w.run_id)
        and query.node_id in (None, w.node_id)
    }
    part = fill(page(chosen, query.cursor, query.limit), lambda key: worker_row(chosen[key]))
    draft.answer = WorkersReply(workers=part.rows, next=part.next)


def jobs(draft: Draft, query: QueryJobs) -> None:
    keys = draft.ledger.jobs if query.job_id is None else {query.job_id} & set(draft.ledger.jobs)
    found = page(keys, query.cursor, query.limit)
    part = fill(found, lambda key: _job_row(draft, draft.ledger.jobs[key]))
    draft.answer = JobsReply(jobs=part.rows, next=part.next)


def nodes(draft: Draft, query: QueryNodes) -> None:
    known = draft.ledger.nodes
    keys = known if query.node_id is None else {query.node_id} & set(known)
    found = page(keys, query.cursor, query.limit)
    part = fill(found, lambda key: _node_row(draft, known[key]))
    draft.answer = NodesReply(nodes=part.rows, next=part.next)


def job(draft: Draft, query: QueryJob) -> None:
    """One run of a job. Raises UnknownJob, also for a run that is not remembered."""
    ledger = draft.ledger
    known = ledger.jobs.get(query.job_id)
    if known is None:
        raise UnknownJob(f"there is no job {query.job_id}", job_id=query.job_id)
    wanted = known.current.run_id if query.run_id is None else query.run_id
    run = next(ledger.runs_of(query.job_id, wanted), None)
    if run is None:
        raise UnknownJob(
            f"job {query.job_id} has no run {wanted} that is remembered",
            job_id=query.job_id,
            run_id=wanted,
        )
    draft.answer = JobReply(
        job_id=run.job_id,
        name=run.name,
        run_id=run.run_id,
        state=run.state,
        since=run.since,
        slots=run.slots,
        workers=ledger.tally(run.job_id, run.run_id).live,
        command_id=run.command_id,
        hash=run.hash,
        defined=ledger.defines(run),
        program=run.program,
        wasm_path=run.wasm_path,
        env_vars=run.env_vars,
        scheduler_config=run.scheduler_config,
        deadline=run.deadline,
        attempt=run.attempt,
        failures=run.failures,
        reason=run.reason,
        priority=run.priority,
        not_after=run.not_after,
        not_before=run.not_before,
        missing=run.missing,
        policy=run.policy,
        restarts=len(known.restarts),
        restart_of=run.restart_of,
        tries=run.tries,
        awaits=_awaited(draft, run),
        highest_run=ledger.state.highest_run[run.job_id],
        runs=[_run_row(draft, each) for each in known.runs],
    )


def node(draft: Draft, query: QueryNode) -> None:
    """One node. Raises UnknownNode."""
    known = draft.ledger.nodes.get(query.node_id)
    if known is None:
        raise UnknownNode(f"there is no node {query.node_id}", node_id=query.node_id)
    orphans = draft.ledger.state.orphans.items()
    draft.answer = NodeDetailReply(
        node=_node_row(draft, known),
        since=known.since,
        incarnation=known.incarnation,
        machine_id=known.machine_id,
        watched=known.watched,
        cordon=known.cordon,
        past=known.past,
        drain=draining.progress(draft, known, known.drain) if known.drain else None,
        drain_deadline=known.drain.deadline if known.drain else None,
        dead=known.dead,
        orphans=[w for w, orphan in orphans if orphan.node_id == known.node_id][:TOLD_ORPHANS],
    )


def worker(draft: Draft, query: QueryWorker) -> None:
    """One worker. Raises UnknownWorker."""
    known = draft.ledger.workers.get(query.worker_id)
    if known is None:
        raise UnknownWorker(f"no worker {query.worker_id} is remembered", worker_id=query.worker_id)
    draft.answer = WorkerReply(
        worker=worker_row(known),
        incarnation=known.incarnation,
        epoch=known.epoch,
        position=known.position,
        launched=known.launched,
        unwanted=known.unwanted,
        gone=known.gone,
        force=known.force,
        grace_s=known.grace_s,
        seq=known.seq,
    )


def leader(draft: Draft, query: QueryLeader) -> None:
    """Who answers."""
    ledger = draft.ledger
    draft.answer = LeaderReply(
        epoch=draft.epoch,
        position=ledger.position,
        now=draft.now,
        cluster=ledger.state.cluster,
        scheduler=ledger.state.scheduler,
        nodes=len(ledger.nodes),
        jobs=len(ledger.jobs),
        workers=sum(len(live) for live in ledger.live_by_node.values()),
        pending=len(ledger.pending),
        unconfirmed=len(draft.ledger.state.orphans),
    )


def _awaited(draft: Draft, run: Run) -> list[str]:
    """What must be gone before the run that follows this one is created."""
    if run.state is not RunState.STOPPING or not run.restart:
        return []
    return [worker.worker_id for worker in draft.ledger.live_of(run.job_id)][:TOLD_WORKERS]


def _run_row(draft: Draft, run: Run) -> RunRow:
    return RunRow(
        run_id=run.run_id,
        state=run.state,
        slots=run.slots,
        workers=draft.ledger.tally(run.job_id, run.run_id).live,
        since=run.since,
        reason=run.reason,
    )


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
        host=worker.host,
    )


def _job_row(draft: Draft, job: Job) -> JobRow:
    run = job.current
    return JobRow(
        job_id=job.job_id,
        name=job.name,
        run_id=run.run_id,
        state=run.state,
        slots=run.slots,
        workers=draft.ledger.live_count(job.job_id),
        since=run.since,
        reason=run.reason,
        missing=run.missing,
        not_before=run.not_before,
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
