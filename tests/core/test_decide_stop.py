"""Stops: of a job, of a run, forced, repeated, and where nobody can confirm them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from events.errors import UnknownJob, UnknownNode
from events.facts import CommandDone, WorkerStopping
from events.messages import CordonReq, NodeReply, StopReply, UncordonReq
from events.states import NodeState, RunState, WorkerState
from schedulers.decide import Rules
from schedulers.decide.commands import accepted_reply
from schedulers.decide.messages import StopAnswered
from tests.support.story import (
    Story,
    acknowledged,
    beat,
    ended,
    fact,
    inventory,
    kinds,
    launches,
    never_ran,
    placed,
    register,
    row,
    start,
    stop,
    stopped_ids,
    stops,
    tick,
)


def reply_of(story: Story, command_id: str = "c9") -> StopReply:
    reply = story.outcome(command_id)
    assert isinstance(reply, StopReply), reply
    return reply


def test_answers_when_all_are_gone(story: Story) -> None:
    story.nodes(n1=1, n2=1)
    one, two = story.running("j", 2)
    draft = story.tell(stop("j", command_id="c9", grace_s=3))
    assert kinds(draft) == ["command_taken", "run_stopping", "worker_stopping", "worker_stopping"]
    assert stopped_ids(draft) == [one, two]
    assert {(order.grace_s, order.force) for order in stops(draft)} == {(3.0, False)}
    story.tell(ended(one, "n1", signal=15))
    assert story.outcome("c9") is None
    last = story.tell(ended(two, "n2", exit_code=0))
    assert kinds(last) == ["worker_ended", "run_ended", "command_done"]
    assert (reply_of(story).workers, reply_of(story).unconfirmed) == ([one, two], [])
    assert story.ledger.jobs["j"].current.state is RunState.STOPPED


def test_a_worker_that_had_to_be_killed_finished_as_asked(story: Story) -> None:
    story.nodes(n1=1)
    (one,) = story.running("j")
    story.tell(stop("j", force=True))
    story.tell(ended(one, signal=9))
    assert story.state_of(one) is WorkerState.FINISHED


def test_of_a_job_nobody_knows_is_unknown(story: Story) -> None:
    draft = story.tell(stop("nobody", command_id="c9"))
    assert kinds(draft) == ["command_taken", "command_done"]
    assert isinstance(story.refusal("c9"), UnknownJob)


@pytest.mark.parametrize("fields", [{}, {"run_id": 7}])
def test_of_a_job_without_live_workers_is_an_empty_list(
    story: Story, fields: dict[str, int]
) -> None:
    story.nodes(n1=1)
    (one,) = story.running("j")
    story.tell(ended(one))
    story.tell(stop("j", command_id="c9", **fields))
    assert (reply_of(story).workers, reply_of(story).unconfirmed) == ([], [])


def test_of_another_run_leaves_the_current_one_alone(story: Story) -> None:
    story.nodes(n1=1)
    (one,) = story.running("j", run_id=2)
    draft = story.tell(stop("j", run_id=1, command_id="c9"))
    assert not draft.effects
    assert reply_of(story).workers == []
    assert story.state_of(one) is WorkerState.RUNNING


def test_a_forced_one_overtakes_one_with_grace(story: Story) -> None:
    story.nodes(n1=1)
    (one,) = story.running("j")
    story.tell(stop("j", command_id="c8", grace_s=60))
    draft = story.tell(stop("j", command_id="c9", force=True))
    assert fact(draft, WorkerStopping).force
    assert [order.force for order in stops(draft)] == [True]
    story.tell(ended(one, signal=9))
    assert reply_of(story, "c8").workers == reply_of(story, "c9").workers == [one]


def test_a_second_one_sends_the_signal_again_and_waits_for_the_same_end(story: Story) -> None:
    story.nodes(n1=1)
    (one,) = story.running("j")
    story.tell(stop("j", command_id="c8"))
    draft = story.tell(stop("j", command_id="c9"))
    assert kinds(draft) == ["command_taken"]
    assert stopped_ids(draft) == [one]
    done = story.tell(ended(one))
    assert kinds(done).count("command_done") == 2


def test_workers_on_a_silent_node_are_unconfirmed_and_keep_their_slots(story: Story) -> None:
    story.nodes(n1=2)
    (one,) = story.running("j", 2)
    draft = story.tell(stop("j", command_id="c9"), at=31)
    assert kinds(draft)[-1] == "command_done"
    assert not stops(draft)
    assert (reply_of(story).workers, reply_of(story).unconfirmed) == ([], [one])
    assert story.free("n1") == 0
    assert story.ledger.jobs["j"].current.state is RunState.STOPPED


def test_a_node_that_falls_silent_while_its_workers_stop_leaves_them_unconfirmed(
    story: Story,
) -> None:
    story.nodes(n1=1)
    story.tell(register("n2", 1), after=10)
    one, two = story.running("j", 2)
    story.tell(stop("j", command_id="c9"))
    story.tell(ended(two, "n2"))
    story.tell(tick(), at=31)
    assert (reply_of(story).workers, reply_of(story).unconfirmed) == ([two], [one])


def test_what_can_not_be_seen_gone_in_time_is_unconfirmed(
    stories: Callable[[Rules], Story],
) -> None:
    story = stories(Rules(stop_timeout_s=20, expiry_s=100)).nodes(n1=1)
    (one,) = story.running("j")
    story.tell(stop("j", command_id="c9", grace_s=10))
    assert story.tell(tick(), at=29.9).record is None
    story.tell(tick(), at=30)
    assert reply_of(story).unconfirmed == [one]
    assert story.state_of(one) is WorkerState.STOPPING
    story.tell(ended(one))
    assert story.ledger.jobs["j"].current.state is RunState.STOPPED


def test_of_a_starting_run_stops_what_was_sent_before_it_was_acknowledged(story: Story) -> None:
    story.nodes(n1=1)
    (order,) = launches(story.tell(start("j", 1, command_id="c1")))
    draft = story.tell(stop("j", command_id="c9"))
    assert stopped_ids(draft) == [order.worker_id]
    story.tell(acknowledged(order))
    assert story.state_of(order.worker_id) is WorkerState.STOPPING
    story.tell(ended(order.worker_id, signal=15))
    assert reply_of(story).workers == [order.worker_id]
    assert not story.ledger.pending


def test_an_answer_unknown_proves_that_the_worker_is_not_there(story: Story) -> None:
    story.nodes(n1=1)
    (one,) = story.running("j")
    draft = story.tell(stop("j", command_id="c9"))
    assert story.tell(StopAnswered(one, "ended", "n1")).record is None
    story.tell(never_ran(stops(draft)[0]))
    assert story.state_of(one) is WorkerState.LOST
    assert reply_of(story).workers == [one]


def test_an_answer_from_another_node_proves_nothing(story: Story) -> None:
    story.nodes(n1=1)
    (one,) = story.running("j")
    story.tell(stop("j"))
    assert story.tell(StopAnswered(one, "unknown", "n2")).record is None


def test_the_stop_of_a_worker_on_a_silent_node_is_sent_on_its_return(story: Story) -> None:
    story.nodes(n1=1)
    (order,) = launches(story.tell(start("j")))
    story.tell(acknowledged(order))
    story.tell(stop("j"), at=31)
    story.tell(beat("n1"))
    assert stopped_ids(story.tell(inventory("n1", row(order)))) == [order.worker_id]


def test_who_does_not_wait_is_told_what_is_not_gone_yet(story: Story) -> None:
    story.nodes(n1=1)
    (one,) = story.running("j")
    story.tell(stop("j", command_id="c9", wait_s=0))
    reply = accepted_reply(story.ledger, "c9")
    assert isinstance(reply, StopReply)
    assert (reply.workers, reply.unconfirmed) == ([], [one])


# --- cordon ---------------------------------------------------------------------------------


def test_a_cordoned_node_keeps_its_workers_and_gets_no_new_ones(story: Story) -> None:
    story.nodes(n1=4)
    (one,) = story.running("a")
    draft = story.tell(CordonReq(node_id="n1", command_id="c9"))
    assert kinds(draft) == ["command_taken", "node_cordoned", "command_done"]
    reply = story.outcome("c9")
    assert isinstance(reply, NodeReply)
    assert reply.state is NodeState.CORDONED
    assert story.state_of(one) is WorkerState.RUNNING
    why = fact(story.tell(start("b")), CommandDone).passed_over
    assert [w.reason for w in why] == ["cordoned"]
    story.tell(UncordonReq(node_id="n1"))
    assert placed(story.tell(start("b", command_id="again"))) == {"n1": [1]}


def test_a_cordon_outlives_silence_and_a_new_agent(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(tick(), at=31)
    draft = story.tell(CordonReq(node_id="n1", command_id="c9"))
    assert "node_cordoned" in kinds(draft)
    assert story.node_state("n1") is NodeState.EXPIRED
    story.tell(register("n1", 4, incarnation="n1-b"))
    assert story.node_state("n1") is NodeState.CORDONED


@pytest.mark.parametrize("request_", [CordonReq, UncordonReq])
def test_cordons_that_change_nothing_are_no_news(
    story: Story, request_: type[CordonReq | UncordonReq]
) -> None:
    story.nodes(n1=4)
    story.tell(request_(node_id="n1"))
    assert kinds(story.tell(request_(node_id="n1"))) == ["command_taken", "command_done"]


def test_a_node_nobody_knows_is_unknown(story: Story) -> None:
    story.tell(CordonReq(node_id="n9", command_id="c9"))
    assert isinstance(story.refusal("c9"), UnknownNode)
