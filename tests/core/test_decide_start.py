"""Starts: what is accepted, what is refused with which code, what a repeated one does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from events.errors import (
    Invalid,
    NotEnoughSlots,
    RunActive,
    SlotbusError,
    StaleRun,
    StartFailed,
    TooLarge,
)
from events.facts import CommandDone, CommandTaken, RunCreated, RunPlaced, WorkerAssigned
from events.ids import MAX_INT
from events.messages import StartReply
from events.states import RunState, WorkerState
from schedulers.decide import Draft, Rules
from schedulers.decide.commands import accepted_reply
from tests.support.story import (
    Story,
    acknowledged,
    asked,
    assigned,
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
    start,
    stop,
)


def launch_all(story: Story, draft: Draft) -> Draft:
    for order in launches(draft):
        draft = story.tell(acknowledged(order))
    return draft


def test_fills_the_node_with_the_most_free_slots_first_with_one_worker_each(story: Story) -> None:
    story.nodes(n1=4, n2=8)
    draft = story.tell(start("wordcount", 10))
    assert kinds(draft) == [
        "command_taken", "run_created", "run_placed", "worker_assigned", "worker_assigned",
    ]  # fmt: skip
    assert placed(draft) == {"n2": [8], "n1": [2]}
    assert (story.free("n1"), story.free("n2")) == (2, 0)
    assert draft.joined == fact(draft, CommandTaken).command_id


def test_succeeds_when_the_last_worker_was_launched_and_not_before(story: Story) -> None:
    story.nodes(n1=4, n2=8)
    draft = story.tell(start(slots=10, command_id="c1"))
    first, second = launches(draft)
    assert kinds(story.tell(acknowledged(first))) == ["worker_launched"]
    assert story.outcome("c1") is None
    done = story.tell(acknowledged(second))
    assert kinds(done) == ["worker_launched", "run_running", "command_done"]
    reply = story.outcome("c1")
    assert isinstance(reply, StartReply)
    assert [(w.worker_id, w.node_id, w.slots) for w in reply.workers] == [
        (first.worker_id, "n2", 8),
        (second.worker_id, "n1", 2),
    ]


def test_an_order_carries_all_that_a_worker_needs(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(worker_command=["idle"])).nodes(n1=4)
    draft = story.tell(
        start(
            "j",
            2,
            name="Word count",
            program={"b": 1, "a": [1, 2]},
            wasm_path="p.wasm",
            env_vars={"LEVEL": "9"},
            command="run 'a b'",
            stop_after_s=3,
        )
    )
    (order,) = launches(draft)
    assert order.command == ["run", "a b"]
    assert order.default_command == ["idle"]
    assert bytes(order.program) == b'{"b":1,"a":[1,2]}'
    assert order.env_vars == {"LEVEL": "9"}
    assert (order.name, order.wasm_path, order.stop_after_s) == ("Word count", "p.wasm", 3.0)
    assert order.hash == fact(draft, RunCreated).hash
    assert (order.incarnation, order.epoch) == ("n1-a", story.epoch)
    assert (order.stamp.epoch, order.stamp.position) == (story.epoch, len(story.records))


def test_the_hash_of_a_program_does_not_depend_on_the_order_of_its_keys(story: Story) -> None:
    story.nodes(n1=4)
    one = fact(story.tell(start("a", program={"x": 1, "y": 2})), RunCreated)
    two = fact(story.tell(start("b", program={"y": 2, "x": 1})), RunCreated)
    given = fact(story.tell(start("c", hash="mine")), RunCreated)
    assert one.hash == two.hash
    assert len(one.hash) == 64
    assert given.hash == "mine"


def test_run_ids_go_on_from_the_highest_seen(story: Story) -> None:
    story.nodes(n1=8)
    assert fact(story.tell(start("j", run_id=5)), RunCreated).run_id == 5
    story.tell(stop("j", force=True))
    for worker in story.ledger.live_of("j"):
        story.tell(ended(worker.worker_id))
    assert fact(story.tell(start("j")), RunCreated).run_id == 6


def refusal(draft: Draft, story: Story) -> SlotbusError:
    done = fact(draft, CommandDone)
    assert not done.ok
    assert not facts(draft, WorkerAssigned)
    assert not draft.effects
    return story.refusal(done.command_id)


def test_too_few_slots_says_how_many_are_missing_and_why_each_node_was_not_taken(
    story: Story,
) -> None:
    story.nodes(n1=2, n2=3)
    story.tell(start("other", 2))
    draft = story.tell(start("j", 7, command_id="c1"))
    error = refusal(draft, story)
    assert isinstance(error, NotEnoughSlots)
    assert (error.slots_needed, error.slots_free) == (4, 3)
    assert "j" not in story.ledger.jobs
    assert fact(draft, CommandDone).passed_over == []
    story.tell(start("more", 3))
    (why,) = fact(story.tell(start("j", 1)), CommandDone).passed_over
    assert (why.reason, why.count, why.nodes) == ("no free slots", 2, ["n1", "n2"])


def test_all_or_nothing_without_any_node(story: Story) -> None:
    error = refusal(story.tell(start("j", 3)), story)
    assert isinstance(error, NotEnoughSlots)
    assert (error.slots_needed, error.slots_free) == (3, 0)


def test_a_run_id_not_above_the_highest_is_stale(story: Story) -> None:
    story.nodes(n1=8)
    story.running("j", 1, run_id=7)
    for run_id in (7, 3):
        error = refusal(story.tell(start("j", run_id=run_id)), story)
        assert isinstance(error, StaleRun)
        assert error.facts["highest_run"] == 7


def test_a_job_whose_run_has_workers_is_active(story: Story) -> None:
    story.nodes(n1=8)
    story.tell(start("j", 1))
    assert isinstance(refusal(story.tell(start("j", 1)), story), RunActive)


def test_a_stopped_job_is_active_until_its_workers_are_gone(story: Story) -> None:
    story.nodes(n1=8)
    (worker,) = story.running("j")
    story.tell(stop("j"))
    assert isinstance(refusal(story.tell(start("j")), story), RunActive)
    story.tell(ended(worker))
    assert fact(story.tell(start("j")), RunCreated).run_id == 2


def test_more_workers_than_a_run_may_have_is_too_large(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(per_worker=1)).nodes(n1=1_001)
    error = refusal(story.tell(start("j", 1_001)), story)
    assert isinstance(error, TooLarge)
    assert error.facts["limit"] == 1_000
    assert len(launches(story.tell(start("j", 1_000)))) == 1_000


def test_used_up_run_ids_are_invalid_and_leave_no_trace(story: Story) -> None:
    story.nodes(n1=8)
    (worker,) = story.running("j", run_id=MAX_INT)
    story.tell(ended(worker))
    before = len(story.records)
    draft = story.tell(start("j"))
    assert isinstance(draft.answer, Invalid)
    assert len(story.records) == before


def test_a_job_may_not_bring_a_command_where_the_operator_says_so(
    stories: Callable[[Rules], Story],
) -> None:
    story = stories(Rules(allow_job_command=False)).nodes(n1=1)
    draft = story.tell(start("j", command=["sh"]))
    assert isinstance(draft.answer, Invalid)
    assert draft.answer.path == "$.scheduler_config.command"
    assert draft.record is None


@pytest.mark.parametrize("command", ["", "  ", "open 'quote", [], [""]])
def test_a_command_that_can_not_be_executed_is_invalid(
    story: Story, command: str | list[str]
) -> None:
    draft = story.nodes(n1=1).tell(start("j", command=command))
    assert isinstance(draft.answer, Invalid)
    assert draft.record is None


# --- repeated -------------------------------------------------------------------------------


def test_a_repeated_command_joins_the_work_and_gets_the_first_answer(story: Story) -> None:
    story.nodes(n1=4)
    request = start("j", 2, command_id="c1")
    draft = story.tell(request)
    again = story.tell(start("j", 2, command_id="c1", wait_s=1))
    assert (again.record, again.joined, again.effects) == (None, "c1", [])
    launch_all(story, draft)
    late = story.tell(request)
    assert (late.record, late.joined) == (None, "c1")
    reply = story.outcome("c1")
    assert isinstance(reply, StartReply)
    assert reply.run_id == 1


def test_a_refusal_is_repeated_too_even_if_there_is_room_by_now(story: Story) -> None:
    story.tell(start("j", 2, command_id="c1"))
    story.nodes(n1=4)
    assert story.tell(start("j", 2, command_id="c1")).record is None
    assert isinstance(story.refusal("c1"), NotEnoughSlots)


@pytest.mark.parametrize("other", [start("j", 3, command_id="c1"), stop("j", command_id="c1")])
def test_a_command_id_with_another_body_is_invalid(story: Story, other: object) -> None:
    story.nodes(n1=4)
    story.tell(start("j", 2, command_id="c1"))
    draft = story.tell(other)  # type: ignore[arg-type]
    assert isinstance(draft.answer, Invalid)
    assert draft.answer.path == "$.command_id"
    assert (draft.record, draft.joined) == (None, None)


def test_who_does_not_wait_is_told_where_the_workers_go(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(start("j", 2, command_id="c1", wait_s=0))
    reply = accepted_reply(story.ledger, "c1")
    assert isinstance(reply, StartReply)
    assert [w.worker_id for w in reply.workers] == [o.worker_id for o in launches(draft)]


# --- where ----------------------------------------------------------------------------------


def test_slots_on_many_nodes_can_be_dealt_evenly(story: Story) -> None:
    story.nodes(n1=4, n2=4, n3=2)
    assert placed(story.tell(start("j", 5, spread="even"))) == {"n1": [3], "n2": [2]}


def test_a_selector_leaves_nodes_out(story: Story) -> None:
    story.tell(register("n1", 8, labels={"zone": "a"}))
    story.tell(register("n2", 4, labels={"zone": "b"}))
    draft = story.tell(start("j", 3, selector={"zone": "b"}))
    assert placed(draft) == {"n2": [3]}
    (why,) = fact(draft, RunPlaced).passed_over
    assert (why.reason, why.nodes) == ("label zone is not b", ["n1"])


@pytest.mark.parametrize("spread", ["pack", "even"])
def test_nodes_that_a_new_leader_has_not_heard_yet_are_used_after_those_it_has(
    story: Story, spread: str
) -> None:
    """What they have is known from the log; but they may have died with the last leader."""
    story.nodes(n1=4, n2=2, n3=6)
    story.lead()
    story.tell(inventory("n2", epoch=story.epoch))
    assert placed(story.tell(start("a", 2))) == {"n2": [2]}
    assert assigned(story.tell(start("b", 8, spread=spread))) == (
        {"n3": [6], "n1": [2]} if spread == "pack" else {"n3": [5], "n1": [3]}
    )
    story.tell(inventory("n1", epoch=story.epoch))
    assert placed(story.tell(start("c", 1))) == {"n1": [1]}


def test_a_start_right_after_a_takeover_finds_its_nodes_among_10_000(story: Story) -> None:
    """None of them was heard yet, and each that is heard is no reason to look at all again."""
    for index in range(10_000):
        story.tell(register(f"n{index:05}", 1))
    story.lead()
    for number in range(20):
        began = time.process_time()
        assert len(assigned(story.tell(start(f"j{number}", 100)))) == 100
        assert time.process_time() - began < 0.5
        story.tell(inventory(f"n{9_999 - number:05}", epoch=story.epoch))
    assert next(iter(assigned(story.tell(start("last", 2))))) == "n09980"


def test_a_node_of_another_scheduler_is_not_used(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(local_node="local"))
    story.tell(register("local", 4, incarnation="l-1"))
    assert placed(story.tell(start("a"))) == {"local": [1]}
    story.rules = Rules()
    why = fact(story.tell(start("b")), CommandDone).passed_over
    assert [w.reason for w in why] == ["belongs to another scheduler"]


def test_a_new_run_may_start_while_the_old_ones_workers_are_on_silent_nodes(story: Story) -> None:
    story.nodes(n1=4)
    (old,) = story.running("j", 2)
    story.tell(register("n2", 4), at=31)
    draft = story.tell(start("j", 2))
    assert placed(draft) == {"n2": [2]}
    assert story.state_of(old) is WorkerState.STOPPING
    assert story.ledger.jobs["j"].run(1).state is RunState.FAILED
    assert story.free("n1") == 2
    launch_all(story, draft)
    assert asked(story.tell(beat("n1"))) == ["n1"]


def test_a_start_that_was_stopped_while_it_started_fails(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 2, command_id="c1")))
    story.tell(stop("j", command_id="c2"))
    assert story.outcome("c1") is None
    story.tell(finished(order, signal=15))
    error = story.refusal("c1")
    assert isinstance(error, StartFailed)
    assert "stopped while it started" in error.message
    assert story.ledger.jobs["j"].current.state is RunState.STOPPED
