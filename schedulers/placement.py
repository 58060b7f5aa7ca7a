"""Placement: which nodes take how many slots of a run.

What lives here: pure functions from candidates to a plan, and why each other node was not
taken. What may not: the ledger, worker ids, anything that starts a worker.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from events.facts import PassedOver
from events.ids import MAX_WORKERS_A_RUN

NAMED_NODES: Final = 20
"""How many nodes a reason names; the rest is counted."""

NOT_NEEDED: Final = "not needed: the nodes taken had room enough"
NO_ROOM: Final = "no free slots"


class Candidate(Struct, frozen=True):
    """A node as placement sees it; ``blocked``: why it may not be taken, or ""."""

    node_id: str
    free: int
    labels: dict[str, str]
    blocked: str = ""


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
    be placed); ``free`` is what the eligible nodes had."""

    shares: list[Share]
    missing: int
    free: int
    passed_over: list[PassedOver]


def place(candidates: Iterable[Candidate], wish: Wish) -> Plan:
    """Fills the node with the most free slots first, then the next; ties by node id.

    With ``spread="even"`` slots are dealt one by one, each to the node that has the most
    left. The rule of filling is Arroyo's node scheduler's.
    """
    eligible: list[Candidate] = []
    out: dict[str, list[str]] = {}
    for candidate in candidates:
        reason = _why_not(candidate, wish)
        if reason:
            out.setdefault(reason, []).append(candidate.node_id)
        else:
            eligible.append(candidate)
    free = sum(candidate.free for candidate in eligible)
    amounts = _deal(eligible, wish.slots) if wish.spread == "even" else _pack(eligible, wish.slots)
    for candidate in eligible:
        if candidate.node_id not in amounts:
            out.setdefault(NOT_NEEDED, []).append(candidate.node_id)
    return Plan(
        shares=[
            Share(node_id, slots)
            for node_id, amount in amounts.items()
            for slots in _cut(amount, wish.per_worker)
        ],
        missing=max(0, wish.slots - free),
        free=free,
        passed_over=_tell(out),
    )


def too_many_workers(plan: Plan, *, beside: int = 0) -> bool:
    """Whether a run that has workers already would have more than the stated limit."""
    return len(plan.shares) + beside > MAX_WORKERS_A_RUN


def _why_not(candidate: Candidate, wish: Wish) -> str:
    if candidate.blocked:
        return candidate.blocked
    if candidate.node_id in wish.excluded:
        return f"failed in this start: {wish.excluded[candidate.node_id]}"
    for name, value in wish.selector.items():
        if candidate.labels.get(name) != value:
            return f"label {name} is not {value}"
    return "" if candidate.free > 0 else NO_ROOM


def _pack(eligible: list[Candidate], slots: int) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for candidate in sorted(eligible, key=lambda c: (-c.free, c.node_id)):
        if slots <= 0:
            break
        amounts[candidate.node_id] = min(candidate.free, slots)
        slots -= amounts[candidate.node_id]
    return amounts


def _deal(eligible: list[Candidate], slots: int) -> dict[str, int]:
    heap = [(-candidate.free, candidate.node_id) for candidate in eligible]
    heapq.heapify(heap)
    amounts: dict[str, int] = {}
    for _ in range(min(slots, sum(candidate.free for candidate in eligible))):
        left, node_id = heap[0]
        amounts[node_id] = amounts.get(node_id, 0) + 1
        heapq.heapreplace(heap, (left + 1, node_id))
    return amounts


def _cut(amount: int, per_worker: int | None) -> list[int]:
    if per_worker is None or amount <= per_worker:
        return [amount]
    whole, rest = divmod(amount, per_worker)
    return [per_worker] * whole + ([rest] if rest else [])


def _tell(out: dict[str, list[str]]) -> list[PassedOver]:
    return [
        PassedOver(reason=reason, count=len(nodes), nodes=heapq.nsmallest(NAMED_NODES, nodes))
        for reason, nodes in sorted(out.items())
    ]
