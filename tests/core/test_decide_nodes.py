"""Nodes: registration and rivals, signs of life, expiry, return."""

from __future__ import annotations

from events.errors import DuplicateNode, SlotbusError, UnknownNode
from events.facts import NodeExpired, WorkerEnded, WorkerLost, WorkerReturned
from events.ledger import live_digest
from events.states import NodeState, RunState, WorkerState
from events.traffic import FinishedReply, HeartbeatReply, RegisterReply
from schedulers.decide import Draft, next_due
from schedulers.decide.messages import Acknowledge, Grace, InventoryFailed
from tests.support.story import (
    DAWN,
    FIRST_EPOCH,
    Story,
    acknowledged,
    asked,
    beat,
    ended,
    fact,
    facts,
    finished,
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


def refusal(draft: Draft) -> SlotbusError:
    assert isinstance(draft.answer, SlotbusError)
    return draft.answer


# --- registration ---------------------------------------------------------------------------


def test_a_new_node_is_told_how_often_to_beat(story: Story) -> None:
    draft = story.tell(register("n1", 4, labels={"zone": "a"}, addr="h:1", version="1.2"))
    assert kinds(draft) == ["node_registered"]
    assert draft.answer == RegisterReply(epoch=FIRST_EPOCH, heartbeat_s=5.0, expiry_s=30.0)
    node = story.ledger.nodes["n1"]
    assert (node.task_slots, node.labels, node.addr, node.version) == (
        4, {"zone": "a"}, "h:1", "1.2",
    )  # fmt: skip


def test_one_that_listed_nothing_is_asked_what_it_runs(story: Story) -> None:
    draft = story.tell(register("n1", 4, workers=None))
    assert asked(draft) == ["n1"]
    assert placed(story.tell(start("j"))) == {"n1": [1]}


def test_the_same_offer_again_is_no_news(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(register("n1", 4))
    assert (draft.record, asked(draft)) == (None, ["n1"])
    assert isinstance(draft.answer, RegisterReply)


def test_more_slots_of_the_same_agent_are_news(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(register("n1", 6))
    assert story.free("n1") == 6


def test_a_node_that_comes_back_smaller_shows_no_free_slots_and_gets_nothing_new(
    story: Story,
) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 3)))
    story.tell(acknowledged(order))
    story.tell(register("n1", 2, incarnation="n1-b", workers=[row(order)]))
    assert story.state_of(order.worker_id) is WorkerState.RUNNING
    assert (story.free("n1"), story.ledger.held_slots("n1")) == (0, 3)


def test_a_new_agent_of_the_same_machine_supersedes_the_old_one(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 3)))
    story.tell(acknowledged(order))
    draft = story.tell(register("n1", 4, incarnation="n1-b", workers=[row(order)]))
    assert kinds(draft) == ["node_registered"]
    assert isinstance(refusal(story.tell(beat("n1"))), DuplicateNode)
    assert isinstance(refusal(story.tell(register("n1"))), DuplicateNode)
    assert isinstance(story.tell(beat("n1", incarnation="n1-b")).answer, HeartbeatReply)


def test_a_new_agent_that_lists_nothing_is_asked_although_the_old_one_was_just_asked(
    story: Story,
) -> None:
    story.nodes(n1=4)
    assert asked(story.tell(register("n1"))) == ["n1"]
    assert asked(story.tell(register("n1", incarnation="n1-b", workers=None), after=1)) == ["n1"]


def test_another_machine_may_not_take_the_id_of_a_node_that_is_alive(story: Story) -> None:
    story.nodes(n1=4)
    rival = register("n1", 8, incarnation="x", machine_id="elsewhere")
    error = refusal(story.tell(rival, at=30))
    assert isinstance(error, DuplicateNode)
    assert error.facts["machine_id"] == "m-n1"
    assert story.ledger.nodes["n1"].task_slots == 4


def test_another_machine_may_not_take_the_id_of_a_node_whose_workers_may_live(
    story: Story,
) -> None:
    story.nodes(n1=4)
    (worker_id,) = story.running("j", 2)
    rival = register("n1", 8, incarnation="x", machine_id="elsewhere")
    draft = story.tell(rival, at=30.001)
    assert kinds(draft) == ["node_expired", "worker_lost"]
    error = refusal(draft)
    assert isinstance(error, DuplicateNode)
    assert error.facts["workers"] == [worker_id]
    assert kinds(story.tell(register("n1"))) == ["node_returned"]


def test_another_machine_may_take_the_id_of_a_node_that_has_expired(story: Story) -> None:
    story.nodes(n1=4)
    rival = register("n1", 8, incarnation="x", machine_id="elsewhere")
    draft = story.tell(rival, at=30.001)
    assert kinds(draft) == ["node_expired", "node_registered", "node_returned"]
    assert story.free("n1") == 8
    assert isinstance(refusal(story.tell(register("n1"))), DuplicateNode)


def test_workers_that_a_new_agent_no_longer_has_are_gone(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 3)))
    story.tell(acknowledged(order))
    draft = story.tell(register("n1", 4, incarnation="n1-b"))
    assert fact(draft, WorkerEnded).state is WorkerState.LOST
    assert story.ledger.jobs["j"].current.state is RunState.FAILED


# --- signs of life --------------------------------------------------------------------------


def test_a_beat_of_a_node_nobody_knows_makes_it_register(story: Story) -> None:
    assert isinstance(refusal(story.tell(beat("n1"))), UnknownNode)
    story.nodes(n1=4)
    assert isinstance(refusal(story.tell(beat("n1", incarnation="other"))), UnknownNode)


def test_a_beat_is_answered_with_the_epoch_and_is_not_in_the_log(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(beat("n1"), after=5)
    assert (draft.answer, draft.record, draft.effects) == (
        HeartbeatReply(epoch=FIRST_EPOCH),
        None,
        [],
    )


def test_a_digest_that_differs_makes_the_leader_ask(story: Story) -> None:
    story.nodes(n1=4)
    (one,) = story.running("j")
    assert asked(story.tell(beat("n1", digest=live_digest([one])))) == []
    assert asked(story.tell(beat("n1", digest=live_digest([])), after=5)) == ["n1"]
    assert asked(story.tell(beat("n1", digest=live_digest([])), after=4.9)) == []
    assert asked(story.tell(beat("n1", digest=live_digest([])), after=0.1)) == ["n1"]


def test_an_assigned_worker_is_not_in_the_digest_yet(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j")))
    assert asked(story.tell(beat("n1", digest=live_digest([])))) == []
    assert asked(story.tell(beat("n1", digest=live_digest([order.worker_id])))) == ["n1"]


def test_a_list_that_did_not_come_is_asked_for_again_even_if_digests_agree(story: Story) -> None:
    """Else a stop that was lost with the old leader would never be sent again."""
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j")))
    story.tell(acknowledged(order))
    story.tell(stop("j"))
    assert asked(story.lead()) == ["n1"]
    story.tell(InventoryFailed("n1", "no answer"))
    same = beat("n1", digest=live_digest([order.worker_id]), epoch=story.epoch)
    assert asked(story.tell(same)) == ["n1"]
    draft = story.tell(inventory("n1", row(order), epoch=story.epoch))
    assert stopped_ids(draft) == [order.worker_id]
    assert asked(story.tell(same, after=6)) == []


def test_a_beat_that_overtakes_the_report_of_an_end_ends_nothing_wrongly(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j")))
    story.tell(acknowledged(order))
    assert asked(story.tell(beat("n1", digest=live_digest([])))) == ["n1"]
    draft = story.tell(inventory("n1", row(order, WorkerState.FAILED, exit_code=7)))
    told = fact(draft, WorkerEnded)
    assert (told.state, told.exit_code) == (WorkerState.FAILED, 7)
    late = story.tell(finished(order, exit_code=7))
    assert late.record is None
    assert late.effects == [Acknowledge("n1", order.worker_id)]
    assert late.answer == FinishedReply(epoch=FIRST_EPOCH)


# --- expiry ---------------------------------------------------------------------------------


def test_thirty_seconds_of_silence_are_alive_and_a_little_more_is_not(story: Story) -> None:
    story.nodes(n1=4)
    assert story.tell(tick(), at=29.999).record is None
    assert story.tell(tick(), at=30).record is None
    draft = story.tell(tick(), at=30.000001)
    assert fact(draft, NodeExpired).last_seen == DAWN
    assert story.node_state("n1") is NodeState.EXPIRED


def test_a_beat_just_in_time_gives_a_full_new_term(story: Story) -> None:
    story.nodes(n1=4)
    assert story.tell(beat("n1"), at=30).record is None
    assert story.tell(tick(), at=60).record is None
    assert kinds(story.tell(tick(), at=60.001)) == ["node_expired"]


def test_a_beat_just_too_late_expires_the_node_and_brings_it_back(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(beat("n1"), at=30.001)
    assert kinds(draft) == ["node_expired", "node_returned"]
    assert asked(draft) == ["n1"]


def test_expiry_is_looked_at_before_every_decision(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(start("j"), at=31)
    assert kinds(draft) == ["node_expired", "command_taken", "command_done"]


def test_the_timer_is_set_to_the_first_node_that_can_expire(story: Story) -> None:
    assert next_due(story.ledger, story.pulse) is None
    story.nodes(n1=4)
    story.tell(register("n2"), at=10)
    due = next_due(story.ledger, story.pulse)
    assert due is not None
    assert (due - DAWN).total_seconds() == 30
    story.tell(beat("n1"), at=20)
    story.tell(tick(), at=30.001)
    due = next_due(story.ledger, story.pulse)
    assert due is not None
    assert (due - DAWN).total_seconds() == 40


def test_workers_of_a_silent_node_are_lost_and_keep_their_slots(story: Story) -> None:
    story.nodes(n1=4, n2=4)
    (one,) = story.running("j", 3)
    story.tell(beat("n2"), at=30)
    draft = story.tell(tick(), at=31)
    assert fact(draft, WorkerLost).worker_id == one
    assert story.free("n1") == 1
    assert story.ledger.jobs["j"].current.state is RunState.RUNNING
    assert placed(story.tell(start("k", 4))) == {"n2": [4]}


def test_a_moment_in_which_nobody_could_be_heard_gives_everybody_a_new_term(
    story: Story,
) -> None:
    story.nodes(n1=4)
    assert story.tell(Grace("cut off"), at=100).record is None
    assert story.tell(tick(), at=130).record is None
    assert kinds(story.tell(tick(), at=130.001)) == ["node_expired"]


def test_a_lost_worker_that_is_seen_again_returns_if_its_run_wants_it(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 3)))
    story.tell(acknowledged(order))
    story.tell(tick(), at=31)
    story.tell(beat("n1"))
    draft = story.tell(inventory("n1", row(order, pid=12)))
    assert fact(draft, WorkerReturned).pid == 12
    assert story.state_of(order.worker_id) is WorkerState.RUNNING


def test_a_lost_worker_whose_run_was_replaced_is_stopped_on_return(story: Story) -> None:
    story.nodes(n1=1)
    (order,) = launches(story.tell(start("j")))
    story.tell(acknowledged(order))
    story.tell(register("n2", 1), at=31)
    story.tell(start("j"))
    story.tell(beat("n1"))
    draft = story.tell(inventory("n1", row(order)))
    assert not facts(draft, WorkerReturned)
    assert stopped_ids(draft) == [order.worker_id]


def test_the_end_of_a_lost_worker_counts_before_its_node_is_back(story: Story) -> None:
    story.nodes(n1=1)
    (order,) = launches(story.tell(start("j")))
    story.tell(acknowledged(order))
    story.tell(tick(), at=31)
    story.tell(finished(order))
    assert story.free("n1") == 1
    assert story.node_state("n1") is NodeState.EXPIRED


# --- ends -----------------------------------------------------------------------------------


def test_ends_of_workers_nobody_knows_are_acknowledged(story: Story) -> None:
    draft = story.tell(ended("w-old", "n1"))
    assert draft.record is None
    assert draft.effects == [Acknowledge("n1", "w-old")]
    assert isinstance(draft.answer, FinishedReply)


def test_the_end_of_a_copy_is_acknowledged_and_the_worker_lives_on(story: Story) -> None:
    """Else an agent that had to stop an orphan would report its end for ever."""
    story.nodes(n1=1)
    (one,) = story.running("j")
    draft = story.tell(ended(one, "n2"))
    assert (draft.record, draft.effects) == (None, [Acknowledge("n2", one)])
    assert story.state_of(one) is WorkerState.RUNNING


def test_how_a_worker_ended_says_its_state(story: Story) -> None:
    story.nodes(n1=3)
    for job_id, how, state, reason in (
        ("a", {"exit_code": 0}, WorkerState.FINISHED, "exit 0"),
        ("b", {"exit_code": 2}, WorkerState.FAILED, "exit 2"),
        ("c", {"signal": 9}, WorkerState.FAILED, "signal 9"),
        ("d", {"exit_code": None}, WorkerState.LOST, "exit unknown"),
        ("e", {"exit_code": 1, "reason": "told"}, WorkerState.FAILED, "told"),
    ):
        (one,) = story.running(job_id)
        told = fact(story.tell(ended(one, **how)), WorkerEnded)
        assert (told.state, told.reason) == (state, reason)
