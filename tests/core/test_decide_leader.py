"""A new leader: what it reads, asks, repeats; and the local node of a backend without agents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from events.errors import DuplicateNode
from events.facts import LeaderStarted, WorkerEnded
from events.messages import StartReply
from events.states import IllegalTransition, NodeState, WorkerState
from events.traffic import RegisterNodeReq
from schedulers.decide import Rules
from schedulers.decide.orders import ASK_AGAIN
from tests.support.story import (
    FIRST_EPOCH,
    Story,
    acknowledged,
    asked,
    assigned,
    beat,
    fact,
    inventory,
    kinds,
    launches,
    placed,
    register,
    row,
    start,
    stop,
    stopped_ids,
    tick,
)


def test_it_says_so_first_and_asks_every_node_that_is_not_expired(story: Story) -> None:
    story.nodes(n1=1, n2=1)
    story.tell(beat("n2"), at=20)
    story.tell(tick(), at=31)
    draft = story.lead()
    assert fact(draft, LeaderStarted).epoch == FIRST_EPOCH + 1
    assert asked(draft) == ["n2"]
    assert story.node_state("n1") is NodeState.EXPIRED


def test_every_node_gets_a_full_new_term(story: Story) -> None:
    story.nodes(n1=1)
    story.now = story.now.replace(hour=5)
    story.lead()
    assert story.tell(tick(), after=30).record is None
    assert kinds(story.tell(tick(), after=0.001)) == ["node_expired"]


def test_it_finishes_what_the_old_one_began(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    story.lead()
    draft = story.tell(inventory("n1", epoch=story.epoch))
    (again,) = launches(draft)
    assert (again.worker_id, again.epoch) == (order.worker_id, FIRST_EPOCH + 1)
    assert again.stamp == order.stamp
    story.tell(acknowledged(again))
    assert isinstance(story.outcome("c1"), StartReply)


def test_it_sends_again_the_stops_that_were_lost_with_the_old_one(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 2)))
    story.tell(acknowledged(order))
    story.tell(stop("j", command_id="c9"))
    story.lead()
    draft = story.tell(inventory("n1", row(order), epoch=story.epoch))
    assert stopped_ids(draft) == [order.worker_id]


def test_deadlines_of_the_old_ones_commands_hold(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(start("j", 2, command_id="c1"))
    story.lead()
    story.tell(beat("n1", epoch=story.epoch), at=29)
    draft = story.tell(tick(), at=30)
    assert kinds(draft) == ["run_stopping", "worker_stopping"]


def test_a_repeated_command_is_joined_under_the_new_one_too(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(start("j", 2, command_id="c1"))
    story.lead()
    draft = story.tell(start("j", 2, command_id="c1"))
    assert (draft.record, draft.joined) == (None, "c1")


def test_a_node_comes_first_once_it_has_seen_the_new_epoch(story: Story) -> None:
    story.nodes(n1=4, n2=8)
    story.lead()
    story.tell(beat("n1", epoch=FIRST_EPOCH))
    assert assigned(story.tell(start("a"))) == {"n2": [1]}
    story.tell(beat("n1", epoch=FIRST_EPOCH + 1))
    assert placed(story.tell(start("b"))) == {"n1": [1]}


def test_a_worker_is_launched_once_its_node_has_seen_the_new_epoch(story: Story) -> None:
    """Until then an order of the last leader could still be obeyed there."""
    story.nodes(n1=4)
    story.lead()
    given = story.tell(start("a"))
    assert (assigned(given), launches(given)) == ({"n1": [1]}, [])
    given = story.tell(start("b"), after=ASK_AGAIN.total_seconds())
    assert (assigned(given), launches(given), asked(given)) == ({"n1": [1]}, [], ["n1"])
    assert placed(story.tell(inventory("n1", epoch=story.epoch))) == {"n1": [1, 1]}


def test_an_epoch_must_grow(story: Story) -> None:
    with pytest.raises(IllegalTransition, match="leader 1000 is at 1000"):
        story.lead(epoch=FIRST_EPOCH)


# --- the local node -------------------------------------------------------------------------


@pytest.fixture
def home(stories: Callable[[Rules], Story]) -> Story:
    story = stories(Rules(local_node="local"))
    story.tell(local())
    return story


def local(**fields: object) -> RegisterNodeReq:
    given = {"incarnation": "local-m", "machine_id": "m"} | fields
    return register("local", 8, **given)


def test_it_is_never_expired(home: Story) -> None:
    assert not home.ledger.nodes["local"].watched
    assert home.tell(tick(), at=100_000).record is None
    assert placed(home.tell(start("j"))) == {"local": [1]}


def test_a_beat_in_its_name_does_not_make_it_one_that_can_expire(home: Story) -> None:
    home.tell(beat("local", incarnation="local-m"))
    assert home.tell(tick(), after=1_000).record is None


def test_the_list_it_registers_with_under_a_new_leader_is_the_truth(home: Story) -> None:
    one, two, three = (launches(home.tell(start(job_id)))[0] for job_id in ("a", "b", "c"))
    home.tell(acknowledged(one, seq=7))
    home.tell(acknowledged(two, seq=8))
    home.lead()
    draft = home.tell(local(workers=[row(one)], epoch=home.epoch))
    told = fact(draft, WorkerEnded)
    assert (told.worker_id, told.state) == (two.worker_id, WorkerState.LOST)
    assert home.state_of(one.worker_id) is WorkerState.RUNNING
    assert [order.worker_id for order in launches(draft)] == [three.worker_id]


def test_a_controller_on_another_machine_may_not_take_over_its_workers(home: Story) -> None:
    (order,) = launches(home.tell(start("j")))
    home.tell(acknowledged(order))
    home.lead()
    draft = home.tell(local(incarnation="local-x", machine_id="x"))
    assert isinstance(draft.answer, DuplicateNode)
    assert home.state_of(order.worker_id) is WorkerState.RUNNING
