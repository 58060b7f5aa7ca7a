"""Capacity: the nodes in the order in which they are filled, kept up to date.

What lives here: an index over nodes, so that placing a worker costs the same among 100,000
nodes as among ten. What may not: which node is chosen (``schedulers.placement``).

Nodes whose slots or state changed are only noted, and put in their places when somebody
asks: replaying a long log sorts each node once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from sortedcontainers import SortedList

from events.entities import Node
from events.states import NodeState

REBUILT_AT: Final = 8
"""Where more than one node of so many has changed, all are sorted anew."""

Rank = tuple[int, str]
"""Minus the free slots, then the id: the order of filling."""


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
            self._free += rank[0]
            self._registered -= self._slots.pop(node_id)
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
        else:
            self._states[node_id] = node.state
            self._shut.setdefault(node.state, SortedList()).add(node_id)
