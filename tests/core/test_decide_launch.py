"""Launches: tried elsewhere, replaced only when surely gone, rolled back, overdue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from events.errors import StartFailed
from events.facts import RunPlaced, WorkerEnded, WorkerLaunched, WorkerLost
from events.messages import StartReply
from events.states import RunState, WorkerState
from schedulers.decide import Rules, next_due
from schedulers.decide.messages import Launched, LaunchUncertain, StopAnswered
from tests.support.story import (
    DAWN,
    Story,
    acknowledged,
    beat,
    ended,
    fact,
    facts,
    finished,
    inventory,
    kinds,
    launches,
    never_ran,
    placed,
    refused,
    row,
    start,
    stopped_ids,
    stops,
    tick,
)


def reply_of(story: Story, command_id: str = "c1") -> StartReply:
    reply = story.outcome(command_id)
    assert isinstance(reply, StartReply), reply
    return reply


def failure_of(story: Story, command_id: str = "c1") -> StartFailed:
    error = story.refusal(command_id)
    assert isinstance(error, StartFailed)
    return error


def test_a_launch_that_fails_on_one_node_is_tried_on_another_under_a_fresh_id(
    story: Story,
) -> None:
    story.nodes(n1=2, n2=1, n3=1)
    (first,) = launches(story.tell(start("j", 2, command_id="c1")))
    draft = story.tell(refused(first))
    assert kinds(draft) == ["worker_ended", "run_placed", "worker_assigned", "worker_assigned"]
    assert placed(draft) == {"n2": [1], "n3": [1]}
    again = fact(draft, RunPlaced)
    assert again.attempt == 2
    assert [(p.reason, p.nodes) for p in again.passed_over] == [
        ("failed in this start: no such program", ["n1"])
    ]
    assert story.free("n1") == 2
    for order in launches(draft):
        assert order.worker_id != first.worker_id
        story.tell(acknowledged(order))
    assert [w.node_id for w in reply_of(story).workers] == ["n2", "n3"]


def test_what_was_started_is_stopped_when_the_rest_has_no_room_elsewhere(story: Story) -> None:
    story.nodes(n1=3, n2=2)
    good, bad = launches(story.tell(start("j", 5, command_id="c1")))
    story.tell(acknowledged(good))
    draft = story.tell(refused(bad, "disk full"))
    assert kinds(draft) == ["worker_ended", "run_stopping", "worker_stopping"]
    assert stopped_ids(draft) == [good.worker_id]
    assert story.outcome("c1") is None
    story.tell(finished(good, signal=15))
    error = failure_of(story)
    assert error.facts["reasons"] == {"n2": "disk full"}
    assert error.facts["unconfirmed"] == []
    assert story.ledger.jobs["j"].current.state is RunState.FAILED
    assert (story.free("n1"), story.free("n2")) == (3, 2)


def test_an_uncertain_launch_is_stopped_and_replaced_only_once_it_is_known_not_to_run(
    story: Story,
) -> None:
    story.nodes(n1=2, n2=2)
    (first,) = launches(story.tell(start("j", 2, command_id="c1")))
    draft = story.tell(LaunchUncertain(first.worker_id, "no answer"))
    assert kinds(draft) == ["worker_stopping"]
    assert stopped_ids(draft) == [first.worker_id]
    assert story.tell(StopAnswered(first.worker_id, "stopping", "n1")).record is None
    (order,) = stops(draft)
    replaced = story.tell(never_ran(order))
    assert fact(replaced, WorkerEnded).launched is False
    assert placed(replaced) == {"n2": [2]}


def test_an_uncertain_launch_that_did_run_does_not_count_once_it_was_stopped(
    story: Story,
) -> None:
    """It would otherwise be part of a run that is said to be complete."""
    story.nodes(n1=2, n2=2)
    (first,) = launches(story.tell(start("j", 2, command_id="c1")))
    story.tell(LaunchUncertain(first.worker_id, "no answer"))
    late = story.tell(acknowledged(first))
    assert kinds(late) == ["worker_launched"]
    draft = story.tell(finished(first, signal=15))
    assert kinds(draft) == ["worker_ended", "run_placed", "worker_assigned"]
    (second,) = launches(draft)
    story.tell(acknowledged(second))
    assert [w.worker_id for w in reply_of(story).workers] == [second.worker_id]


def test_an_end_that_was_told_to_another_leader_is_an_end(story: Story) -> None:
    """Its log has lost it, and the node will not report it again."""
    story.nodes(n1=2, n2=2)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    story.tell(LaunchUncertain(order.worker_id, "it already ran and ended"))
    assert story.tell(StopAnswered(order.worker_id, "ended", "n1")).record is None
    draft = story.tell(StopAnswered(order.worker_id, "ended", "n1", told=True))
    end = fact(draft, WorkerEnded)
    assert (end.launched, end.state) == (True, WorkerState.LOST)
    assert "not in the log" in end.reason


@pytest.mark.parametrize("listed", [False, True])
def test_a_worker_whose_exit_nobody_knows_may_have_run(story: Story, listed: bool) -> None:
    """The answer to its launch was lost, and its supervisor died: it is not tried again in the
    same start as if it had never been."""
    story.nodes(n1=2, n2=2)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    if listed:
        draft = story.tell(inventory("n1", row(order, WorkerState.LOST)))
    else:
        draft = story.tell(ended(order.worker_id, exit_code=None, state="lost"))
    end = fact(draft, WorkerEnded)
    assert (end.launched, end.state) == (True, WorkerState.LOST)
    assert launches(draft) == []


def test_a_worker_that_an_inventory_shows_failed_without_an_exit_never_ran(story: Story) -> None:
    story.nodes(n1=2, n2=2)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    draft = story.tell(inventory("n1", row(order, WorkerState.FAILED)))
    assert fact(draft, WorkerEnded).launched is False
    assert placed(draft) == {"n2": [2]}


@pytest.mark.parametrize("how", ["refused", "never ran", "ran too late"])
def test_with_one_node_a_launch_that_failed_is_not_tried_there_again(
    story: Story, how: str
) -> None:
    """In one start: asking again is up to who asked, and gets a reason to think about."""
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    if how == "refused":
        last = story.tell(refused(order, "why"))
    else:
        story.tell(LaunchUncertain(order.worker_id, "why"))
        if how == "never ran":
            last = story.tell(StopAnswered(order.worker_id, "unknown", "n1"))
        else:
            story.tell(acknowledged(order))
            last = story.tell(finished(order, signal=15))
    assert kinds(last) == ["worker_ended", "run_stopping", "run_ended", "command_done"]
    assert failure_of(story).facts["reasons"] == {"n1": "why"}
    assert story.free("n1") == 4
    (again,) = launches(story.tell(start("j", 2, command_id="c2")))
    assert (again.node_id, again.run_id) == ("n1", 2)


def test_only_what_is_surely_missing_is_placed_while_another_launch_is_uncertain(
    story: Story,
) -> None:
    story.nodes(n1=2, n2=2, n3=3)
    story.tell(start("filler", 3))
    doubtful, failing = launches(story.tell(start("j", 4, command_id="c1")))
    story.tell(LaunchUncertain(doubtful.worker_id, "no answer"))
    story.tell(ended(story.ledger.live_of("filler")[0].worker_id, "n3"))
    assert placed(story.tell(refused(failing))) == {"n3": [2]}


def test_a_worker_that_ended_before_its_launch_was_acknowledged_was_launched(
    story: Story,
) -> None:
    story.nodes(n1=2)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    draft = story.tell(finished(order))
    assert kinds(draft) == ["worker_ended", "run_running", "command_done", "run_ended"]
    assert story.tell(acknowledged(order)).record is None
    assert reply_of(story).workers[0].worker_id == order.worker_id


def test_outcomes_that_come_twice_or_too_late_change_nothing(story: Story) -> None:
    story.nodes(n1=2)
    (order,) = launches(story.tell(start("j", 2)))
    story.tell(acknowledged(order))
    for late in (
        acknowledged(order),
        refused(order),
        LaunchUncertain(order.worker_id, "late"),
        StopAnswered(order.worker_id, "unknown", "n1"),
        Launched("w-nobody", "n1-a"),
    ):
        assert story.tell(late).record is None
    assert story.state_of(order.worker_id) is WorkerState.RUNNING


def test_workers_not_launched_by_the_deadline_fail_the_start(
    stories: Callable[[Rules], Story],
) -> None:
    story = stories(Rules(start_timeout_s=10, expiry_s=100)).nodes(n1=2, n2=1)
    good, late = launches(story.tell(start("j", 3, command_id="c1")))
    story.tell(acknowledged(good))
    due = next_due(story.ledger, story.pulse)
    assert due is not None
    assert (due - DAWN).total_seconds() == 10
    assert story.tell(tick(), at=9.999).record is None
    draft = story.tell(tick(), at=10)
    assert stopped_ids(draft) == [good.worker_id, late.worker_id]
    story.tell(finished(good, signal=15))
    story.tell(never_ran(stops(draft)[1]))
    error = failure_of(story)
    assert "not all workers were launched in time, waiting for n2" in error.message


def test_a_rollback_that_takes_too_long_names_who_is_left(
    stories: Callable[[Rules], Story],
) -> None:
    rules = Rules(start_timeout_s=10, rollback_grace_s=5, stop_timeout_s=15, expiry_s=100)
    story = stories(rules).nodes(n1=2)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    story.tell(tick(), at=10)
    assert story.tell(tick(), at=29.9).record is None
    story.tell(tick(), at=30)
    assert failure_of(story).facts["unconfirmed"] == [order.worker_id]
    assert story.free("n1") == 0
    story.tell(finished(order, signal=9))
    assert story.free("n1") == 2


def test_a_node_that_falls_silent_fails_the_start_and_keeps_its_slots_there(
    story: Story,
) -> None:
    story.nodes(n1=3, n2=2)
    story.tell(beat("n2"), at=25)
    silent, other = launches(story.tell(start("j", 5, command_id="c1")))
    story.tell(acknowledged(silent))
    draft = story.tell(acknowledged(other), at=31)
    assert [lost.worker_id for lost in facts(draft, WorkerLost)] == [silent.worker_id]
    assert stopped_ids(draft) == [other.worker_id]
    story.tell(finished(other, signal=15))
    assert failure_of(story).facts["unconfirmed"] == [silent.worker_id]
    assert (story.free("n1"), story.free("n2")) == (0, 2)


def test_the_slots_a_failed_start_left_on_a_silent_node_are_freed_on_its_return(
    story: Story,
) -> None:
    story.nodes(n1=3)
    (order,) = launches(story.tell(start("j", 3, command_id="c1")))
    story.tell(tick(), at=31)
    assert failure_of(story).facts["unconfirmed"] == [order.worker_id]
    story.tell(beat("n1"))
    draft = story.tell(inventory("n1", row(order)))
    assert kinds(draft) == ["worker_launched"]
    assert stopped_ids(draft) == [order.worker_id]
    story.tell(finished(order, signal=15))
    assert story.free("n1") == 3


def test_a_launch_is_remembered_with_pid_incarnation_and_seq(story: Story) -> None:
    story.nodes(n1=3)
    (order,) = launches(story.tell(start("j", 3)))
    draft = story.tell(acknowledged(order, seq=9, pid=17))
    told = fact(draft, WorkerLaunched)
    assert (told.pid, told.seq, told.incarnation) == (17, 9, "n1-a")


def test_a_run_ends_with_its_last_worker_and_fails_if_one_failed(story: Story) -> None:
    story.nodes(n1=1, n2=1)
    one, two = story.running("j", 2)
    assert kinds(story.tell(ended(one, "n1", exit_code=3))) == ["worker_ended"]
    draft = story.tell(ended(two, "n2"))
    assert kinds(draft) == ["worker_ended", "run_ended"]
    run = story.ledger.jobs["j"].current
    assert (run.state, run.reason) == (RunState.FAILED, f"worker {one}: exit 3")


def test_a_run_whose_workers_all_finished_is_finished(story: Story) -> None:
    story.nodes(n1=2)
    (one,) = story.running("j", 2)
    story.tell(ended(one))
    assert story.ledger.jobs["j"].current.state is RunState.FINISHED
