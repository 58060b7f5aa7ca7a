"""Starts that wait: the line by priority and acceptance, what it keeps, how it ends."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from events.errors import NotEnoughSlots, Overloaded, RunActive, StartFailed, TooLate
from events.facts import CommandTaken, RunEnded, RunPlaced, RunWaiting
from events.messages import CordonReq, StartReply, UncordonReq
from events.queries import QueryShortage, ShortageReply
from events.states import RunState
from schedulers.decide import Rules, next_due
from schedulers.decide.messages import Tick
from tests.support.story import (
    DAWN,
    Story,
    acknowledged,
    ended,
    fact,
    facts,
    kinds,
    launches,
    placed,
    register,
    start,
    stop,
)


def state_of(story: Story, job_id: str) -> RunState:
    return story.ledger.jobs[job_id].current.state


def shortage(story: Story) -> ShortageReply:
    answer = story.tell(QueryShortage()).answer
    assert isinstance(answer, ShortageReply)
    return answer


def in_seconds(seconds: float) -> datetime:
    return DAWN + timedelta(seconds=seconds)


def test_a_start_without_room_waits_and_begins_when_a_node_comes(story: Story) -> None:
    story.nodes(n1=2)
    draft = story.tell(start("j", 5, command_id="c1", on_shortage="wait"))
    assert kinds(draft) == ["command_taken", "run_created", "run_waiting"]
    assert fact(draft, RunWaiting).missing == 3
    assert fact(draft, CommandTaken).deadline is None
    assert (state_of(story, "j"), story.outcome("c1")) == (RunState.WAITING, None)
    draft = story.tell(register("n2", 4), after=10)
    assert placed(draft) == {"n2": [4], "n1": [1]}
    assert fact(draft, RunPlaced).deadline == story.now + timedelta(seconds=30)
    for order in launches(draft):
        story.tell(acknowledged(order))
    reply = story.outcome("c1")
    assert isinstance(reply, StartReply)
    assert sum(worker.slots for worker in reply.workers) == 5
    story.check()


def test_fail_is_the_default_and_may_be_configured_otherwise() -> None:
    story = Story()
    story.tell(start("j", 5, command_id="c1"))
    assert isinstance(story.refusal("c1"), NotEnoughSlots)
    story = Story(Rules(on_shortage="wait"))
    story.tell(start("j", 5, command_id="c1"))
    assert story.outcome("c1") is None
    story.tell(start("k", 5, command_id="c2", on_shortage="fail"))
    assert isinstance(story.refusal("c2"), NotEnoughSlots)


@pytest.mark.parametrize("how", ["ended", "stopped", "uncordoned", "forced"])
def test_whatever_frees_slots_lets_it_begin(story: Story, how: str) -> None:
    story.nodes(n1=2)
    (worker,) = story.running("a", 2)
    if how == "uncordoned":
        story.nodes(n2=2)
        story.tell(CordonReq(node_id="n2"))
    story.tell(start("b", 2, on_shortage="wait"))
    assert state_of(story, "b") is RunState.WAITING
    if how == "uncordoned":
        draft = story.tell(UncordonReq(node_id="n2"))
    elif how == "forced":
        story.tell(stop("a", force=True))
        draft = story.tell(ended(worker))
    else:
        if how == "stopped":
            story.tell(stop("a"))
        draft = story.tell(ended(worker))
    assert [order.job_id for order in launches(draft)] == ["b"]


def test_small_starts_do_not_pass_a_large_one_of_the_same_priority(story: Story) -> None:
    story.nodes(n1=4)
    (worker,) = story.running("a", 3)
    story.tell(start("large", 4, on_shortage="wait"))
    story.tell(start("small", 1, on_shortage="wait"))
    assert state_of(story, "small") is RunState.WAITING
    story.tell(start("new", 1, command_id="c1"))
    refused = story.refusal("c1")
    assert isinstance(refused, NotEnoughSlots)
    assert (refused.slots_needed, refused.slots_free) == (1, 0)
    draft = story.tell(ended(worker))
    assert {order.job_id for order in launches(draft)} == {"large"}


def test_a_higher_priority_goes_first_and_need_not_leave_anything(story: Story) -> None:
    story.nodes(n1=4)
    (worker,) = story.running("a", 3)
    story.tell(start("low", 4, on_shortage="wait"))
    draft = story.tell(start("urgent", 1, priority=1))
    assert [order.job_id for order in launches(draft)] == ["urgent"]
    story.tell(start("high", 3, priority=5, on_shortage="wait"))
    draft = story.tell(ended(worker))
    assert [order.job_id for order in launches(draft)] == ["high"]
    assert state_of(story, "low") is RunState.WAITING


def test_who_could_never_fit_keeps_nothing_from_others(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(start("huge", 40, on_shortage="wait"))
    draft = story.tell(start("small", 1))
    assert [order.job_id for order in launches(draft)] == ["small"]


def test_only_the_nodes_of_its_selector_are_kept(story: Story) -> None:
    gpu = {"selector": {"gpu": "yes"}}
    story.tell(register("n1", 4, labels={"gpu": "yes"}))
    story.tell(register("n2", 4))
    (worker,) = story.running("a", 2, selector={"gpu": "yes"})
    story.tell(start("large", 4, on_shortage="wait", scheduler_config=gpu))
    draft = story.tell(start("b", 4))
    assert placed(draft) == {"n2": [4]}
    story.tell(start("c", 1, command_id="c1"))
    refused = story.refusal("c1")
    assert isinstance(refused, NotEnoughSlots)
    assert refused.slots_free == 0
    draft = story.tell(ended(worker))
    assert placed(draft) == {"n1": [4]}


def test_it_can_be_cancelled_and_says_so_to_the_start(story: Story) -> None:
    story.tell(start("j", 1, command_id="c1", on_shortage="wait"))
    draft = story.tell(stop("j", command_id="c2"))
    assert fact(draft, RunEnded).state is RunState.STOPPED
    assert isinstance(story.refusal("c1"), StartFailed)
    assert not story.ledger.waiting
    draft = story.tell(register("n1", 4))
    assert launches(draft) == []
    story.check()


def test_cancelling_the_first_lets_the_next_begin(story: Story) -> None:
    story.nodes(n1=4)
    story.running("a", 3)
    story.tell(start("large", 4, on_shortage="wait"))
    story.tell(start("small", 1, on_shortage="wait"))
    draft = story.tell(stop("large"))
    assert [order.job_id for order in launches(draft)] == ["small"]


def test_a_start_of_a_job_that_waits_is_refused(story: Story) -> None:
    story.tell(start("j", 1, on_shortage="wait"))
    story.tell(start("j", 1, command_id="c2"))
    assert isinstance(story.refusal("c2"), RunActive)


def test_it_is_given_up_after_its_time_and_not_at_it(story: Story) -> None:
    end = in_seconds(60)
    story.tell(start("j", 1, command_id="c1", on_shortage="wait", not_after=end))
    assert next_due(story.ledger, story.pulse) == end
    story.tell(Tick(), at=60)
    assert story.outcome("c1") is None
    draft = story.tell(Tick(), at=60.001)
    assert fact(draft, RunEnded).state is RunState.FAILED
    assert isinstance(story.refusal("c1"), TooLate)
    story.check()


def test_one_that_comes_after_its_time_is_refused(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(start("j", 1, command_id="c1", not_after=in_seconds(-1)))
    assert isinstance(story.refusal("c1"), TooLate)
    assert launches(draft) == []


def test_once_placed_it_fails_like_any_other(story: Story) -> None:
    story.tell(start("j", 1, command_id="c1", on_shortage="wait", not_after=in_seconds(60)))
    (order,) = launches(story.tell(register("n1", 4), at=50))
    story.tell(Tick(), at=79)
    assert story.outcome("c1") is None
    draft = story.tell(Tick(), at=80)
    assert "run_stopping" in kinds(draft)
    story.tell(ended(order.worker_id))
    assert isinstance(story.refusal("c1"), StartFailed)
    story.check()


def test_the_line_is_bounded() -> None:
    story = Story(Rules(most_waiting=2))
    for number in range(3):
        story.tell(start(f"j{number}", 1, command_id=f"c{number}", on_shortage="wait"))
    assert [story.outcome(f"c{number}") is None for number in range(3)] == [True, True, False]
    assert isinstance(story.refusal("c2"), Overloaded)


def test_a_new_leader_goes_on_with_the_line_in_its_order(story: Story) -> None:
    story.nodes(n1=1)
    story.running("a", 1)
    for job_id, priority in (("x", 0), ("y", 3), ("z", 0)):
        story.tell(start(job_id, 1, priority=priority, on_shortage="wait"))
    story.lead()
    assert [place[2] for place in story.ledger.waiting] == ["y", "x", "z"]
    draft = story.tell(register("n2", 2, incarnation="new"))
    assert [order.job_id for order in launches(draft)] == ["y", "x"]
    story.check()


def test_what_is_missing_is_told_by_job_and_together(story: Story) -> None:
    gpu = {"selector": {"gpu": "yes"}}
    story.nodes(n1=4)
    story.tell(start("a", 6, on_shortage="wait"))
    story.tell(start("b", 3, on_shortage="wait", priority=2, scheduler_config=gpu))
    told = shortage(story)
    assert [(row.job_id, row.missing, row.slots) for row in told.waiting] == [
        ("b", 3, 3),
        ("a", 2, 6),
    ]
    assert told.missing == 5
    assert told.waiting[0].selector == {"gpu": "yes"}
    story.tell(register("n2", 8, labels={"gpu": "yes"}))
    assert (shortage(story).missing, shortage(story).waiting) == (0, [])


def test_the_shortage_comes_in_pages(story: Story) -> None:
    for number in range(5):
        story.tell(start(f"j{number}", 1, on_shortage="wait"))
    seen, cursor = [], ""
    while True:
        answer = story.tell(QueryShortage(limit=2, cursor=cursor)).answer
        assert isinstance(answer, ShortageReply)
        assert answer.missing == 5
        seen += [row.job_id for row in answer.waiting]
        cursor = answer.next
        if not cursor:
            break
    assert seen == [f"j{number}" for number in range(5)]
    assert not facts(story.tell(QueryShortage()), RunWaiting)
