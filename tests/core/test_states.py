"""The transition tables: complete, closed, and loud about what can't be."""

from __future__ import annotations

from enum import StrEnum

import pytest

from events.states import (
    NODE_TABLE,
    RUN_ENDED,
    RUN_TABLE,
    WORKER_ENDED,
    WORKER_TABLE,
    IllegalTransition,
    NodeState,
    RunState,
    WorkerState,
    step,
)


def test_a_step_leads_where_the_table_says() -> None:
    target = step(WORKER_TABLE, "w", WorkerState.ASSIGNED, "worker_launched", WorkerState.RUNNING)
    assert target is WorkerState.RUNNING


def test_a_step_the_table_does_not_have_says_what_happened_in_which_state() -> None:
    with pytest.raises(IllegalTransition) as caught:
        step(RUN_TABLE, "j/1", RunState.FINISHED, "run_placed", RunState.STARTING)
    assert str(caught.value) == (
        "run j/1 is finished (asked to be starting): run_placed can't happen to it"
    )


def test_a_known_happening_does_not_lead_anywhere_else() -> None:
    with pytest.raises(IllegalTransition, match="asked to be expired"):
        step(NODE_TABLE, "n", NodeState.EXPIRED, "node_returned", NodeState.EXPIRED)


def test_nothing_leads_out_of_an_end() -> None:
    assert not [state for state, _ in WORKER_TABLE if state in WORKER_ENDED]
    assert not [state for state, _ in RUN_TABLE if state in RUN_ENDED]


@pytest.mark.parametrize(
    ("table", "first"),
    [
        (WORKER_TABLE, WorkerState.ASSIGNED),
        (RUN_TABLE, RunState.WAITING),
        (NODE_TABLE, NodeState.READY),
    ],
    ids=["worker", "run", "node"],
)
def test_every_state_can_be_reached_and_every_live_one_can_be_left(
    table: dict[tuple[StrEnum, str], frozenset[StrEnum]], first: StrEnum
) -> None:
    reached, edge = {first}, {first}
    while edge:
        edge = {t for (s, _), targets in table.items() if s in edge for t in targets} - reached
        reached |= edge
    assert reached == set(type(first))
    over = WORKER_ENDED | RUN_ENDED
    assert {state for state, _ in table} == {state for state in reached if state not in over}


def test_a_worker_may_end_from_wherever_it_lives() -> None:
    live = {WorkerState.ASSIGNED, WorkerState.RUNNING, WorkerState.STOPPING, WorkerState.LOST}
    assert {s for s, happening in WORKER_TABLE if happening == "worker_ended"} == live
