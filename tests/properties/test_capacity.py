"""The index of nodes: whatever happened to them, it says what looking at all would."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from events.capacity import Capacity
from events.entities import Node
from events.states import NodeState

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ids = st.sampled_from([f"n{index}" for index in range(40)])
changes = st.lists(
    st.tuples(ids, st.integers(0, 4), st.sampled_from([*NodeState, NodeState.READY, None])),
    max_size=12,
)


class Fleet:
    """Nodes and what they have free; None as a state takes a node away."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.free: dict[str, int] = {}
        self.capacity = Capacity(self.nodes, {})

    def change(self, node_id: str, free: int, state: NodeState | None) -> None:
        if state is None:
            self.nodes.pop(node_id, None)
        else:
            self.nodes[node_id] = Node(
                node_id=node_id, incarnation="i", task_slots=free, state=state, since=BEGIN
            )
            self.free[node_id] = free
        self.capacity.changed(node_id)

    def check(self) -> None:
        ready = [n for n, node in self.nodes.items() if node.state is NodeState.READY]
        ranked = sorted(ready, key=lambda n: (-self.free[n], n))
        full = sorted(n for n in ready if not self.free[n])
        assert list(self.capacity.most_free()) == ranked[: len(ranked) - len(full)]
        assert self.capacity.with_room == len(ranked) - len(full)
        assert self.capacity.free == sum(self.free[n] for n in ready)
        assert self.capacity.full(2) == (len(full), full[:2])
        shut = {
            state: sorted(n for n, node in self.nodes.items() if node.state is state)
            for state in NodeState
            if state is not NodeState.READY
        }
        expected = {state: (len(each), each[:2]) for state, each in shut.items() if each}
        assert self.capacity.shut(2) == expected


@given(st.lists(changes, max_size=8))
def test_it_says_what_looking_at_every_node_would(
    batches: list[list[tuple[str, int, NodeState | None]]],
) -> None:
    fleet = Fleet()
    for batch in batches:
        for node_id, free, state in batch:
            fleet.change(node_id, free, state)
        fleet.check()
