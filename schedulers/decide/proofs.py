"""Proofs: when a worker that nobody can ask counts as gone.

What lives here: leases that are over, and a person's word on a dead node. What may not: what
follows for its run (``settle``), and silence itself, which proves nothing (``nodes``).
"""

from __future__ import annotations

from typing import Final

from events.entities import Node, Worker
from events.errors import NodeAlive, UnknownNode
from events.facts import CommandTaken, NodeConfirmedDead, WorkerEnded
from events.messages import ConfirmDeadReply, ConfirmDeadReq
from events.states import WorkerState
from schedulers.decide.draft import Draft
from schedulers.decide.orders import refuse, succeed
from schedulers.decide.settle import settle

TOLD_WORKERS: Final = 1_000
"""Ids in a reply, at the most."""


def leases(draft: Draft) -> None:
    """Workers whose leases are over are gone: their supervisors have stopped them."""
    ledger = draft.ledger
    jobs: dict[str, None] = {}
    while ledger.leases and ledger.leases[0][0] <= draft.now:
        if draft.full():
            draft.leave()
            break
        worker = ledger.workers[ledger.leases[0][1]]
        node = ledger.nodes[worker.node_id]
        lease_s = ledger.run_of(worker).scheduler_config.stop_after_s
        _gone(
            draft,
            worker,
            f"its lease of {lease_s:g} s is over: nobody has heard node {node.node_id} since "
            f"{node.last_seen:%H:%M:%S}",
        )
        jobs[worker.job_id] = None
    for job_id in jobs:
        settle(draft, job_id)


def confirm_dead(draft: Draft, request: ConfirmDeadReq, command_id: str, digest: str) -> None:
    """A person says that nothing runs on an expired node any more."""
    node_id = request.node_id
    draft.emit(
        CommandTaken(command_id=command_id, kind="confirm_dead", digest=digest, node_id=node_id)
    )
    node = draft.ledger.nodes.get(node_id)
    if node is None:
        refuse(draft, command_id, UnknownNode(f"no node {node_id} is known", node_id=node_id))
        return
    if not node.expired:
        text = (
            f"node {node_id} is {node.state} and not expired: only of a node that is silent can "
            "a person say that it is dead (drain it, or stop its agent and wait for its expiry)"
        )
        refuse(draft, command_id, NodeAlive(text, node_id=node_id, state=str(node.state)))
        return
    workers = [worker.worker_id for worker in draft.ledger.live_on(node_id)]
    draft.emit(NodeConfirmedDead(node_id=node_id, command_id=command_id))
    reply = ConfirmDeadReply(
        command_id=command_id,
        node_id=node_id,
        count=len(workers),
        workers=workers[:TOLD_WORKERS],
    )
    succeed(draft, command_id, reply)
    jobs: dict[str, None] = {}
    bury(draft, node, jobs)
    for job_id in jobs:
        settle(draft, job_id)


def bury(draft: Draft, node: Node, jobs: dict[str, None]) -> None:
    """The workers of a node that is dead are gone; as many as the record has room for, the
    others in the next decision. ``jobs`` gets those concerned."""
    for worker in draft.ledger.live_on(node.node_id):
        if draft.full():
            draft.leave_node(node.node_id, node.last_seen or draft.now)
            return
        jobs[worker.job_id] = None
        _gone(draft, worker, f"node {node.node_id} is dead, as a person confirmed")


def _gone(draft: Draft, worker: Worker, reason: str) -> None:
    draft.emit(
        WorkerEnded(
            worker_id=worker.worker_id,
            state=WorkerState.LOST,
            launched=worker.launched,
            reason=reason,
        )
    )
