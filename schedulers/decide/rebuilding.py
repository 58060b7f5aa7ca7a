"""Taking in workers that the log has lost.

What lives here: adopting, when a person says so, the workers that nothing in the log
confirms. What may not: finding them (``reconcile``), and stopping anything that runs.

A log that was cut, restored from an old copy, or made anew knows nothing of workers that
live on. They are left alone, for nobody here can tell a lost decision from one that was never
taken; ``rebuild`` is a person's word that they are ours.
"""

from __future__ import annotations

from typing import Final

from events.entities import Orphan
from events.facts import CommandTaken, RunAdopted, WorkerAdopted
from events.messages import RebuildReply, RebuildReq
from events.states import RunState
from schedulers.decide.draft import Draft
from schedulers.decide.orders import succeed
from schedulers.decide.settle import supersede

MOST_ADOPTED: Final = 1_000
"""In one command, so that its record fits into a message; repeat it for the rest."""

Group = tuple[str, int]
"""job_id and run_id."""


def rebuild(draft: Draft, request: RebuildReq, command_id: str, digest: str) -> None:
    """Takes in what can be, and says of the rest why not."""
    draft.emit(CommandTaken(command_id=command_id, kind="rebuild", digest=digest))
    adopted: list[str] = []
    left: dict[str, str] = {}
    more = 0
    for (job_id, run_id), orphans in _by_run(draft).items():
        why = _why_not(draft, job_id, run_id)
        for worker_id, orphan in orphans.items():
            reason = why or _unheard(draft, orphan)
            if reason:
                left[worker_id] = reason
            elif len(adopted) >= MOST_ADOPTED:
                more += 1
            else:
                _adopt(draft, worker_id, orphan, command_id)
                adopted.append(worker_id)
    unheard = [
        node.node_id
        for node in draft.ledger.nodes.values()
        if node.watched and not node.expired and not _heard(draft, node.node_id)
    ]
    reply = RebuildReply(
        command_id=command_id,
        workers=adopted,
        left=dict(list(left.items())[:MOST_ADOPTED]),
        unheard=unheard[:MOST_ADOPTED],
        more=more,
        nodes=len(draft.ledger.nodes),
    )
    succeed(draft, command_id, reply)


def _by_run(draft: Draft) -> dict[Group, dict[str, Orphan]]:
    """The newest run of each job first: it is the one that may live on."""
    found: dict[Group, dict[str, Orphan]] = {}
    for worker_id, orphan in draft.ledger.state.orphans.items():
        found.setdefault((orphan.job_id, orphan.run_id), {})[worker_id] = orphan
    return dict(sorted(found.items(), key=lambda item: (item[0][0], -item[0][1])))


def _why_not(draft: Draft, job_id: str, run_id: int) -> str:
    """Why the workers of a run can't be taken in, or ""."""
    ledger = draft.ledger
    if not job_id:
        return "its node did not say what it belongs to"
    for run in ledger.runs_of(job_id):
        if run.run_id == run_id:
            over = run.ended or run.state is RunState.STOPPING
            return f"run {run_id} of job {job_id} is over in the log" if over else ""
        if not run.ended and ledger.answering(job_id, run.run_id):
            return f"run {run.run_id} of job {job_id} lives: stop it first"
    if run_id <= ledger.state.highest_run.get(job_id, 0):
        return f"the log knows a later run of job {job_id}"
    return ""


def _unheard(draft: Draft, orphan: Orphan) -> str:
    node = draft.ledger.nodes.get(orphan.node_id)
    if node is None or node.expired:
        return f"node {orphan.node_id} does not answer"
    if node.incarnation != orphan.incarnation or (node.watched and not _heard(draft, node.node_id)):
        return f"node {orphan.node_id} has not said yet what it runs"
    return ""


def _heard(draft: Draft, node_id: str) -> bool:
    """Whether the node has said under this leader what it runs."""
    beat = draft.pulse.beats.get(node_id)
    return beat is not None and beat.epoch >= draft.epoch


def _adopt(draft: Draft, worker_id: str, orphan: Orphan, command_id: str) -> None:
    ledger, job_id, run_id = draft.ledger, orphan.job_id, orphan.run_id
    if not any(ledger.runs_of(job_id, run_id)):
        supersede(draft, job_id, run_id)
        slots = sum(o.slots for o in ledger.state.orphans.values() if _same_run(o, orphan))
        draft.emit(RunAdopted(job_id=job_id, run_id=run_id, command_id=command_id, slots=slots))
    draft.emit(
        WorkerAdopted(
            worker_id=worker_id,
            job_id=job_id,
            run_id=run_id,
            node_id=orphan.node_id,
            incarnation=orphan.incarnation,
            slots=orphan.slots,
            pid=orphan.pid,
        )
    )


def _same_run(one: Orphan, other: Orphan) -> bool:
    return (one.job_id, one.run_id) == (other.job_id, other.run_id)
