"""The index of nodes: whatever happened to them, it says what looking at all would."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from events import capacity as capacity_module
from events.capacity import Capacity
from events.entities import Node
from events.states import NodeState

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ids = st.sampled_from([f"n{index}" for index in range(40)])
labels = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))
selectors = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xyz"), min_size=1)
changes = st.lists(
    st.tuples(ids, st.integers(0, 4), st.sampled_from([*NodeState, NodeState.READY, None]), labels),
    max_size=12,
)


class Fleet:
    """Nodes and what they have free; None as a state takes a node away."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.free: dict[str, int] = {}
        self.capacity = Capacity(self.nodes, {})

    def change(
        self, node_id: str, free: int, state: NodeState | None, named: dict[str, str]
    ) -> None:
        if state is None:
            self.nodes.pop(node_id, None)
        else:
            self.nodes[node_id] = Node(
                node_id=node_id,
                incarnation="i",
                task_slots=free,
                state=state,
                since=BEGIN,
                labels=named,
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

    def check_part(self, selector: dict[str, str]) -> None:
        part = self.capacity.part(selector)
        chosen = [
            node
            for node in self.nodes.values()
            if node.state is NodeState.READY and selector.items() <= node.labels.items()
        ]
        ranked = sorted(chosen, key=lambda node: (-self.free[node.node_id], node.node_id))
        room = [node.node_id for node in ranked if self.free[node.node_id]]
        assert list(part.most_free()) == room
        assert part.with_room == len(room)
        assert part.free == sum(self.free[node_id] for node_id in room)
        assert part.registered == sum(node.task_slots for node in chosen)


Change = tuple[str, int, NodeState | None, dict[str, str]]


@given(st.lists(changes, max_size=8))
def test_it_says_what_looking_at_every_node_would(batches: list[list[Change]]) -> None:
    fleet = Fleet()
    for batch in batches:
        for change in batch:
            fleet.change(*change)
        fleet.check()


@given(st.lists(st.tuples(changes, st.lists(selectors, max_size=3)), max_size=8))
def test_so_it_does_of_the_nodes_that_a_selector_names(
    batches: list[tuple[list[Change], list[dict[str, str]]]],
) -> None:
    """Asked for early or late, few or many of its nodes having changed since, and where more
    are asked for than are kept."""
    fleet = Fleet()
    for index in range(40):
        fleet.change(f"n{index}", 2, NodeState.READY, {"a": "xy"[index % 2]})
    with mock.patch.object(capacity_module, "PARTS_LIMIT", 3):
        for batch, asked in batches:
            for change in batch:
                fleet.change(*change)
            for selector in asked:
                fleet.check_part(selector)
        fleet.check()
