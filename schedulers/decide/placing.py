"""Placing runs: what placement is asked for, with the nodes as a decision sees them.

What lives here: the way from the ledger to placement and back to facts, and the room that is
spoken for by runs on the move. What may not: choosing nodes (``schedulers.placement``), and
whose turn it is (``waiting``).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from events.capacity import Capacity, Part
from events.entities import Run
from events.facts import PassedOver, RunPlaced, WorkerAssigned
from events.messages import SchedulerConfig
from events.states import NodeState
from schedulers.decide.draft import Draft, Rules, SpokenFor
from schedulers.decide.orders import launch, obeys
from schedulers.placement import NAMED_NODES, NO_ROOM, Candidate, Fleet, Plan, Wish, place

KEPT: Final = "kept for a start that waits"

LOOKED_AT: Final = 100
"""Nodes, for some whose labels are others."""

Selector: TypeAlias = dict[str, str]


def wish_of(
    rules: Rules, config: SchedulerConfig, slots: int, excluded: dict[str, str] | None = None
) -> Wish:
    """What placement is asked for on behalf of a run of ``slots``."""
    return Wish(
        slots=slots,
        selector=config.selector if rules.chooses_nodes else {},
        spread=config.spread,
        per_worker=rules.per_worker,
        excluded=excluded or {},
    )


def plan_for(draft: Draft, wish: Wish, kept: Sequence[dict[str, str]] = ()) -> Plan:
    """Asks placement, with the nodes as this decision sees them, but for those whose labels
    match a selector of ``kept``, which are left to starts that wait, and for what is spoken
    for by runs on the move."""
    return _plan(draft, wish, kept, {node: -slots for node, slots in spoken_for(draft).items()})


def plan_elsewhere(draft: Draft, run: Run, kept: Sequence[dict[str, str]]) -> Plan:
    """What placement would say to a run of its own kind, were this one gone."""
    change = _own_slots(draft, run)
    for node_id, slots in spoken_for(draft).items():
        change[node_id] = change.get(node_id, 0) - slots
    return _plan(draft, wish_of(draft.rules, run.scheduler_config, run.slots), kept, change)


def spoken_for(draft: Draft) -> dict[str, int]:
    """Slots, by node, that runs which are being stopped in order to move will need beside
    those that they still hold: what was promised to them is not given to others. One with
    workers on silent nodes, or without room anywhere, was promised nothing."""
    known = draft.spoken_for
    if known is None or known.facts != len(draft.events):
        known = draft.spoken_for = SpokenFor(len(draft.events), _promises(draft))
    return known.slots


def _promises(draft: Draft) -> dict[str, int]:
    promised: dict[str, int] = {}
    for job_id, run_id in draft.ledger.moving:
        if draft.ledger.tally(job_id, run_id).silent:
            continue
        run = draft.ledger.jobs[job_id].run(run_id)
        own = _own_slots(draft, run)
        change = {node: own.get(node, 0) - promised.get(node, 0) for node in own | promised}
        plan = _plan(draft, wish_of(draft.rules, run.scheduler_config, run.slots), (), change)
        if plan.missing:
            continue
        needed: dict[str, int] = {}
        for share in plan.shares:
            needed[share.node_id] = needed.get(share.node_id, 0) + share.slots
        for node_id, slots in needed.items():
            more = slots - own.get(node_id, 0)
            if more > 0:
                promised[node_id] = promised.get(node_id, 0) + more
    return promised


def _own_slots(draft: Draft, run: Run) -> dict[str, int]:
    """What a run holds on each node."""
    own: dict[str, int] = {}
    for worker in draft.ledger.live_of(run.job_id, run.run_id):
        own[worker.node_id] = own.get(worker.node_id, 0) + worker.slots
    return own


def _plan(draft: Draft, wish: Wish, kept: Sequence[dict[str, str]], change: dict[str, int]) -> Plan:
    """``change``: how many more (or fewer) slots some nodes have free than they have now."""
    capacity = draft.ledger.capacity
    if {} in kept:
        every = PassedOver(reason=KEPT, count=capacity.with_room, nodes=[])
        return Plan([], wish.slots, 0, [every])
    shut = [
        PassedOver(reason=str(state), count=count, nodes=nodes)
        for state, (count, nodes) in capacity.shut(NAMED_NODES).items()
    ]
    count, nodes = capacity.full(NAMED_NODES)
    if count:
        shut.append(PassedOver(reason=NO_ROOM, count=count, nodes=nodes))
    selector = wish.selector
    among = capacity.part(selector) if selector else capacity
    others = _others(draft, selector, capacity.with_room - among.with_room)
    changed = _changed(draft, change)
    if selector:
        nodes_by = draft.ledger.nodes
        changed = {n: room for n, room in changed.items() if matches(nodes_by[n].labels, selector)}
    free, with_room = among.free, among.with_room
    for node_id, room in changed.items():
        before = draft.ledger.free_slots(node_id)
        free += room - before
        with_room += (room > 0) - (before > 0)
    out_of_question = [*others, *shut]
    whole = not (wish.excluded or kept)
    if whole and wish.slots > free:  # no need to look at each of them
        return Plan([], wish.slots - free, free, out_of_question)
    walk = _ranked(draft, among, changed)
    fleet = Fleet(
        ranked=(_candidate(draft, node_id, room, kept) for room, node_id in walk),
        further=(node_id for _, node_id in walk),
        count=with_room,
        free=free,
        shut=out_of_question,
    )
    return place(fleet, wish)


def _others(draft: Draft, selector: Selector, count: int) -> list[PassedOver]:
    """The nodes with room that a selector does not name, some of them by name."""
    if not count:
        return []
    nodes = draft.ledger.nodes
    some = islice(draft.ledger.capacity.most_free(), LOOKED_AT)
    named = islice((n for n in some if not matches(nodes[n].labels, selector)), NAMED_NODES)
    pairs = sorted(selector.items())
    reason = "its labels are not " + ", ".join(f"{name}={value}" for name, value in pairs)
    if len(pairs) == 1:
        reason = f"label {pairs[0][0]} is not {pairs[0][1]}"
    return [PassedOver(reason=reason, count=count, nodes=sorted(named))]


def _changed(draft: Draft, change: dict[str, int]) -> dict[str, int]:
    """What these nodes would have free, as far as they may be used. Where a node runs workers
    that the log can't confirm, their slots are taken."""
    ledger = draft.ledger
    found = {}
    for node_id in [*change, *(other for other in ledger.doubted if other not in change)]:
        more = change.get(node_id, 0) - sum(ledger.doubted.get(node_id, {}).values())
        node = ledger.nodes.get(node_id)
        if node is not None and node.state is NodeState.READY:
            found[node_id] = max(0, node.task_slots - ledger.held_slots(node_id) + more)
    return found


def _ranked(
    draft: Draft, among: Capacity | Part, changed: Mapping[str, int]
) -> Iterator[tuple[int, str]]:
    """Room and id of the nodes that have room, the most free first, ties by id; and after
    them, likewise, those that this leader has not heard from yet. The log knows what they have,
    and their agents confirm a launch or refuse it; but they may have died with the last leader."""
    walk = _by_room(draft, among, changed)
    if draft.pulse.heard_under(draft.epoch) == draft.ledger.capacity.present:
        yield from walk
        return
    nodes, unheard = draft.ledger.nodes, []
    for room, node_id in walk:
        node = nodes[node_id]
        if obeys(draft, node):
            yield room, node_id
        else:
            unheard.append((room, node_id))
    yield from unheard


def _by_room(
    draft: Draft, among: Capacity | Part, changed: Mapping[str, int]
) -> Iterator[tuple[int, str]]:
    ledger = draft.ledger
    usual = (
        (-ledger.free_slots(node_id), node_id)
        for node_id in among.most_free()
        if node_id not in changed
    )
    other = sorted((-room, node_id) for node_id, room in changed.items() if room)
    for minus_room, node_id in heapq.merge(usual, other) if other else usual:
        yield -minus_room, node_id


def _candidate(draft: Draft, node_id: str, room: int, kept: Sequence[dict[str, str]]) -> Candidate:
    node = draft.ledger.nodes[node_id]
    blocked = ""
    if draft.rules.theirs(node):
        blocked = "belongs to another scheduler"
    elif any(matches(node.labels, selector) for selector in kept):
        blocked = KEPT
    return Candidate(node_id, room, node.labels, blocked)


def matches(labels: dict[str, str], selector: dict[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in selector.items())


def put_workers(draft: Draft, run: Run, plan: Plan, *, anew: bool = False) -> None:
    """Records where the workers go, and asks for their launch. ``anew``: the run had waited,
    and its time begins now."""
    rules = draft.rules
    draft.emit(
        RunPlaced(
            job_id=run.job_id,
            run_id=run.run_id,
            attempt=run.attempt + 1,
            deadline=draft.after(rules.start_timeout_s) if anew else None,
            due=draft.after(rules.start_s) if anew else None,
            passed_over=plan.passed_over,
        )
    )
    for share in plan.shares:
        worker_id = draft.fresh_worker_id()
        draft.emit(
            WorkerAssigned(
                worker_id=worker_id,
                job_id=run.job_id,
                run_id=run.run_id,
                node_id=share.node_id,
                incarnation=draft.ledger.nodes[share.node_id].incarnation,
                slots=share.slots,
            )
        )
        launch(draft, draft.ledger.workers[worker_id])
