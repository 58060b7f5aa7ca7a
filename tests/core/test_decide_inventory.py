"""Inventories: what a node's list proves, what it does not, and workers that should not be."""

from __future__ import annotations

import pytest

from events.facts import WorkerEnded, WorkerLaunched, WorkerOrphaned
from events.states import WorkerState
from events.traffic import InventoryRow
from schedulers.decide.messages import StopAnswered
from schedulers.launcher import Assignment
from tests.support.story import (
    FIRST_EPOCH,
    Story,
    acknowledged,
    ended,
    fact,
    inventory,
    kinds,
    launches,
    register,
    row,
    stamp,
    start,
    stop,
    stopped_ids,
)


@pytest.fixture
def order(story: Story) -> Assignment:
    """A worker assigned to node n1, which has four slots."""
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    return order


# --- assigned -------------------------------------------------------------------------------


def test_an_assigned_worker_that_is_absent_is_ordered_again(
    story: Story, order: Assignment
) -> None:
    draft = story.tell(inventory("n1"))
    assert draft.record is None
    assert launches(draft) == [order]


def test_a_new_agent_gets_the_order_under_its_own_name(story: Story, order: Assignment) -> None:
    draft = story.tell(register("n1", incarnation="n1-b"))
    (again,) = launches(draft)
    assert (again.worker_id, again.incarnation) == (order.worker_id, "n1-b")
    assert again.stamp == order.stamp


def test_an_assigned_worker_that_runs_was_launched(story: Story, order: Assignment) -> None:
    draft = story.tell(inventory("n1", row(order, pid=5), seq=3))
    told = fact(draft, WorkerLaunched)
    assert (told.pid, told.seq) == (5, 3)
    assert kinds(draft)[-1] == "command_done"


def test_an_assigned_worker_that_ended_was_launched_and_ended(
    story: Story, order: Assignment
) -> None:
    draft = story.tell(inventory("n1", row(order, WorkerState.FAILED, exit_code=1)))
    assert kinds(draft) == ["worker_ended", "run_running", "command_done", "run_ended"]


# --- running --------------------------------------------------------------------------------


def test_a_running_worker_absent_from_a_later_list_is_gone(story: Story, order: Assignment) -> None:
    story.tell(acknowledged(order, seq=5))
    draft = story.tell(inventory("n1", seq=6))
    assert fact(draft, WorkerEnded).state is WorkerState.LOST


@pytest.mark.parametrize("seq", [4, 5])
def test_a_list_taken_before_the_launch_says_nothing_about_it(
    story: Story, order: Assignment, seq: int
) -> None:
    story.tell(acknowledged(order, seq=5))
    draft = story.tell(inventory("n1", seq=seq))
    assert (draft.record, draft.effects) == (None, [])
    assert story.state_of(order.worker_id) is WorkerState.RUNNING


def test_a_list_under_a_new_leader_is_later_than_all_that_the_old_one_was_told(
    story: Story, order: Assignment
) -> None:
    """Also where the node counts anew, since its memory was lost with the worker."""
    story.tell(acknowledged(order, seq=500))
    story.lead()
    draft = story.tell(inventory("n1", seq=1, epoch=story.epoch))
    assert fact(draft, WorkerEnded).state is WorkerState.LOST


@pytest.mark.parametrize(
    "fields",
    [{"epoch": FIRST_EPOCH - 1}, {"epoch": FIRST_EPOCH + 1}, {"incarnation": "n1-older"}],
)
def test_a_list_of_another_epoch_or_incarnation_is_not_looked_at(
    story: Story, order: Assignment, fields: dict[str, object]
) -> None:
    story.tell(acknowledged(order))
    draft = story.tell(inventory("n1", seq=99, **fields))  # type: ignore[arg-type]
    assert (draft.record, draft.effects) == (None, [])


def test_a_list_of_a_node_that_expired_meanwhile_is_not_looked_at(
    story: Story, order: Assignment
) -> None:
    story.tell(acknowledged(order))
    draft = story.tell(inventory("n1", seq=99), at=31)
    assert kinds(draft) == ["node_expired", "worker_lost"]


def test_a_list_of_a_node_nobody_knows_is_not_looked_at(story: Story) -> None:
    assert story.tell(inventory("n9")).record is None


@pytest.mark.parametrize(
    ("state", "logged"),
    [
        (WorkerState.FINISHED, WorkerState.FINISHED),
        (WorkerState.FAILED, WorkerState.FAILED),
        (WorkerState.LOST, WorkerState.LOST),
    ],
)
def test_an_end_in_a_list_is_taken_over(
    story: Story, order: Assignment, state: WorkerState, logged: WorkerState
) -> None:
    story.tell(acknowledged(order))
    told = fact(story.tell(inventory("n1", row(order, state))), WorkerEnded)
    assert told.state is logged


def test_a_row_that_no_node_should_send_says_nothing(story: Story, order: Assignment) -> None:
    story.tell(acknowledged(order))
    draft = story.tell(inventory("n1", row(order, WorkerState.ASSIGNED)))
    assert (draft.record, draft.effects) == (None, [])


# --- stopping -------------------------------------------------------------------------------


def test_a_stopping_worker_that_lives_is_signalled_again(story: Story, order: Assignment) -> None:
    story.tell(acknowledged(order))
    story.tell(stop("j"))
    assert stopped_ids(story.tell(inventory("n1", row(order, WorkerState.STOPPING)))) == [
        order.worker_id
    ]


def test_a_stopping_worker_that_was_never_acknowledged_and_is_absent_is_signalled_again(
    story: Story, order: Assignment
) -> None:
    """Its order may be on its way: only a tombstone proves that it will not start."""
    story.tell(stop("j"))
    draft = story.tell(inventory("n1"))
    assert (draft.record, stopped_ids(draft)) == (None, [order.worker_id])


def test_a_stopping_worker_absent_from_a_later_list_is_gone(
    story: Story, order: Assignment
) -> None:
    story.tell(acknowledged(order))
    story.tell(stop("j", command_id="c9"))
    story.tell(inventory("n1"))
    assert story.outcome("c9") is not None


def test_a_stopping_worker_that_was_killed_finished_as_asked(
    story: Story, order: Assignment
) -> None:
    story.tell(acknowledged(order))
    story.tell(stop("j"))
    draft = story.tell(inventory("n1", row(order, WorkerState.FAILED, signal=9)))
    assert fact(draft, WorkerEnded).state is WorkerState.FINISHED


# --- lost -----------------------------------------------------------------------------------


def test_a_lost_worker_that_its_node_no_longer_has_is_gone(story: Story, order: Assignment) -> None:
    story.tell(acknowledged(order))
    story.tell(register("n1"), at=31)
    assert story.state_of(order.worker_id) is WorkerState.LOST
    story.tell(inventory("n1"))
    assert story.ledger.workers[order.worker_id].gone
    assert story.free("n1") == 4


# --- orphans --------------------------------------------------------------------------------


def stranger(**fields: object) -> InventoryRow:
    return InventoryRow(
        worker_id="w-x",
        job_id="old",
        run_id=1,
        slots=1,
        state=WorkerState.RUNNING,
        **fields,  # type: ignore[arg-type]
    )


def test_a_worker_that_is_over_in_the_log_is_stopped(story: Story, order: Assignment) -> None:
    story.tell(ended(order.worker_id))
    draft = story.tell(inventory("n1", row(order)))
    assert fact(draft, WorkerOrphaned).stopped
    assert stopped_ids(draft) == [order.worker_id]
    assert story.tell(StopAnswered(order.worker_id, "unknown", "n1")).record is None


def test_a_worker_the_log_confirms_to_have_been_ours_is_stopped(story: Story) -> None:
    story.nodes(n1=4)
    story.lead()
    draft = story.tell(inventory("n1", stranger(stamp=stamp(FIRST_EPOCH, 2)), epoch=story.epoch))
    assert fact(draft, WorkerOrphaned).stopped
    assert stopped_ids(draft) == ["w-x"]


@pytest.mark.parametrize(
    "origin",
    [
        None,
        stamp(FIRST_EPOCH, 3),
        stamp(FIRST_EPOCH + 1, 2),
        stamp(FIRST_EPOCH + 7, 2),
        stamp(FIRST_EPOCH, 2, cluster="there"),
    ],
)
def test_a_worker_the_log_can_not_confirm_is_left_alone_and_told_of_once(
    story: Story, origin: object
) -> None:
    story.nodes(n1=4)
    story.lead()
    listed = inventory("n1", stranger(stamp=origin), epoch=story.epoch)
    draft = story.tell(listed)
    assert not fact(draft, WorkerOrphaned).stopped
    assert not draft.effects
    assert [o.node_id for o in story.ledger.state.orphans.values()] == ["n1"]
    assert story.tell(listed).record is None


def test_a_worker_that_lives_elsewhere_in_the_log_is_stopped_here_and_stays_there(
    story: Story, order: Assignment
) -> None:
    story.tell(acknowledged(order))
    story.nodes(n2=1)
    draft = story.tell(inventory("n2", row(order)))
    assert stopped_ids(draft) == [order.worker_id]
    assert story.tell(StopAnswered(order.worker_id, "unknown", "n2")).record is None
    assert story.state_of(order.worker_id) is WorkerState.RUNNING


def test_ended_rows_of_workers_that_are_over_are_no_news(story: Story, order: Assignment) -> None:
    story.tell(ended(order.worker_id))
    assert story.tell(inventory("n1", row(order, WorkerState.FINISHED))).record is None
