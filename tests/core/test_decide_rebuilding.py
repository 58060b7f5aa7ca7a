"""A log that lost its end: what tells of it, what is left alone, and what a rebuild takes in."""

from __future__ import annotations

import pytest

from events.errors import DuplicateNode, Invalid, NotEnoughSlots, NotLeader
from events.facts import OrphansGone, RunAdopted, WorkerAdopted, WorkerOrphaned
from events.messages import RebuildReply, RebuildReq
from events.states import RunState, WorkerState
from events.traffic import InventoryRow
from schedulers.decide.nodes import BELIEVED_MS
from tests.support.story import (
    FIRST_EPOCH,
    Story,
    beat,
    ended,
    fact,
    facts,
    inventory,
    kinds,
    launches,
    placed,
    register,
    start,
    stop,
    stops,
)


def lives(worker_id: str, job_id: str = "j", run_id: int = 1, slots: int = 2) -> InventoryRow:
    """A worker whose stamp the log can't confirm."""
    return InventoryRow(
        worker_id=worker_id,
        job_id=job_id,
        run_id=run_id,
        slots=slots,
        state=WorkerState.RUNNING,
        pid=7,
    )


def shows(story: Story, node_id: str, *rows: InventoryRow) -> None:
    story.tell(register(node_id, 4, workers=rows))


def rebuild(story: Story, command_id: str = "r1") -> RebuildReply:
    story.tell(RebuildReq(command_id=command_id))
    reply = story.outcome(command_id)
    assert isinstance(reply, RebuildReply)
    return reply


def test_what_the_log_has_lost_is_left_alone_and_keeps_its_slots(story: Story) -> None:
    shows(story, "n1", lives("w1"))
    assert story.ledger.doubted == {"n1": {"w1": 2}}
    story.tell(start("k", 4, command_id="c1"))
    refused = story.refusal("c1")
    assert isinstance(refused, NotEnoughSlots)
    assert (refused.slots_needed, refused.slots_free) == (2, 2)
    assert placed(story.tell(start("k", 2))) == {"n1": [2]}
    story.check()


def test_a_rebuild_takes_it_in_as_it_is(story: Story) -> None:
    shows(story, "n1", lives("w1"), lives("w2", "other", 7, 1))
    shows(story, "n2", lives("w3"))
    draft = story.tell(RebuildReq(command_id="r1"))
    assert len(facts(draft, RunAdopted)) == 2
    assert not stops(draft)
    reply = story.outcome("r1")
    assert isinstance(reply, RebuildReply)
    assert (set(reply.workers), reply.left, reply.unheard) == ({"w1", "w2", "w3"}, {}, [])
    run = story.ledger.jobs["j"].current
    assert (run.state, run.run_id, run.slots) == (RunState.RUNNING, 1, 4)
    assert (story.free("n1"), story.free("n2")) == (1, 2)
    assert (story.ledger.doubted, story.ledger.state.orphans) == ({}, {})
    assert story.state_of("w1") is WorkerState.RUNNING
    assert story.ledger.state.highest_run == {"j": 1, "other": 7}
    story.check()


def test_what_was_taken_in_lives_and_ends_like_any_other(story: Story) -> None:
    shows(story, "n1", lives("w1"))
    rebuild(story)
    assert story.tell(inventory("n1", lives("w1"))).record is None
    (order,) = stops(story.tell(stop("j", command_id="s")))
    assert order.worker_id == "w1"
    story.tell(ended("w1"))
    assert story.ledger.jobs["j"].current.state is RunState.STOPPED
    assert story.free("n1") == 4
    story.check()


def test_what_it_was_started_with_is_not_known_and_so_not_started_again(story: Story) -> None:
    shows(story, "n1", lives("w1"))
    rebuild(story)
    run = story.ledger.jobs["j"].current
    assert not story.ledger.defines(run)
    story.tell(ended("w1"))
    assert run.ended
    assert not story.ledger.defines(run)
    assert not story.fold().defines(story.fold().jobs["j"].current)


def test_right_after_a_loss_no_node_is_known(story: Story) -> None:
    assert rebuild(story).nodes == 0
    story.nodes(n1=1)
    assert rebuild(story, "r2").nodes == 1


def test_it_may_be_repeated_and_then_finds_nothing(story: Story) -> None:
    shows(story, "n1", lives("w1"))
    rebuild(story)
    assert rebuild(story, "r2").workers == []


def test_a_node_that_was_not_heard_yet_is_named_and_taken_later(story: Story) -> None:
    shows(story, "n1", lives("w1"))
    story.lead()
    reply = rebuild(story)
    assert (reply.workers, reply.unheard) == ([], ["n1"])
    assert "has not said" in reply.left["w1"]
    story.tell(inventory("n1", lives("w1"), epoch=story.epoch))
    assert rebuild(story, "r2").workers == ["w1"]


def test_workers_that_come_later_join_the_run_that_was_taken_in(story: Story) -> None:
    shows(story, "n1", lives("w1"))
    rebuild(story)
    shows(story, "n2", lives("w2"))
    draft = story.tell(RebuildReq(command_id="r2"))
    assert not facts(draft, RunAdopted)
    assert fact(draft, WorkerAdopted).worker_id == "w2"
    assert story.ledger.jobs["j"].current.slots == 4
    story.check()


def test_of_two_runs_of_a_job_the_later_one_is_taken_in(story: Story) -> None:
    shows(story, "n1", lives("old", run_id=1), lives("new", run_id=2))
    reply = rebuild(story)
    assert reply.workers == ["new"]
    assert set(reply.left) == {"old"}


def test_a_run_that_lives_in_the_log_is_not_pushed_aside(story: Story) -> None:
    story.nodes(n2=4)
    story.running("j", 1)
    shows(story, "n1", lives("w1", run_id=3))
    reply = rebuild(story)
    assert reply.workers == []
    assert "stop it first" in reply.left["w1"]
    story.tell(stop("j", run_id=1, force=True))
    for worker in story.ledger.live_of("j"):
        story.tell(ended(worker.worker_id, worker.node_id))
    assert rebuild(story, "r2").workers == ["w1"]


def test_what_ended_by_itself_is_forgotten(story: Story) -> None:
    shows(story, "n1", lives("w1"), lives("w2", "k"))
    draft = story.tell(inventory("n1", lives("w2", "k")))
    assert fact(draft, OrphansGone).worker_ids == ["w1"]
    assert rebuild(story).workers == ["w2"]
    assert story.ledger.doubted == {}


def test_a_new_incarnation_tells_of_it_anew(story: Story) -> None:
    shows(story, "n1", lives("w1"))
    draft = story.tell(register("n1", 4, incarnation="n1-b", workers=[lives("w1")]))
    assert fact(draft, WorkerOrphaned).incarnation == "n1-b"
    assert story.ledger.doubted == {"n1": {"w1": 2}}
    assert rebuild(story).workers == ["w1"]


@pytest.mark.parametrize("message", [beat(epoch=FIRST_EPOCH + 5), register(epoch=FIRST_EPOCH + 5)])
def test_an_epoch_above_ours_ends_the_lead(story: Story, message: object) -> None:
    story.nodes(n1=4)
    draft = story.tell(message)  # type: ignore[arg-type]
    assert isinstance(draft.answer, NotLeader)
    assert draft.outranked_by == ("n1", FIRST_EPOCH + 5)
    assert draft.record is None


def test_an_epoch_that_nobody_can_have_had_is_a_broken_message(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(beat(epoch=FIRST_EPOCH + BELIEVED_MS + 1))
    assert isinstance(draft.answer, Invalid)
    assert draft.outranked_by is None


def test_an_old_agent_with_a_high_epoch_says_nothing_about_the_log(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(register("n1", 4, incarnation="n1-b"))
    draft = story.tell(register("n1", 4, incarnation="n1-a", epoch=FIRST_EPOCH + 5))
    assert isinstance(draft.answer, DuplicateNode | NotLeader)
    assert not launches(draft)
    assert "node_registered" not in kinds(draft)
