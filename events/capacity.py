"""Capacity: the nodes in the order in which they are filled, kept up to date.

What lives here: an index over nodes, so that placing a worker costs the same among 100,000
nodes as among ten. What may not: which node is chosen (``schedulers.placement``).

Nodes whose slots or state changed are only noted, and put in their places when somebody
asks: replaying a long log sorts each node once. Of the nodes that a selector names, the same is
kept from when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from sortedcontainers import SortedList

from events.entities import Node
from events.states import NodeState

REBUILT_AT: Final = 8
"""Where more than one node of so many has changed, all are sorted anew."""

PARTS_LIMIT: Final = 10_000
MEMBERS_LIMIT: Final = 500_000
"""Selectors that are kept, and nodes in them together; those asked for least recently leave."""

Rank = tuple[int, str]
"""Minus the free slots, then the id: the order of filling."""

Pair = tuple[str, str]
"""Name and value of a label."""


class Part:
    """The ready nodes that have certain labels. ``free`` and ``registered``: their slots."""

    def __init__(self, pairs: tuple[Pair, ...]) -> None:
        self.pairs = pairs
        self.free = 0
        self.registered = 0
        self.ranks: SortedList[Rank] = SortedList()

    @property
    def with_room(self) -> int:
        """How many of them have a free slot."""
        return self.ranks.bisect_left((0, ""))

    def most_free(self) -> Iterator[str]:
        """As ``Capacity.most_free``."""
        for minus_free, node_id in self.ranks:
            if not minus_free:
                return
            yield node_id

    def fits(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) == value for name, value in self.pairs)

    def add(self, rank: Rank, slots: int) -> None:
        self.ranks.add(rank)
        self.free -= rank[0]
        self.registered += slots

    def remove(self, rank: Rank, slots: int) -> None:
        self.ranks.remove(rank)
        self.free += rank[0]
        self.registered -= slots


class Capacity:
    """``held``: slots of the live workers of each node. Call ``changed`` whenever these, or a
    node's slots or state, may be others."""

    def __init__(self, nodes: dict[str, Node], held: dict[str, int]) -> None:
        self._nodes = nodes
        self._held = held
        self._changed: dict[str, None] = dict.fromkeys(nodes)
        self._ranks: dict[str, Rank] = {}
        """Where each ready node stands in ``_ready``."""
        self._ready: SortedList[Rank] = SortedList()
        self._shut: dict[NodeState, SortedList[str]] = {}
        self._states: dict[str, NodeState] = {}
        """Where each other node stands in ``_shut``."""
        self._free = 0
        self._slots: dict[str, int] = {}
        """What each ready node has registered."""
        self._registered = 0
        self._parts: dict[tuple[Pair, ...], Part] = {}
        self._parts_by: dict[Pair, list[Part]] = {}
        """Each under its first pair."""
        self._parts_with: dict[str, list[Part]] = {}
        """Of each ready node, those that it is in."""
        self._members = 0

    def free_of(self, node_id: str) -> int:
        """Law 1: registered minus held, never below 0; an unknown node has none."""
        node = self._nodes.get(node_id)
        return max(0, node.task_slots - self._held.get(node_id, 0)) if node else 0

    def changed(self, node_id: str) -> None:
        """Cheap; to be called for a node that is new or gone, too."""
        self._changed[node_id] = None

    @property
    def free(self) -> int:
        """Free slots of all ready nodes."""
        self._settle()
        return self._free

    @property
    def registered(self) -> int:
        """Slots of all ready nodes, free or not."""
        self._settle()
        return self._registered

    @property
    def present(self) -> int:
        """How many nodes are not expired."""
        self._settle()
        return len(self._nodes) - len(self._shut.get(NodeState.EXPIRED, ()))

    @property
    def with_room(self) -> int:
        """How many ready nodes have a free slot."""
        self._settle()
        return self._ready.bisect_left((0, ""))

    def most_free(self) -> Iterator[str]:
        """Ids of the ready nodes that have room, the most free first, ties by id. Nothing
        may be folded while it is walked."""
        self._settle()
        for minus_free, node_id in self._ready:
            if not minus_free:
                return
            yield node_id

    def part(self, selector: Mapping[str, str]) -> Part:
        """The ready nodes that a selector, which must not be empty, names; not to be changed,
        nor kept over a fold."""
        self._settle()
        pairs = tuple(sorted(selector.items()))
        part = self._parts.pop(pairs, None) or self._make_part(pairs)
        self._parts[pairs] = part
        return part

    def full(self, most: int) -> tuple[int, list[str]]:
        """How many ready nodes have no free slot, and the ids of the first ``most``."""
        begin = self.with_room
        names = [node_id for _, node_id in self._ready.islice(begin, begin + most)]
        return len(self._ready) - begin, names

    def shut(self, most: int) -> dict[NodeState, tuple[int, list[str]]]:
        """The nodes that are not ready, by their state: as ``full``."""
        self._settle()
        return {
            state: (len(ids), list(islice(ids, most)))
            for state, ids in sorted(self._shut.items())
            if ids
        }

    # --- keeping it ---------------------------------------------------------------------

    def _make_part(self, pairs: tuple[Pair, ...]) -> Part:
        part = Part(pairs)
        nodes, (name, value) = self._nodes, pairs[0]
        first = [rank for n, rank in self._ranks.items() if nodes[n].labels.get(name) == value]
        ranks = [rank for rank in first if part.fits(nodes[rank[1]].labels)]
        part.ranks = SortedList(ranks)
        part.free = -sum(minus_free for minus_free, _ in ranks)
        part.registered = sum(self._slots[node_id] for _, node_id in ranks)
        for _, node_id in ranks:
            self._parts_with.setdefault(node_id, []).append(part)
        self._members += len(ranks)
        while self._parts and (len(self._parts) >= PARTS_LIMIT or self._members > MEMBERS_LIMIT):
            self._drop_part(next(iter(self._parts.values())))
        self._parts_by.setdefault(pairs[0], []).append(part)
        return part

    def _drop_part(self, part: Part) -> None:
        del self._parts[part.pairs]
        self._parts_by[part.pairs[0]].remove(part)
        for _, node_id in part.ranks:
            self._parts_with[node_id].remove(part)
        self._members -= len(part.ranks)

    def _settle(self) -> None:
        if not self._changed:
            return
        if len(self._changed) * REBUILT_AT > len(self._nodes):
            self._rebuild()
        else:
            for node_id in self._changed:
                self._remove(node_id)
                self._place(node_id)
        self._changed.clear()

    def _rebuild(self) -> None:
        self._parts.clear()
        self._parts_by.clear()
        self._parts_with.clear()
        self._members = 0
        ranks: dict[str, Rank] = {}
        slots: dict[str, int] = {}
        shut: dict[NodeState, list[str]] = {}
        states: dict[str, NodeState] = {}
        for node_id, node in self._nodes.items():
            if node.state is NodeState.READY:
                ranks[node_id] = (-self.free_of(node_id), node_id)
                slots[node_id] = node.task_slots
            else:
                shut.setdefault(node.state, []).append(node_id)
                states[node_id] = node.state
        self._ranks, self._slots, self._states = ranks, slots, states
        self._registered = sum(slots.values())
        self._ready = SortedList(ranks.values())
        self._shut = {state: SortedList(ids) for state, ids in shut.items()}
        self._free = -sum(minus_free for minus_free, _ in ranks.values())

    def _remove(self, node_id: str) -> None:
        rank = self._ranks.pop(node_id, None)
        if rank is not None:
            self._ready.remove(rank)
            slots = self._slots.pop(node_id)
            self._free += rank[0]
            self._registered -= slots
            parts = self._parts_with.pop(node_id, ())
            self._members -= len(parts)
            for part in parts:
                part.remove(rank, slots)
            return
        state = self._states.pop(node_id, None)
        if state is not None:
            self._shut[state].remove(node_id)

    def _place(self, node_id: str) -> None:
        node = self._nodes.get(node_id)
        if node is None:
            return
        if node.state is NodeState.READY:
            rank = self._ranks[node_id] = (-self.free_of(node_id), node_id)
            self._ready.add(rank)
            self._free -= rank[0]
            self._slots[node_id] = node.task_slots
            self._registered += node.task_slots
            if self._parts:
                self._join_parts(node, rank)
        else:
            self._states[node_id] = node.state
            self._shut.setdefault(node.state, SortedList()).add(node_id)

    def _join_parts(self, node: Node, rank: Rank) -> None:
        for pair in node.labels.items():
            for part in self._parts_by.get(pair, ()):
                if part.fits(node.labels):
                    part.add(rank, node.task_slots)
                    self._parts_with.setdefault(node.node_id, []).append(part)
                    self._members += 1
