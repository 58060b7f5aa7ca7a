"""Draining: what moves, what stops, what stays and why, and when it is over."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from events.errors import UnknownNode
from events.facts import NodeDraining, RunCreated, RunStopping, WorkerEnded
from events.messages import (
    ConfirmDeadReply,
    ConfirmDeadReq,
    CordonReq,
    DrainReply,
    DrainReq,
    UncordonReq,
)
from events.queries import NodeDetailReply, QueryNode
from events.states import NodeState, RunState, WorkerState
from schedulers.decide import Draft, Rules, next_due
from schedulers.decide.commands import accepted_reply
from tests.support.story import (
    Story,
    acknowledged,
    beat,
    ended,
    fact,
    facts,
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

PATIENT = Rules(expiry_s=100_000)
MOVE = {"on_drain": "move"}
STOP = {"on_drain": "stop"}


def drain(node_id: str = "n1", **fields: object) -> DrainReq:
    return msgspec.convert({"node_id": node_id, "command_id": "d"} | fields, DrainReq)


def reply_of(story: Story, command_id: str = "d") -> DrainReply:
    found = story.outcome(command_id)
    assert isinstance(found, DrainReply), found
    return found


def progress(story: Story, node_id: str = "n1") -> DrainReply:
    answer = story.tell(QueryNode(node_id=node_id)).answer
    assert isinstance(answer, NodeDetailReply)
    assert answer.drain is not None
    return answer.drain


def is_dead(story: Story, node_id: str) -> bool:
    return story.ledger.nodes[node_id].dead


def end_all(story: Story, worker_ids: list[str]) -> Draft:
    """They end as they were asked to; the last decision."""
    drafts = [story.tell(ended(w, story.ledger.workers[w].node_id, signal=15)) for w in worker_ids]
    return drafts[-1]


def reasons(reply: DrainReply) -> set[str]:
    return {worker.reason for worker in reply.remaining}


def test_an_empty_node_is_drained_at_once_and_stays_cordoned() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=2)
    draft = story.tell(drain())
    assert kinds(draft) == ["command_taken", "node_draining", "node_cordoned", "command_done"]
    reply = reply_of(story)
    assert (reply.complete, reply.state) == (True, NodeState.CORDONED)
    assert placed(story.tell(start("j", 1))) == {"n2": [1]}
    story.check()


def test_a_run_moves_as_a_whole_when_there_is_room_elsewhere() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=3)
    old = story.running("j", 3, **MOVE)
    first = story.running("k", 1, **STOP)
    assert {story.ledger.workers[w].node_id for w in old} == {"n2"}
    assert story.ledger.workers[first[0]].node_id == "n1"
    story.tell(stop("k"))
    end_all(story, first)
    draft = story.tell(drain("n2"))  # n1 has 2 free, 3 are needed
    assert not facts(draft, RunStopping)
    assert reasons(progress(story, "n2")) == {"nowhere to move: 1 slots missing"}
    assert story.node_state("n2") is NodeState.DRAINING

    draft = story.tell(register("n3", 1))
    assert fact(draft, RunStopping).reason == "it moves off node n2 (d)"
    assert stopped_ids(draft) == old
    assert story.outcome("d") is None
    draft = end_all(story, old)
    assert fact(draft, RunCreated).tries == 0
    assert placed(draft) == {"n1": [2], "n3": [1]}
    reply = reply_of(story)
    assert (reply.complete, reply.remaining, reply.stopped) == (True, [], [])
    (moved,) = reply.moved
    assert (moved.job_id, moved.run_id, moved.to_run) == ("j", 1, 2)
    assert moved.state is RunState.STARTING
    assert story.ledger.jobs["j"].run(1).state is RunState.STOPPED
    assert story.ledger.jobs["j"].restarts == []
    story.check()


def test_what_a_run_frees_itself_on_other_nodes_counts() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=2, n3=1)
    old = story.running("j", 3, **MOVE)
    assert [story.ledger.workers[w].node_id for w in old] == ["n1", "n2"]
    draft = story.tell(drain("n1"))
    assert stopped_ids(draft) == old
    assert sum(map(sum, placed(end_all(story, old)).values())) == 3
    assert reply_of(story).complete


def test_room_that_was_promised_to_a_run_on_the_move_is_not_given_away() -> None:
    story = Story(PATIENT).nodes(n1=4, n2=4)
    old = story.running("j", 4, **MOVE)
    story.tell(drain("n1"))
    story.tell(start("k", 1, command_id="k"))
    assert story.refusal("k").code == "not_enough_slots"
    story.tell(register("n3", 2))
    assert placed(story.tell(start("k", 2))) == {"n3": [2]}
    assert placed(end_all(story, old)) == {"n2": [4]}
    story.check()


def test_two_runs_do_not_move_into_the_same_room() -> None:
    story = Story(PATIENT).nodes(n1=4, n2=2)
    one = story.running("j", 2, **MOVE)
    two = story.running("k", 2, **MOVE)
    assert {story.ledger.workers[w].node_id for w in one + two} == {"n1"}
    draft = story.tell(drain("n1"))
    assert stopped_ids(draft) == one
    assert reasons(progress(story)) == {
        "it is being stopped",
        "nowhere to move: 2 slots missing",
    }
    end_all(story, one)
    assert story.ledger.jobs["k"].current.state is RunState.RUNNING
    story.check()


def test_those_who_wait_in_line_go_before_what_moves() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=4, n3=2)
    for job_id, slots in [("j", 2), ("x", 1), ("y", 2)]:
        story.running(job_id, slots, **MOVE)
    story.tell(start("big", 4, on_shortage="wait"))
    assert not facts(story.tell(drain("n2")), RunStopping)
    assert reasons(progress(story, "n2")) == {"nowhere to move: 2 slots missing"}
    draft = story.tell(stop("big"))
    assert [f.job_id for f in facts(draft, RunStopping)] == ["big", "j"]


def test_a_job_that_is_to_stop_is_stopped_whole() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=2)
    workers = story.running("j", 4)
    draft = story.tell(drain("n1"))
    assert not fact(draft, RunStopping).restart
    assert stopped_ids(draft) == workers
    end_all(story, workers)
    reply = reply_of(story)
    assert (reply.complete, reply.stopped, reply.moved) == (True, [workers[0]], [])
    assert story.ledger.jobs["j"].current.state is RunState.STOPPED
    story.check()


def test_a_deadline_ends_it_truthfully_and_what_remains_is_named() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=1)
    (worker,) = story.running("j", 2, **MOVE)
    story.tell(drain("n1", deadline_s=60))
    assert next_due(story.ledger, story.pulse) == story.now + timedelta(seconds=60)
    assert kinds(story.tell(tick(), after=59)) == []
    draft = story.tell(tick(), after=1)
    assert kinds(draft) == ["node_cordoned", "command_done"]
    reply = reply_of(story)
    assert (reply.complete, reply.remaining_count, reply.state) == (False, 1, NodeState.CORDONED)
    (left,) = reply.remaining
    assert (left.worker_id, left.reason) == (worker, "nowhere to move: 1 slots missing")
    assert story.ledger.jobs["j"].current.state is RunState.RUNNING
    assert kinds(story.tell(register("n3", 4))) == ["node_registered"]
    story.check()


def test_force_looks_for_no_room_and_the_run_waits_in_line() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=1)
    workers = story.running("j", 2, **MOVE)
    story.tell(drain("n1", force=True))
    draft = end_all(story, workers)
    assert kinds(draft)[-3:] == ["run_waiting", "node_cordoned", "command_done"]
    (moved,) = reply_of(story).moved
    assert moved.state is RunState.WAITING
    assert story.ledger.jobs["j"].current.missing == 1
    assert placed(story.tell(register("n3", 1))) == {"n2": [1], "n3": [1]}
    story.check()


def test_a_run_that_starts_is_moved_when_it_runs() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=2)
    (order,) = launches(story.tell(start("j", 2, **MOVE)))
    story.tell(drain(order.node_id))
    assert reasons(progress(story, order.node_id)) == {"its run is starting"}
    draft = story.tell(acknowledged(order))
    assert kinds(draft)[-2:] == ["run_stopping", "worker_stopping"]


def test_workers_on_silent_nodes_keep_a_run_where_it_is() -> None:
    story = Story().nodes(n1=2, n2=2, n3=4, n4=4)
    for order in launches(story.tell(start("j", 12, **MOVE))):
        story.tell(acknowledged(order))
    for _ in range(4):
        for node_id in ("n2", "n3", "n4"):
            story.tell(beat(node_id), after=3)
    assert story.node_state("n1") is NodeState.EXPIRED
    story.tell(register("n5", 20))
    story.tell(drain("n4"))
    assert reasons(progress(story, "n4")) == {
        "nowhere to move: workers of its job are on silent nodes"
    }


def test_a_silent_node_can_be_drained_of_nothing() -> None:
    story = Story().nodes(n1=2)
    story.running("j", 2)
    story.tell(tick(), after=31)
    story.tell(drain("n1", deadline_s=5))
    assert story.node_state("n1") is NodeState.EXPIRED
    story.tell(tick(), after=5)
    reply = reply_of(story)
    assert (reply.complete, reasons(reply)) == (False, {"its node is silent"})
    story.check()


@pytest.mark.parametrize(
    ("kind", "state"), [(UncordonReq, NodeState.READY), (CordonReq, NodeState.CORDONED)]
)
def test_uncordon_and_cordon_cancel_it(
    kind: type[CordonReq | UncordonReq], state: NodeState
) -> None:
    story = Story(PATIENT).nodes(n1=2, n2=1)
    story.running("j", 2, **MOVE)
    story.tell(drain())
    story.tell(kind(node_id="n1", command_id="u"))
    reply = reply_of(story)
    assert (reply.complete, reply.remaining_count) == (False, 1)
    assert reply.reason.endswith("ed by u")
    assert story.node_state("n1") is state
    assert not story.ledger.draining
    story.check()


def test_a_second_drain_takes_the_place_of_the_first() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=1)
    workers = story.running("j", 2, **MOVE)
    story.tell(drain())
    story.tell(drain(command_id="e", force=True))
    assert reply_of(story).reason == "another drain took its place: e"
    end_all(story, workers)
    assert reply_of(story, "e").complete
    story.check()


def test_an_unknown_node_is_refused() -> None:
    story = Story()
    story.tell(drain("n9"))
    assert isinstance(story.refusal("d"), UnknownNode)


def test_a_new_leader_goes_on_with_a_drain_and_its_deadline() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=1)
    story.running("j", 2, **MOVE)
    story.tell(drain(deadline_s=100))
    story.lead()
    assert list(story.ledger.draining) == ["n1"]
    story.tell(register("n1", 2, epoch=story.epoch))
    story.tell(register("n2", 1, epoch=story.epoch))
    draft = story.tell(register("n3", 1))
    assert fact(draft, RunStopping).drain == "d"
    story.tell(tick(), after=101)
    assert reasons(reply_of(story)) == {"it is being stopped"}
    story.check()


def test_who_does_not_wait_is_told_what_is_known() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=1)
    story.running("j", 2, **MOVE)
    assert fact(story.tell(drain()), NodeDraining).deadline == story.now + timedelta(seconds=300)
    reply = accepted_reply(story.ledger, "d")
    assert isinstance(reply, DrainReply)
    assert (reply.complete, reply.remaining_count) == (False, 1)


# --- dead nodes -----------------------------------------------------------------------------


def test_a_person_says_that_a_silent_node_is_dead_and_its_workers_are_gone() -> None:
    story = Story().nodes(n1=2, n2=2)
    (worker,) = story.running("j", 1, on_lost="restart")
    for _ in range(4):
        story.tell(beat("n2"), after=10)
    draft = story.tell(ConfirmDeadReq(node_id="n1", command_id="c"))
    gone = fact(draft, WorkerEnded)
    assert (gone.worker_id, gone.state) == (worker, WorkerState.LOST)
    assert gone.reason == "node n1 is dead, as a person confirmed"
    assert fact(draft, RunCreated).restart_of == 1
    reply = story.outcome("c")
    assert isinstance(reply, ConfirmDeadReply)
    assert (reply.count, reply.workers) == (1, [worker])
    story.check()


def test_a_dead_node_that_returns_has_orphans_which_are_stopped() -> None:
    story = Story().nodes(n1=2, n2=2)
    (order,) = launches(story.tell(start("j", 1)))
    story.tell(acknowledged(order))
    for _ in range(4):
        story.tell(beat("n2"), after=10)
    story.tell(ConfirmDeadReq(node_id="n1", command_id="c"))
    assert is_dead(story, "n1")
    story.tell(beat("n1"))
    assert not is_dead(story, "n1")
    draft = story.tell(inventory("n1", row(order)))
    assert kinds(draft) == ["worker_orphaned"]
    assert stopped_ids(draft) == [order.worker_id]
    story.check()


@pytest.mark.parametrize("cordoned", [False, True])
def test_only_an_expired_node_can_be_dead(cordoned: bool) -> None:
    story = Story().nodes(n1=2)
    story.running("j", 1)
    if cordoned:
        story.tell(CordonReq(node_id="n1"))
    story.tell(ConfirmDeadReq(node_id="n1", command_id="c"))
    error = story.refusal("c")
    assert (error.code, error.facts["state"]) == (
        "node_alive",
        "cordoned" if cordoned else "ready",
    )
    story.tell(ConfirmDeadReq(node_id="n9", command_id="d"))
    assert story.refusal("d").code == "unknown_node"
    story.check()


def test_a_dead_node_of_many_workers_is_written_in_several_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("schedulers.decide.draft.ENOUGH_BYTES", 2_000)
    story = Story().nodes(n1=50, n2=1)
    for number in range(50):
        story.running(f"j{number}", 1)
    story.tell(tick(), after=31)
    before = len(story.records)
    story.tell(ConfirmDeadReq(node_id="n1", command_id="c"))
    assert len(story.records) > before + 1
    assert not story.ledger.live_on("n1")
    story.check()


def test_one_that_moved_behind_others_says_why_it_waits() -> None:
    story = Story(PATIENT).nodes(n1=2, n2=2)
    workers = story.running("j", 2, **MOVE)
    other = story.running("x", 2)
    assert story.ledger.workers[other[0]].node_id == "n2"
    story.tell(start("first", 2, on_shortage="wait", priority=9))
    story.tell(drain("n1", force=True))
    end_all(story, workers)
    moved = story.ledger.jobs["j"].current
    assert (moved.state, moved.missing) == (RunState.WAITING, 2)
    assert moved.reason == "those that wait before it have not got their slots yet"
    end_all(story, other)
    assert story.ledger.jobs["first"].current.state is RunState.STARTING
    story.check()


def test_a_crowd_moves_some_at_a_time() -> None:
    story = Story(PATIENT).nodes(n1=60)
    for number in range(60):
        story.running(f"j{number:02}", 1, **MOVE)
    story.tell(register("n2", 60))
    draft = story.tell(drain("n1"))
    assert len(facts(draft, RunStopping)) == 50
    left = progress(story)
    assert (left.remaining_count, reasons(left)) == (
        60,
        {"it is being stopped", "others move before it"},
    )
    first = stopped_ids(draft)[0]
    draft = story.tell(ended(first, "n1", job_id="j00", signal=15))
    assert [f.job_id for f in facts(draft, RunStopping)] == ["j50"]
    story.check()
