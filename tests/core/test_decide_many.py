"""Thousands that wait, or are to leave, and can't: what happens elsewhere is no work for them."""

from __future__ import annotations

from typing import Any

import pytest

from events.facts import RunPlaced, RunStopping, WorkerAdopted
from events.messages import DrainReq, RebuildReq
from events.queries import NodeDetailReply, QueryNode
from events.states import WorkerState
from events.traffic import InventoryRow
from schedulers.decide import Rules, draining, placing
from schedulers.placement import Plan
from tests.support.story import (
    Story,
    acknowledged,
    ended,
    fact,
    facts,
    inventory,
    launches,
    placed,
    register,
    start,
)

MANY = 500
PATIENT = Rules(expiry_s=100_000)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that placement is asked."""
    made: list[int] = []
    plan = placing._plan

    def counted(*arguments: object) -> Plan:
        made.append(1)
        return plan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(placing, "_plan", counted)
    return made


@pytest.fixture
def story() -> Story:
    made = Story(PATIENT)
    made.auditor.observe = lambda *_: []  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("alike", [True, False], ids=["one selector", "a selector each"])
def test_a_long_line_is_not_looked_at_for_slots_that_it_may_not_use(
    story: Story, looks: list[int], alike: bool
) -> None:
    story.tell(register("n1", 9))
    for index in range(MANY if alike else 0):
        story.tell(start(f"w{index}", 3, selector={"zone": "z0"}, on_shortage="wait"))
    for index in range(0 if alike else MANY):
        story.tell(register(f"z{index}", 2, labels={"zone": f"z{index}"}))
        story.tell(start(f"w{index}", 3, selector={"zone": f"z{index}"}, on_shortage="wait"))
    (worker_id,) = story.running("other", 9, command_id="c")[:1]
    looks.clear()
    story.tell(ended(worker_id, story.ledger.workers[worker_id].node_id))
    assert len(looks) <= 1
    draft = story.tell(register("more", 4, labels={"zone": "z0"}))
    assert [order.job_id for order in launches(draft)] == ["w0"]
    assert len(looks) <= 3


def test_a_drain_with_nowhere_to_go_asks_once_for_all_that_want_the_same(
    story: Story, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = {"gpu": "yes"}
    story.tell(register("n1", MANY, labels=gpu))
    story.tell(register("n2", 4))
    for index in range(MANY):
        (order,) = launches(story.tell(start(f"j{index}", 1, selector=gpu, on_drain="move")))
        story.tell(acknowledged(order))
    (other,) = story.running("other", 1)
    looks.clear()
    story.tell(DrainReq(node_id="n1", command_id="d", deadline_s=1_000))
    assert len(looks) <= 3
    asked: list[str] = []
    ask = draining.why_not

    def counted(*arguments: Any) -> str:
        asked.append(arguments[3].job_id)
        return ask(*arguments)

    monkeypatch.setattr(draining, "why_not", counted)
    story.tell(ended(other, "n2"))
    story.running("another", 2)
    assert asked == []
    answer = story.tell(QueryNode(node_id="n1")).answer
    assert isinstance(answer, NodeDetailReply)
    assert answer.drain is not None
    assert answer.drain.remaining_count == MANY
    assert {w.reason for w in answer.drain.remaining} == {"nowhere to move: 1 slots missing"}
    moves = facts(story.tell(register("n3", 3, labels=gpu)), RunStopping)
    assert [fact.job_id for fact in moves] == ["j0", "j1", "j2"]


def test_of_those_that_want_the_same_a_smaller_one_may_still_leave(story: Story) -> None:
    story.nodes(n1=8)
    for job_id, slots in (("big", 4), ("bigger", 3), ("small", 1)):
        story.running(job_id, slots, on_drain="move")
    story.nodes(n2=2)
    draft = story.tell(DrainReq(node_id="n1", command_id="d", deadline_s=1_000))
    assert [fact.job_id for fact in facts(draft, RunStopping)] == ["small"]


def test_a_run_that_comes_to_a_node_whose_runs_are_stuck_is_looked_at(story: Story) -> None:
    """As one does that the log had lost."""
    story.nodes(n1=4)
    story.running("stuck", 2, on_drain="move")
    story.tell(DrainReq(node_id="n1", command_id="d", deadline_s=1_000))
    story.nodes(n2=1)
    assert set(story.ledger.stuck) == {"n1"}
    lost = InventoryRow(
        worker_id="w-lost", job_id="lost", run_id=1, slots=1, state=WorkerState.RUNNING, pid=7
    )
    (stuck,) = story.ledger.live_on("n1")
    here = InventoryRow(
        worker_id=stuck.worker_id, job_id="stuck", run_id=1, slots=2, state=WorkerState.RUNNING
    )
    story.tell(inventory("n1", here, lost, epoch=story.epoch))
    assert facts(story.tell(RebuildReq(command_id="r")), WorkerAdopted)
    assert story.ledger.stuck == {}


def test_a_selector_with_two_labels_says_whom_it_does_not_name(story: Story) -> None:
    story.tell(register("n1", 4, labels={"zone": "a", "gpu": "no"}))
    story.tell(register("n2", 4, labels={"zone": "a", "gpu": "yes"}))
    draft = story.tell(start("j", 2, selector={"zone": "a", "gpu": "yes"}))
    assert placed(draft) == {"n2": [2]}
    told = [(why.reason, why.count, why.nodes) for why in fact(draft, RunPlaced).passed_over]
    assert told == [("its labels are not gpu=yes, zone=a", 1, ["n1"])]
