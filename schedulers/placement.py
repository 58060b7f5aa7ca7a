"""Placement: which nodes take how many slots of a run.

What lives here: pure functions from a fleet of nodes to a plan, and why each other node was
not taken. What may not: the ledger, worker ids, anything that starts a worker.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec import Struct

from events.facts import PassedOver
from events.ids import MAX_WORKERS_A_RUN

NAMED_NODES: Final = 5
"""How many nodes a reason names; the rest is counted."""

TOLD_REASONS: Final = 20
"""Reasons of a plan, at the most; the rest is told as one."""

OTHER_REASONS: Final = "other reasons"
NOT_NEEDED: Final = "not needed: the nodes taken had room enough"
NO_ROOM: Final = "no free slots"


class Candidate(Struct, frozen=True, gc=False):
    """A node with room, as placement sees it; ``blocked``: why it may not be taken, or ""."""

    node_id: str
    free: int
    labels: dict[str, str]
    blocked: str = ""


class Fleet(Struct, frozen=True, kw_only=True):
    """All nodes. ``ranked``: the ``count`` of them that have room, with ``free`` slots
    together, the most free first and ties by id; it is walked once, and only as far as it
    must. ``further``: the ids of those that it has not come to by then. ``shut``: those that are
    out of question, whatever is wished."""

    ranked: Iterable[Candidate]
    further: Iterable[str]
    count: int
    free: int
    shut: list[PassedOver] = []


class Wish(Struct, frozen=True, kw_only=True):
    """What is to be placed. ``per_worker``: the most slots one worker may have (None: as
    many as its node has free). ``excluded``: why nodes are out of question, by id."""

    slots: int
    selector: dict[str, str] = {}
    spread: str = "pack"
    per_worker: int | None = None
    excluded: dict[str, str] = {}


class Share(Struct, frozen=True):
    """One worker: this many slots on this node."""

    node_id: str
    slots: int


class Plan(Struct, frozen=True):
    """``shares`` in the order of filling; ``missing`` slots had no room (then nothing may
    be placed). ``free``: what the eligible nodes had, where slots are missing; else at least
    that, since nodes that were not needed are not looked at."""

    shares: list[Share]
    missing: int
    free: int
    passed_over: list[PassedOver]


class _Found(Struct):
    """``rejected``: who was looked at and may not be taken, by reason."""

    eligible: list[Candidate]
    room: int
    looked_at: int
    rejected: dict[str, list[Candidate]]


def place(fleet: Fleet, wish: Wish) -> Plan:
    """Fills the node with the most free slots first, then the next; ties by node id.

    With ``spread="even"`` slots are dealt one by one, each to the node that has the most
    left. The rule of filling is Arroyo's node scheduler's.
    """
    found = _look(fleet.ranked, wish)
    deal = _deal if wish.spread == "even" else _pack
    amounts = deal(found.eligible, min(wish.slots, found.room))
    rejected = sum(c.free for each in found.rejected.values() for c in each)
    spare = [c.node_id for c in found.eligible if c.node_id not in amounts]
    unused = len(spare) + fleet.count - found.looked_at
    spare += islice(fleet.further, max(0, NAMED_NODES - len(spare)))
    passed_over = [_tell(reason, each) for reason, each in found.rejected.items()]
    if unused:
        spare_named = spare[:NAMED_NODES]
        passed_over.append(PassedOver(reason=NOT_NEEDED, count=unused, nodes=spare_named))
    passed_over += fleet.shut
    return Plan(
        shares=[
            Share(node_id, slots)
            for node_id, amount in amounts.items()
            for slots in _cut(amount, wish.per_worker)
        ],
        missing=wish.slots - min(wish.slots, found.room),
        free=fleet.free - rejected,
        passed_over=_most_frequent(passed_over),
    )


def too_many_workers(plan: Plan, *, beside: int = 0) -> bool:
    """Whether a run that has workers already would have more than the stated limit."""
    return len(plan.shares) + beside > MAX_WORKERS_A_RUN


def _look(walk: Iterable[Candidate], wish: Wish) -> _Found:
    """Looks at nodes until there is room enough; dealing needs as many nodes as slots, since
    none but the most free can ever be dealt one."""
    found = _Found([], 0, 0, {})
    even = wish.spread == "even"
    for candidate in walk:
        found.looked_at += 1
        reason = _why_not(candidate, wish)
        if reason:
            found.rejected.setdefault(reason, []).append(candidate)
            continue
        found.eligible.append(candidate)
        found.room += candidate.free
        if (len(found.eligible) if even else found.room) >= wish.slots:
            break
    return found


def _why_not(candidate: Candidate, wish: Wish) -> str:
    if candidate.blocked:
        return candidate.blocked
    if candidate.node_id in wish.excluded:
        return f"failed in this start: {wish.excluded[candidate.node_id]}"
    for name, value in wish.selector.items():
        if candidate.labels.get(name) != value:
            return f"label {name} is not {value}"
    return ""


def _pack(eligible: list[Candidate], slots: int) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for candidate in eligible:
        if slots <= 0:
            break
        amounts[candidate.node_id] = min(candidate.free, slots)
        slots -= amounts[candidate.node_id]
    return amounts


def _deal(eligible: list[Candidate], slots: int) -> dict[str, int]:
    """What dealing one by one comes to: all are brought down to one level, and the rest goes
    to the first by id of those that stand there."""
    low, level = 0, max((c.free for c in eligible), default=0)
    while low < level:
        middle = (low + level) // 2
        if sum(max(0, c.free - middle) for c in eligible) > slots:
            low = middle + 1
        else:
            level = middle
    rest = slots - sum(max(0, c.free - level) for c in eligible)
    one_more = set(heapq.nsmallest(rest, (c.node_id for c in eligible if c.free >= level)))
    amounts = {c.node_id: max(0, c.free - level) + (c.node_id in one_more) for c in eligible}
    return {node_id: amount for node_id, amount in amounts.items() if amount}


def _cut(amount: int, per_worker: int | None) -> list[int]:
    if per_worker is None or amount <= per_worker:
        return [amount]
    whole, rest = divmod(amount, per_worker)
    return [per_worker] * whole + ([rest] if rest else [])


def _most_frequent(reasons: list[PassedOver]) -> list[PassedOver]:
    """By reason; many that are of few nodes each become one."""
    if len(reasons) > TOLD_REASONS:
        reasons = sorted(reasons, key=lambda why: (-why.count, why.reason))
        rest = reasons[TOLD_REASONS - 1 :]
        nodes = heapq.nsmallest(NAMED_NODES, (node_id for why in rest for node_id in why.nodes))
        count = sum(why.count for why in rest)
        reasons = [
            *reasons[: TOLD_REASONS - 1],
            PassedOver(reason=OTHER_REASONS, count=count, nodes=nodes),
        ]
    return sorted(reasons, key=lambda why: why.reason)


def _tell(reason: str, each: list[Candidate]) -> PassedOver:
    nodes = heapq.nsmallest(NAMED_NODES, (candidate.node_id for candidate in each))
    return PassedOver(reason=reason, count=len(each), nodes=nodes)
