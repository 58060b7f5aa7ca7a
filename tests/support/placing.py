"""Placement over plain lists of nodes, and a rule of its own to hold it to.

What lives here: a fleet made of candidates in any order, and the eager rule that placement
must agree with. What may not: the ledger's index, which has tests of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from events.facts import PassedOver
from schedulers.placement import NAMED_NODES, NO_ROOM, Candidate, Fleet, Plan, Wish
from schedulers.placement import place as place_in


class Walk:
    """Yields candidates and knows how many it was asked for."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self._candidates = candidates
        self.looked_at = 0

    def __iter__(self) -> Iterator[Candidate]:
        for candidate in self._candidates:
            self.looked_at += 1
            yield candidate

    def further(self) -> Iterator[str]:
        """The ids of the others, from where it is when the first is asked for."""
        for candidate in self._candidates[self.looked_at :]:
            yield candidate.node_id


def fleet_of(candidates: list[Candidate]) -> Fleet:
    """Whoever is blocked is shut; the rest by room."""
    shut: dict[str, list[str]] = {}
    ranked: list[Candidate] = []
    for candidate in candidates:
        reason = candidate.blocked or ("" if candidate.free else NO_ROOM)
        if reason:
            shut.setdefault(reason, []).append(candidate.node_id)
        else:
            ranked.append(candidate)
    ranked.sort(key=lambda candidate: (-candidate.free, candidate.node_id))
    walk = Walk(ranked)
    return Fleet(
        ranked=walk,
        further=walk.further(),
        count=len(ranked),
        free=sum(candidate.free for candidate in ranked),
        shut=[
            PassedOver(reason=reason, count=len(nodes), nodes=sorted(nodes)[:NAMED_NODES])
            for reason, nodes in shut.items()
        ],
    )


def place(candidates: list[Candidate], wish: Wish) -> Plan:
    """Placement over candidates in any order."""
    return place_in(fleet_of(candidates), wish)


def eligible(candidates: list[Candidate], wish: Wish) -> dict[str, int]:
    """By a rule of its own: the nodes that may be taken, and what they have free."""
    return {
        one.node_id: one.free
        for one in candidates
        if not one.blocked
        and one.node_id not in wish.excluded
        and wish.selector.items() <= one.labels.items()
        and one.free
    }


def amounts_by_hand(candidates: list[Candidate], wish: Wish) -> dict[str, int]:
    """What each node takes, slot by slot, with every node looked at each time."""
    left = eligible(candidates, wish)
    taken: dict[str, int] = {}
    for _ in range(min(wish.slots, sum(left.values()))):
        if wish.spread == "even" or not taken or not left[list(taken)[-1]]:
            node_id = min(left, key=lambda node_id: (-left[node_id], node_id))
        else:
            node_id = list(taken)[-1]
        taken[node_id] = taken.get(node_id, 0) + 1
        left[node_id] -= 1
    return taken
