"""Draining: a node is emptied by moving or stopping the runs that have workers on it.

What lives here: which run leaves when, what stays and why, and the end of a drain. What may
not: the run that follows one that moved (``restarts``), and where it is placed (``waiting``).

A run moves as a whole: it is stopped, and when its workers are gone the next one is placed.
It is begun only when there is room for it elsewhere, what it holds itself on other nodes
included; that room is spoken for until then (``placing.spoken_for``).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeAlias

from msgspec import Struct

from events import facts as f
from events.capacity import Pair
from events.entities import Drain, Node, Run, Worker
from events.errors import UnknownNode
from events.ledger import Ledger
from events.messages import DrainReply, DrainReq, MovedRun, RemainingWorker
from events.states import RunState, WorkerState
from schedulers.decide.draft import Draft
from schedulers.decide.orders import refuse, succeed
from schedulers.decide.placing import Selector, plan_elsewhere, wish_of
from schedulers.decide.restarts import stop_others
from schedulers.decide.settle import settle
from schedulers.decide.waiting import kept_from

TOLD: Final = 1_000
"""Rows of each kind in a reply, at the most."""

MOVES_AT_ONCE: Final = 50
"""Each is looked at in every decision until it is over."""

SelectorKey: TypeAlias = tuple[Pair, ...]

LEAVING: Final = "it is about to leave"

_NEWS: Final = (
    f.LeaderStarted,
    f.NodeDraining,
    f.NodeExpired,
    f.NodeForgotten,
    f.NodeRegistered,
    f.NodeReturned,
    f.NodeUncordoned,
    f.RunEnded,
    f.RunPlaced,
    f.RunRunning,
    f.WorkerEnded,
)
"""What may make room somewhere, or a node empty."""


def drain(draft: Draft, request: DrainReq, command_id: str, digest: str) -> None:
    """Begins to empty a node; a drain of it that is under way is over."""
    node_id, deadline = request.node_id, draft.after(request.deadline_s)
    draft.emit(
        f.CommandTaken(
            command_id=command_id, kind="drain", digest=digest, node_id=node_id, deadline=deadline
        )
    )
    node = draft.ledger.nodes.get(node_id)
    if node is None:
        refuse(draft, command_id, UnknownNode(f"no node {node_id} is known", node_id=node_id))
        return
    cancel(draft, node, f"another drain took its place: {command_id}")
    draft.ledger.stuck.pop(node_id, None)
    draft.emit(
        f.NodeDraining(
            node_id=node_id, command_id=command_id, deadline=deadline, force=request.force
        )
    )


def cancel(draft: Draft, node: Node, reason: str) -> None:
    """The drain of a node, if there is one, is over before its time."""
    if node.drain is not None:
        reply = progress(draft, node, node.drain, reason)
        succeed(draft, node.drain.command_id, reply)


def advance(draft: Draft, *, look: bool) -> None:
    """Goes on with every drain, as far as what just happened, or a ``look``, may allow it."""
    if not look and not any(isinstance(fact, _NEWS) for fact in draft.events):
        return
    for node_id in list(draft.ledger.draining):
        node = draft.ledger.nodes[node_id]
        if node.drain is not None:
            _advance(draft, node, node.drain)


class _NoRoom(Struct, frozen=True):
    """A run of so many ``slots`` found ``room`` for so many."""

    slots: int
    room: int


class _Look(Struct):
    """What is found once for all runs that want to leave, between two facts. ``hopeless``:
    of those with a wish in common, and nothing on other nodes, the first that had no room, and
    how much there was. ``stuck``: of the ``sure`` runs, which have no room though nothing were
    kept for others, by selector, the fewest slots that one wants."""

    facts: int = -1
    moving: int = 0
    kept: dict[int, list[Selector]] = {}
    hopeless: dict[Hashable, _NoRoom] = {}
    sure: int = 0
    stuck: dict[SelectorKey, int] = {}

    def fresh(self, draft: Draft) -> _Look:
        if self.facts != len(draft.events):
            self.facts, self.moving = len(draft.events), _moving(draft.ledger)
            self.kept, self.hopeless = {}, {}
            self.sure, self.stuck = 0, {}
        return self

    def kept_from(self, draft: Draft, priority: int) -> list[Selector]:
        if priority not in self.kept:
            self.kept[priority] = kept_from(draft, priority)
        return self.kept[priority]

    def has_no_room(self, draft: Draft, selector: SelectorKey, slots: int) -> None:
        """A run that has nothing elsewhere can't leave."""
        if _free(draft.ledger, selector) < slots:
            self.sure += 1
            self.stuck[selector] = min(slots, self.stuck.get(selector, slots))


def _free(ledger: Ledger, selector: SelectorKey) -> int:
    return (ledger.capacity.part(dict(selector)) if selector else ledger.capacity).free


def _advance(draft: Draft, node: Node, drain: Drain) -> None:
    ledger = draft.ledger
    stuck = ledger.stuck.get(node.node_id)
    still = stuck is not None and all(_free(ledger, s) < least for s, least in stuck.items())
    if not still and not _let_leave(draft, node, drain):
        return
    empty = not draft.ledger.live_by_node.get(node.node_id)
    if empty or draft.now >= drain.deadline:
        draft.emit(f.NodeCordoned(node_id=node.node_id))
        succeed(draft, drain.command_id, progress(draft, node, drain))


def _let_leave(draft: Draft, node: Node, drain: Drain) -> bool:
    """Looks at each run that has not left yet. False where the draft is full before that."""
    look, stuck = _Look(), draft.ledger.stuck
    stuck.pop(node.node_id, None)
    runs = runs_on(draft.ledger, node.node_id)
    for run in runs:
        if draft.full():
            draft.leave()
            return False
        if run.state is RunState.RUNNING and not why_not(draft, node, drain, run, look):
            _leave(draft, node, drain, run)
    if look.sure == len(runs):
        stuck[node.node_id] = look.stuck
    return True


def _leave(draft: Draft, node: Node, drain: Drain, run: Run) -> None:
    moves = run.policy.on_drain == "move"
    what = "it moves off" if moves else "it was stopped for the drain of"
    reason = f"{what} node {node.node_id} ({drain.command_id})"
    draft.emit(
        f.RunStopping(
            job_id=run.job_id,
            run_id=run.run_id,
            reason=reason,
            restart=moves,
            drain=drain.command_id,
        )
    )
    stop_others(draft, run, reason)
    settle(draft, run.job_id)


def runs_on(ledger: Ledger, node_id: str) -> list[Run]:
    """The runs with live workers on a node, those first that would be placed first."""
    workers = ledger.live_by_node.get(node_id, {}).values()
    runs = {(worker.job_id, worker.run_id): None for worker in workers}
    found = [ledger.jobs[job_id].run(run_id) for job_id, run_id in runs]
    return sorted(found, key=lambda run: (-run.priority, run.position, run.job_id, run.run_id))


def why_not(draft: Draft, node: Node, drain: Drain, run: Run, look: _Look) -> str:
    """Why a run can't be made to leave a node now, or ""."""
    ledger = draft.ledger
    if node.expired:
        return "its node is silent"
    if run.state is RunState.STARTING:
        return "its run is starting"
    if run.state is not RunState.RUNNING:
        return "it is being stopped"
    if run.policy.on_drain != "move" or drain.force:
        return ""
    look.fresh(draft)
    if look.moving >= MOVES_AT_ONCE:
        return "others move before it"
    here = ledger.tally(run.job_id, run.run_id)
    if here.silent or ledger.live_count(run.job_id) > here.live:
        return "nowhere to move: workers of its job are on silent nodes"
    missing = _missing_elsewhere(draft, node, run, look)
    return f"nowhere to move: {missing} slots missing" if missing else ""


def _missing_elsewhere(draft: Draft, node: Node, run: Run, look: _Look) -> int:
    """Slots that are missing for a run to move. Where one that wants the same had no room, a
    run that has nothing elsewhere and is not smaller has none either."""
    wish = wish_of(draft.rules, run.scheduler_config, run.slots)
    alone = all(worker.node_id == node.node_id for worker in draft.ledger.live_of(run.job_id))
    selector = tuple(sorted(wish.selector.items()))
    key = (selector, run.priority)
    known = look.hopeless.get(key) if alone else None
    if known is not None and run.slots >= known.slots:
        look.has_no_room(draft, selector, run.slots)
        return run.slots - known.room
    plan = plan_elsewhere(draft, run, look.kept_from(draft, run.priority))
    if alone and plan.missing:
        look.has_no_room(draft, selector, run.slots)
        look.hopeless[key] = _NoRoom(run.slots, run.slots - plan.missing)
    return plan.missing


def _moving(ledger: Ledger) -> int:
    """Runs on the move whose workers can be seen to end."""
    return sum(not ledger.tally(job_id, run_id).silent for job_id, run_id in ledger.moving)


# --- what is told of it -----------------------------------------------------------------


class _Left(Struct):
    """What is still on a node: the first rows, and how many there are."""

    rows: list[RemainingWorker]
    count: int


def progress(draft: Draft, node: Node, drain: Drain, reason: str = "") -> DrainReply:
    """How far a drain has come."""
    left = _remaining(draft, node, drain)
    stopped = [worker_id for run in drain.runs if not run.moved for worker_id in run.workers]
    gone = [worker_id for worker_id in stopped if _is_gone(draft.ledger, worker_id)]
    return DrainReply(
        command_id=drain.command_id,
        node_id=node.node_id,
        state=node.state,
        complete=left.count == 0,
        moved=_moved(draft.ledger, drain)[:TOLD],
        stopped=gone[:TOLD],
        remaining=left.rows,
        remaining_count=left.count,
        reason=reason,
    )


def begun(ledger: Ledger, node: Node, command_id: str) -> DrainReply:
    """What is known of a drain that goes on, for who does not wait for its end."""
    workers = ledger.live_on(node.node_id)
    return DrainReply(
        command_id=command_id,
        node_id=node.node_id,
        state=node.state,
        complete=not workers,
        remaining=[_row(worker, LEAVING) for worker in workers[:TOLD]],
        remaining_count=len(workers),
    )


def _remaining(draft: Draft, node: Node, drain: Drain) -> _Left:
    workers = draft.ledger.live_on(node.node_id)
    reasons: dict[tuple[str, int], str] = {}
    look = _Look()
    rows = []
    for worker in workers[:TOLD]:
        key = (worker.job_id, worker.run_id)
        if worker.state is WorkerState.STOPPING and not node.expired:
            reason = "it is being stopped"
        else:
            if key not in reasons:
                run = draft.ledger.run_of(worker)
                reasons[key] = why_not(draft, node, drain, run, look)
            reason = reasons[key] or LEAVING
        rows.append(_row(worker, reason))
    return _Left(rows, len(workers))


def _row(worker: Worker, reason: str) -> RemainingWorker:
    return RemainingWorker(
        worker_id=worker.worker_id,
        job_id=worker.job_id,
        run_id=worker.run_id,
        slots=worker.slots,
        reason=reason,
    )


def _moved(ledger: Ledger, drain: Drain) -> list[MovedRun]:
    found = []
    for moved in drain.runs:
        if not moved.moved:
            continue
        runs = list(ledger.runs_of(moved.job_id))
        after = next((run for run in runs if run.restart_of == moved.run_id), None)
        old = next((run for run in runs if run.run_id == moved.run_id), None)
        state = after.state if after else old.state if old else RunState.STOPPED
        found.append(
            MovedRun(
                job_id=moved.job_id,
                run_id=moved.run_id,
                to_run=after.run_id if after else None,
                state=state,
            )
        )
    return found


def _is_gone(ledger: Ledger, worker_id: str) -> bool:
    worker = ledger.workers.get(worker_id)
    return worker is None or worker.gone
