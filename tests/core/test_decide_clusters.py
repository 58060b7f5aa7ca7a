"""What a backend without nodes of its own tells: starts that it refuses, selectors that are not
ours to obey, workers that nobody can vouch for, and pods that wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from events.errors import Invalid
from events.facts import WorkerEnded, WorkerHosted, WorkerLost, WorkerOrphaned, WorkerStopping
from events.messages import StartPipelineReq
from events.queries import QueryWorkers, WorkersReply
from events.states import WorkerState
from schedulers.decide import Rules, decide
from schedulers.launcher import Assignment, HostSeen, WorkerSeen
from tests.support.story import (
    Story,
    acknowledged,
    ended,
    fact,
    inventory,
    kinds,
    launches,
    row,
    start,
    stop,
    stopped_ids,
)

W = WorkerState


@pytest.fixture
def order(story: Story) -> Assignment:
    """A worker assigned to node n1."""
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    return order


@pytest.fixture
def running(story: Story, order: Assignment) -> Assignment:
    """The same, launched."""
    story.tell(acknowledged(order))
    return order


# --- starts -------------------------------------------------------------------------------


def test_what_a_backend_can_not_carry_out_is_not_accepted(story: Story) -> None:
    story.nodes(n1=4)

    def check(request: StartPipelineReq) -> None:
        raise Invalid("never on Sundays", path="$.slots")

    draft = decide(
        story.ledger, story.pulse, story.rules, start("j", 1, command_id="c1"),
        now=story.now, epoch=story.epoch, token="t", check=check,
    )  # fmt: skip
    assert isinstance(draft.answer, Invalid)
    assert draft.record is None
    assert "c1" not in story.ledger.commands


def test_a_known_command_is_not_checked_again(story: Story, order: Assignment) -> None:
    def check(request: StartPipelineReq) -> None:
        raise Invalid("the configuration has changed since", path="$.slots")

    draft = decide(
        story.ledger, story.pulse, story.rules, start("j", 2, command_id="c1"),
        now=story.now, epoch=story.epoch, token="t", check=check,
    )  # fmt: skip
    assert (draft.answer, draft.joined) == (None, "c1")


def test_selectors_are_handed_on_where_nodes_are_not_ours_to_choose(
    stories: Callable[[Rules], Story],
) -> None:
    story = stories(Rules(chooses_nodes=False)).nodes(n1=4)
    (order,) = launches(story.tell(start("j", 1, selector={"zone": "a"}, spread="even")))
    assert (order.selector, order.spread) == ({"zone": "a"}, "even")


# --- where a worker is --------------------------------------------------------------------


def test_the_machine_of_a_worker_is_in_the_log_once_and_in_answers(
    story: Story, order: Assignment
) -> None:
    sight = HostSeen(worker_id=order.worker_id, host="node-7")
    draft = story.tell(sight)
    assert fact(draft, WorkerHosted) == WorkerHosted(worker_id=order.worker_id, host="node-7")
    assert story.state_of(order.worker_id) is W.ASSIGNED
    assert story.tell(sight).record is None
    story.tell(acknowledged(order))
    story.tell(ended(order.worker_id))
    late = HostSeen(worker_id=order.worker_id, host="elsewhere")
    assert story.tell(late).record is None
    assert story.tell(HostSeen(worker_id="w-nobody", host="node-7")).record is None
    answer = story.tell(QueryWorkers(all=True)).answer
    assert isinstance(answer, WorkersReply)
    (found,) = answer.workers
    assert (found.node_id, found.host) == ("n1", "node-7")


# --- workers that nobody can vouch for ----------------------------------------------------


def test_a_worker_out_of_sight_is_lost_and_keeps_its_slots(
    story: Story, running: Assignment
) -> None:
    draft = story.tell(WorkerSeen(worker_id=running.worker_id, lost=True, reason="deleted"))
    assert fact(draft, WorkerLost).reason == "deleted"
    assert story.state_of(running.worker_id) is W.LOST
    assert story.free("n1") == 2
    again = story.tell(WorkerSeen(worker_id=running.worker_id, lost=True, reason="deleted"))
    assert again.record is None


def test_a_stop_that_takes_long_says_what_it_waits_for(story: Story, running: Assignment) -> None:
    story.tell(stop("j"))
    sight = WorkerSeen(worker_id=running.worker_id, lost=False, reason="still on node x")
    draft = story.tell(sight)
    assert fact(draft, WorkerStopping).reason == "still on node x"
    assert story.tell(sight).record is None
    assert story.state_of(running.worker_id) is W.STOPPING


def test_a_stop_that_takes_long_is_no_reason_to_think_a_worker_lost(
    story: Story, running: Assignment
) -> None:
    draft = story.tell(WorkerSeen(worker_id=running.worker_id, lost=False, reason="whatever"))
    assert draft.record is None


def test_sights_of_unknown_and_ended_workers_change_nothing(
    story: Story, running: Assignment
) -> None:
    story.tell(ended(running.worker_id))
    for worker_id in (running.worker_id, "w-nobody"):
        draft = story.tell(WorkerSeen(worker_id=worker_id, lost=True, reason="?"))
        assert draft.record is None


# --- ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"exit_code": 0, "state": "lost"}, W.LOST),
        ({"exit_code": 143, "state": "lost"}, W.LOST),
        ({"exit_code": None, "state": "failed"}, W.FAILED),
        ({"exit_code": None, "state": "finished"}, W.LOST),
        ({"exit_code": None}, W.LOST),
        ({"exit_code": 0}, W.FINISHED),
        ({"exit_code": 3, "state": "failed"}, W.FAILED),
    ],
)
def test_a_running_worker_s_end_is_what_its_exit_and_its_node_say(
    told: dict[str, object], state: WorkerState, story: Story, running: Assignment
) -> None:
    draft = story.tell(ended(running.worker_id, "n1", **told))
    assert (fact(draft, WorkerEnded).state, fact(draft, WorkerEnded).launched) == (state, True)


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"exit_code": 143, "state": "lost"}, W.FINISHED),
        ({"exit_code": None, "state": "finished"}, W.FINISHED),
        ({"exit_code": None, "state": "lost"}, W.LOST),
    ],
)
def test_a_stopped_worker_s_end_is_as_asked_if_it_is_proved(
    told: dict[str, object], state: WorkerState, story: Story, running: Assignment
) -> None:
    story.tell(stop("j"))
    assert fact(story.tell(ended(running.worker_id, "n1", **told)), WorkerEnded).state is state


def test_a_worker_that_failed_without_an_exit_never_ran(story: Story, order: Assignment) -> None:
    draft = story.tell(
        ended(order.worker_id, exit_code=None, state="failed", reason="unschedulable")
    )
    assert fact(draft, WorkerEnded).launched is False
    assert "unschedulable" in story.refusal("c1").message


# --- lists --------------------------------------------------------------------------------


def test_a_pod_that_waits_is_ordered_again_and_not_believed_to_run(
    story: Story, order: Assignment
) -> None:
    draft = story.tell(inventory("n1", row(order, W.ASSIGNED)))
    assert draft.record is None
    assert launches(draft) == [order]


def test_a_pod_that_waits_and_should_stop_is_told_again(story: Story, order: Assignment) -> None:
    story.tell(stop("j"))
    draft = story.tell(inventory("n1", row(order, W.ASSIGNED)))
    assert stopped_ids(draft) == [order.worker_id]


def test_a_launched_worker_that_nobody_can_vouch_for_stays_as_it_is(
    story: Story, running: Assignment
) -> None:
    assert story.tell(inventory("n1", row(running, W.ASSIGNED))).record is None
    story.tell(WorkerSeen(worker_id=running.worker_id, lost=True, reason="deleted"))
    assert story.tell(inventory("n1", row(running, W.ASSIGNED))).record is None
    assert story.state_of(running.worker_id) is W.LOST


def test_a_waiting_pod_of_a_worker_that_is_over_is_an_orphan(
    story: Story, running: Assignment
) -> None:
    story.tell(ended(running.worker_id))
    draft = story.tell(inventory("n1", row(running, W.ASSIGNED)))
    assert kinds(draft) == ["worker_orphaned"]
    assert fact(draft, WorkerOrphaned).stopped
    assert stopped_ids(draft) == [running.worker_id]
