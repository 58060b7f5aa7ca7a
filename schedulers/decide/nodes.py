"""Node traffic: registration, heartbeats, ends of workers, expiry, a new leader.

What lives here: what a sign of life or its absence leads to. What may not: comparing an
inventory with the ledger (``reconcile``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from events.entities import Node, Worker
from events.errors import DuplicateNode, Invalid, NotLeader, UnknownNode
from events.facts import (
    LeaderStarted,
    NodeExpired,
    NodeForgotten,
    NodeRegistered,
    NodeReturned,
    WorkerEnded,
    WorkerHosted,
    WorkerLost,
    WorkerStopping,
)
from events.ledger import Ledger
from events.pulse import Pulse
from events.states import NODE_EXPIRED, WorkerState
from events.traffic import (
    FinishedReply,
    HeartbeatNodeReq,
    HeartbeatReply,
    InventoryReply,
    RegisterNodeReq,
    RegisterReply,
    WorkerFinishedReq,
)
from schedulers.decide.draft import Draft
from schedulers.decide.messages import Acknowledge, LedRead
from schedulers.decide.orders import ask
from schedulers.decide.proofs import bury
from schedulers.decide.reconcile import reconcile
from schedulers.decide.settle import settle
from schedulers.launcher import HostSeen, WorkerSeen, never_ran

NODES_AT_ONCE: Final = 500
"""That expire in one decision, at the most."""

BELIEVED_MS: Final = 366 * 86_400_000
"""How far above ours an epoch, which is made of milliseconds, may be: a clock may be wrong."""


def led(draft: Draft, message: LedRead) -> None:
    """This controller leads: every node gets a full term, and is asked what it runs. What
    earlier leaders may have left over follows."""
    draft.emit(
        LeaderStarted(
            epoch=draft.epoch,
            cluster=message.cluster,
            scheduler=message.scheduler,
            version=message.version,
        )
    )
    for node in list(draft.ledger.nodes.values()):
        if draft.rules.theirs(node):
            _let_go(draft, node)
        elif node.watched and not node.expired:
            draft.pulse.heard(node.node_id, draft.now)
            ask(draft, node)
        if node.expired and draft.ledger.live_by_node.get(node.node_id):
            draft.leave_node(node.node_id, node.since - draft.rules.expiry)
    unended = [job_id for job_id, job in draft.ledger.jobs.items() if not job.current.ended]
    if unended:
        draft.leave(*unended)


def _let_go(draft: Draft, node: Node) -> None:
    """The node of another scheduler, which led over this log before: its free slots are not
    ours to give. Where workers may live there it has expired, until that scheduler leads
    again; else it is forgotten."""
    if not draft.ledger.live_by_node.get(node.node_id):
        draft.emit(NodeForgotten(node_id=node.node_id))
    elif not node.expired:
        draft.emit(NodeExpired(node_id=node.node_id, last_seen=draft.now))


def register(draft: Draft, request: RegisterNodeReq) -> None:
    """A node offers its slots. Raises DuplicateNode, and Invalid where the backend has no
    agents."""
    _check_ours(draft, request.node_id)
    _check_epoch(draft, request.node_id, request.epoch)
    known = draft.ledger.nodes.get(request.node_id)
    _check_rival(draft, request, known)
    renewed = known is None or known.incarnation != request.incarnation
    offer = _offer(draft, request)
    if known is None or _offer_of(known) != offer:
        draft.emit(offer)
    node = draft.ledger.nodes[request.node_id]
    if node.expired:
        draft.emit(NodeReturned(node_id=node.node_id))
    if node.watched:
        # A fresh incarnation obeys no order of an earlier leader, so it may be used at
        # once; one that is known may be about to obey such an order until it has seen
        # this epoch.
        epoch = draft.epoch if renewed else request.epoch
        draft.pulse.heard(node.node_id, draft.now, epoch=epoch)
    if request.workers is not None and (renewed or _is_ours(draft, node, request)):
        inventory = InventoryReply(
            incarnation=request.incarnation, seq=0, epoch=draft.epoch, workers=request.workers
        )
        if not reconcile(draft, node, inventory):
            ask(draft, node, anew=True)
    else:
        ask(draft, node, anew=renewed)
    draft.answer = RegisterReply(
        epoch=draft.epoch, heartbeat_s=draft.rules.heartbeat_s, expiry_s=draft.rules.expiry_s
    )


def _check_epoch(draft: Draft, node_id: str, epoch: int) -> None:
    """An epoch above ours is another leader's, or one that the log has lost: either way this
    leadership is over. Raises Invalid for one that nobody can have had."""
    if epoch <= draft.epoch:
        return
    if epoch - draft.epoch > BELIEVED_MS:
        raise Invalid(f"epoch {epoch} lies years ahead of this leader's", path="$.epoch")
    draft.outranked_by = (node_id, epoch)
    raise NotLeader(f"node {node_id} has seen epoch {epoch}, above ours", epoch_seen=epoch)


def _check_ours(draft: Draft, node_id: str) -> None:
    if draft.rules.local_node not in ("", node_id):
        raise Invalid(
            "this controller's scheduler runs workers on its own machine and takes no nodes",
            path="$.node_id",
        )


def _is_ours(draft: Draft, node: Node, request: RegisterNodeReq) -> bool:
    """Whether the list in a registration was taken by this leader itself, at its start."""
    return not node.watched and request.epoch == draft.epoch


def _check_rival(draft: Draft, request: RegisterNodeReq, known: Node | None) -> None:
    if known is None or known.incarnation == request.incarnation:
        return
    facts = {"node_id": request.node_id, "addr": known.addr, "machine_id": known.machine_id}
    if request.incarnation in known.past and known.watched:
        raise DuplicateNode(
            f"a newer agent holds node id {request.node_id}: give one of them another", **facts
        )
    alive = not known.expired if known.watched else bool(draft.ledger.live_on(known.node_id))
    if alive and known.machine_id != request.machine_id and not known.watched:
        live = len(draft.ledger.live_on(known.node_id))
        raise DuplicateNode(
            f"{live} workers in the log live where this controller does not look, on another "
            f"{known.node_id} (another machine; of pods another namespace or cluster name): stop "
            "them first, with the setting that they were started with",
            **facts,
        )
    if alive and known.machine_id != request.machine_id:
        raise DuplicateNode(
            f"node id {request.node_id} is held by another agent, which is alive and has another "
            "machine or state directory: choose another id, or stop it and wait for its expiry",
            **facts,
        )
    left = [w.worker_id for w in draft.ledger.live_on(known.node_id)]
    if left and known.machine_id != request.machine_id:
        # Nobody but the old machine can tell that they are gone, and it would be refused.
        raise DuplicateNode(
            f"node {request.node_id} fell silent with {len(left)} workers, which may live on "
            "where it was (another machine or state directory): let its agent return, choose "
            f"another id, or say with `slotbus node confirm-dead {request.node_id}` that they are "
            "over",
            workers=left[:20],
            **facts,
        )


def _offer(draft: Draft, request: RegisterNodeReq) -> NodeRegistered:
    return NodeRegistered(
        node_id=request.node_id,
        incarnation=request.incarnation,
        task_slots=request.task_slots,
        machine_id=request.machine_id,
        addr=request.addr,
        labels=request.labels,
        version=request.version,
        watched=request.node_id != draft.rules.local_node,
    )


def _offer_of(node: Node) -> NodeRegistered:
    return NodeRegistered(
        node_id=node.node_id,
        incarnation=node.incarnation,
        task_slots=node.task_slots,
        machine_id=node.machine_id,
        addr=node.addr,
        labels=node.labels,
        version=node.version,
        watched=node.watched,
    )


def heartbeat(draft: Draft, request: HeartbeatNodeReq) -> None:
    """A sign of life. Raises UnknownNode (register again), DuplicateNode, Invalid."""
    _check_ours(draft, request.node_id)
    _check_epoch(draft, request.node_id, request.epoch)
    node = draft.ledger.nodes.get(request.node_id)
    if node is None or node.incarnation != request.incarnation:
        if node is not None and request.incarnation in node.past:
            raise DuplicateNode(
                f"a newer agent holds node id {request.node_id}", node_id=request.node_id
            )
        raise UnknownNode(
            f"node {request.node_id} is not registered like this: register",
            node_id=request.node_id,
        )
    if node.watched:
        beat = draft.pulse.heard(node.node_id, draft.now, epoch=request.epoch, seq=request.seq)
        differs = request.digest and request.digest != draft.ledger.digest_of(node.node_id)
        if node.expired:
            draft.emit(NodeReturned(node_id=node.node_id))
            ask(draft, node)
        elif beat.owed or differs:
            ask(draft, node)
    draft.answer = HeartbeatReply(epoch=draft.epoch)


def only_beats(ledger: Ledger, pulse: Pulse, request: HeartbeatNodeReq, now: datetime) -> bool:
    """Takes a heartbeat that says nothing but that its node lives, as ``heartbeat`` would;
    False, with nothing done, where there is anything to decide."""
    node_id = request.node_id
    node, beat = ledger.nodes.get(node_id), pulse.beats.get(node_id)
    if (
        node is None
        or beat is None
        or beat.owed
        or not node.watched
        or node.incarnation != request.incarnation
        or node.state is NODE_EXPIRED
        or now - beat.last_seen > pulse.expiry
        or request.epoch > ledger.state.epoch
        or (request.digest and request.digest != ledger.digest_of(node_id))
    ):
        return False
    pulse.heard_again(beat, now, request.epoch, request.seq)
    return True


def finished(draft: Draft, request: WorkerFinishedReq) -> None:
    """A worker ended. Repeated and unknown ends are acknowledged and change nothing; so is
    that of a copy, while the worker itself lives on another node."""
    worker = draft.ledger.workers.get(request.worker_id)
    if worker is not None and not worker.gone and worker.node_id == request.node_id:
        end_worker(draft, worker, request)
        settle(draft, worker.job_id)
    draft.effect(Acknowledge(request.node_id, request.worker_id))
    draft.answer = FinishedReply(epoch=draft.epoch)


def seen(draft: Draft, sight: WorkerSeen) -> None:
    """A launcher can't say that a worker runs, or that it has ended."""
    worker = draft.ledger.workers.get(sight.worker_id)
    if worker is None or worker.gone:
        return
    if worker.state is WorkerState.STOPPING:
        if worker.reason != sight.reason:
            draft.emit(
                WorkerStopping(
                    worker_id=worker.worker_id,
                    reason=sight.reason,
                    force=worker.force,
                    grace_s=worker.grace_s,
                )
            )
    elif sight.lost and worker.state is not WorkerState.LOST:
        draft.emit(WorkerLost(worker_id=worker.worker_id, reason=sight.reason))
    settle(draft, worker.job_id)


def hosted(draft: Draft, sight: HostSeen) -> None:
    """A launcher has seen on which machine a worker is; a new leader's says so once more."""
    worker = draft.ledger.workers.get(sight.worker_id)
    if worker is not None and not worker.gone and worker.host != sight.host:
        draft.emit(WorkerHosted(worker_id=worker.worker_id, host=sight.host))


def end_worker(draft: Draft, worker: Worker, end: WorkerFinishedReq) -> None:
    """Records the end of a worker, under the state its exit means."""
    state = end_state(worker, end)
    ran = worker.launched or not never_ran(end)
    draft.emit(
        WorkerEnded(
            worker_id=worker.worker_id,
            state=state,
            launched=ran,
            exit_code=end.exit_code,
            signal=end.signal,
            reason=end.reason or _how(end.exit_code, end.signal),
        )
    )


def end_state(worker: Worker, end: WorkerFinishedReq) -> WorkerState:
    """Finished: exit code 0, or asked to stop; lost: nobody knows, or it was taken away;
    else failed. Without an exit, as the node says."""
    asked = worker.state is WorkerState.STOPPING
    if _without_exit(end):
        if end.state is WorkerState.FINISHED and asked:
            return WorkerState.FINISHED
        return WorkerState.FAILED if end.state is WorkerState.FAILED else WorkerState.LOST
    if asked:
        return WorkerState.FINISHED
    if end.state is WorkerState.LOST:
        return WorkerState.LOST
    return WorkerState.FINISHED if end.exit_code == 0 else WorkerState.FAILED


def _without_exit(end: WorkerFinishedReq) -> bool:
    return end.exit_code is None and end.signal is None


def _how(exit_code: int | None, signal: int | None) -> str:
    if signal is not None:
        return f"signal {signal}"
    return "exit unknown" if exit_code is None else f"exit {exit_code}"


def expire(draft: Draft) -> None:
    """Declares nodes silent for longer than the expiry expired, their workers lost."""
    silent = {}
    for node_id in draft.pulse.expired(draft.now, NODES_AT_ONCE):
        silent[node_id] = last_seen = draft.pulse.beats[node_id].last_seen
        draft.pulse.forget(node_id)
        draft.emit(NodeExpired(node_id=node_id, last_seen=last_seen))
    lose(draft, silent)
    if draft.pulse.overdue(draft.now):
        draft.leave()


def lose(draft: Draft, silent: dict[str, datetime]) -> None:
    """The workers of nodes that have expired, and were heard last at these times, are lost,
    with all that follows from it."""
    jobs: dict[str, None] = {}
    for node_id, last_seen in silent.items():
        node = draft.ledger.nodes.get(node_id)
        if node is None or not node.expired:
            continue
        if draft.full():
            draft.leave_node(node_id, last_seen)
            continue
        if node.dead:
            bury(draft, node, jobs)
            continue
        for worker in draft.ledger.live_on(node_id):
            jobs[worker.job_id] = None
            if worker.state in (WorkerState.ASSIGNED, WorkerState.RUNNING):
                if draft.full():
                    draft.leave_node(node_id, last_seen)
                    break
                reason = f"node {node_id} silent since {last_seen:%H:%M:%S}"
                draft.emit(WorkerLost(worker_id=worker.worker_id, reason=reason))
    for job_id in jobs:
        settle(draft, job_id)
