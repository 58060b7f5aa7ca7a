"""Decisions on thousands of things: no record outgrows a message, and nothing is left over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from events.audit import Auditor
from events.errors import StartFailed, TooLarge
from events.facts import CommandForgotten, NodeExpired, WorkerLost
from events.ids import MAX_REASON, MAX_RECORD_BYTES, MAX_WORKERS_A_RUN, Position
from events.log import encode_record
from events.messages import StartReply, StopReply
from events.states import NodeState, WorkerState
from events.traffic import InventoryRow
from schedulers.decide import Rules
from schedulers.decide.draft import ENOUGH_BYTES
from schedulers.decide.settle import TOLD_NODES
from tests.support.story import (
    Story,
    acknowledged,
    asked,
    ended,
    facts,
    finished,
    inventory,
    launches,
    refused,
    register,
    start,
    stop,
    stops,
    tick,
)

LONG = 128
PATIENT = Rules(expiry_s=1_000)


def named(index: int) -> str:
    return f"n{index:05}".ljust(LONG, "x")


RARELY = 500
"""Records between two comparisons of whole ledgers, which are large here."""


def large(rules: Rules | None = None) -> Story:
    return Story(rules, snapshot_every=RARELY)


@pytest.fixture
def crowd() -> Story:
    """As many one-slot nodes as a run may have workers, with the longest ids."""
    story = large(PATIENT)
    for index in range(MAX_WORKERS_A_RUN):
        story.tell(register(named(index), 1, incarnation=named(index), workers=[]))
    return story


def largest(story: Story) -> int:
    return max(len(encode_record(record)) for record in story.records)


def test_a_run_of_the_most_workers_with_the_longest_ids_lives_and_dies(crowd: Story) -> None:
    command_id = "c".ljust(LONG, "x")
    draft = crowd.tell(start("j" * LONG, MAX_WORKERS_A_RUN, command_id=command_id))
    for order in launches(draft):
        crowd.tell(acknowledged(order))
    reply = crowd.outcome(command_id)
    assert isinstance(reply, StartReply)
    assert len(reply.workers) == MAX_WORKERS_A_RUN
    stopping = crowd.tell(stop("j" * LONG, command_id="s"))
    assert len(stops(stopping)) == MAX_WORKERS_A_RUN
    for signal in stops(stopping):
        crowd.tell(finished(signal, job_id="j" * LONG))
    stopped = crowd.outcome("s")
    assert isinstance(stopped, StopReply)
    assert (len(stopped.workers), stopped.unconfirmed) == (MAX_WORKERS_A_RUN, [])
    assert largest(crowd) < MAX_RECORD_BYTES
    crowd.check()


def test_one_worker_more_than_a_run_may_have_is_too_large(crowd: Story) -> None:
    crowd.tell(register("one-more", 1))
    crowd.tell(start("j", MAX_WORKERS_A_RUN + 1, command_id="c"))
    error = crowd.refusal("c")
    assert isinstance(error, TooLarge)
    assert error.facts["limit"] == MAX_WORKERS_A_RUN
    assert not crowd.ledger.workers


def test_a_start_that_no_record_could_hold_is_refused_and_takes_nothing(crowd: Story) -> None:
    crowd.tell(
        start(
            "j", MAX_WORKERS_A_RUN, program="p" * 500_000, env_vars={"E": "e" * 130_000},
            command_id="c",
        )
    )  # fmt: skip
    error = crowd.refusal("c")
    assert isinstance(error, TooLarge)
    assert (error.facts["limit"], error.facts["unit"]) == (MAX_RECORD_BYTES, "bytes")
    assert not crowd.ledger.workers
    assert crowd.free(named(0)) == 1


def test_the_rollback_of_the_largest_run_names_a_few_nodes_and_fits(crowd: Story) -> None:
    crowd.tell(start("j", MAX_WORKERS_A_RUN, command_id="c"))
    rollback = crowd.tell(tick(), after=31)
    assert len(stops(rollback)) == MAX_WORKERS_A_RUN
    for order in stops(rollback):
        crowd.tell(ended(order.worker_id, order.node_id))
    error = crowd.refusal("c")
    assert isinstance(error, StartFailed)
    assert len(error.message) < 2 * MAX_REASON
    assert largest(crowd) < MAX_RECORD_BYTES
    crowd.check()


def test_a_start_that_fails_on_very_many_nodes_names_the_first() -> None:
    story = large(PATIENT)
    for index in range(150):
        story.tell(register(f"n{index:03}", 1))
    draft = story.tell(start("j", 1, command_id="c"))
    while launches(draft):
        draft = story.tell(refused(launches(draft)[0], f"{len(story.records)} " + "?" * 10_000))
    error = story.refusal("c")
    assert isinstance(error, StartFailed)
    assert "; and 145 more nodes" in error.message
    reasons = error.facts["reasons"]
    assert isinstance(reasons, dict)
    assert len(reasons) == TOLD_NODES
    assert max(len(why) for why in reasons.values()) == MAX_REASON
    assert largest(story) < 100_000
    story.check()


def test_thousands_of_workers_expire_at_once_in_records_that_fit() -> None:
    story = large()
    for index in range(2_500):
        story.tell(register(named(index), 2, incarnation=named(index)))
    for number in range(4):
        story.running(f"j{number}", MAX_WORKERS_A_RUN)
    before = len(story.records)
    draft = story.tell(tick(), after=31)
    assert len(facts(draft, NodeExpired)) == 2_500
    assert len(facts(draft, WorkerLost)) == 2_000
    grown = story.records[before:]
    assert len(grown) > 1
    assert max(len(encode_record(record)) for record in grown) < 2 * ENOUGH_BYTES
    assert {node.state for node in story.ledger.nodes.values()} == {NodeState.EXPIRED}
    assert {worker.state for worker in story.ledger.workers.values()} == {WorkerState.LOST}
    story.check()


def test_one_node_full_of_workers_expires_over_several_records() -> None:
    story = large()
    story.rules = Rules(per_worker=1)
    story.tell(register("n1", 3_000))
    for number in range(3):
        story.running(f"j{number}", MAX_WORKERS_A_RUN)
    before = len(story.records)
    story.tell(tick(), after=31)
    assert len(story.records) > before + 1
    assert {worker.state for worker in story.ledger.workers.values()} == {WorkerState.LOST}
    story.check()


def test_the_next_leader_goes_on_where_the_last_one_was_cut_off() -> None:
    story = large()
    story.rules = Rules(per_worker=1)
    story.tell(register("n1", 3_000))
    for number in range(3):
        story.running(f"j{number}", MAX_WORKERS_A_RUN)
    before = len(story.records)
    story.tell(tick(), after=31)
    del story.records[before + 1 :]  # only the first record was stored
    half = story.fold()
    assert {w.state for w in half.workers.values()} == {WorkerState.LOST, WorkerState.RUNNING}
    story.auditor = Auditor(RARELY)
    for position, record in enumerate(story.records, start=1):
        story.auditor.observe(Position(position), record)
    story.lead()
    assert {w.state for w in story.ledger.workers.values()} == {WorkerState.LOST}
    story.check()


def test_many_stops_of_one_large_run_are_answered_over_several_records(crowd: Story) -> None:
    workers = crowd.running("j", MAX_WORKERS_A_RUN)
    commands = [f"s{number}" for number in range(40)]
    for command_id in commands:
        draft = crowd.tell(stop("j", command_id=command_id))
    nodes = {worker_id: crowd.ledger.workers[worker_id].node_id for worker_id in workers}
    before = len(crowd.records)
    for worker_id in workers:
        draft = crowd.tell(ended(worker_id, nodes[worker_id]))
    assert len(draft.events) > len(commands)
    for command_id in commands:
        reply = crowd.outcome(command_id)
        assert isinstance(reply, StopReply)
        assert len(reply.workers) == MAX_WORKERS_A_RUN
    assert max(len(encode_record(r)) for r in crowd.records[before:]) < MAX_RECORD_BYTES
    crowd.check()


def test_ten_thousand_unknown_workers_in_a_registration_fit_and_are_asked_for_again() -> None:
    story = large()
    story.tell(register("n1", 1, workers=None))
    rows = strangers(10_000)
    draft = story.tell(register("n1", 1, incarnation="n1-b", workers=rows))
    assert asked(draft) == ["n1"]
    while asked(draft):
        draft = story.tell(inventory("n1", *rows, incarnation="n1-b"))
    assert len(story.ledger.state.orphans) == 10_000
    assert largest(story) < MAX_RECORD_BYTES
    story.check()


def test_the_oldest_commands_are_forgotten_however_many_they_are() -> None:
    story = large(Rules(remembered_commands=10, expiry_s=1_000))
    for number in range(2_500):
        story.tell(stop("nobody", command_id=f"c{number}".ljust(LONG, "x")))
    draft = story.tell(tick())
    forgotten = [one for each in facts(draft, CommandForgotten) for one in each.command_ids]
    assert len(forgotten) == 2_490
    assert len(story.ledger.commands) == 10
    assert largest(story) < MAX_RECORD_BYTES
    story.check()


def test_settling_a_launch_does_not_search_the_whole_run() -> None:
    def steps(workers: int) -> float:
        """Bytecode instructions that a launch takes."""
        story = large(Rules(per_worker=1))
        story.tell(register("n1", workers))
        orders = launches(story.tell(start("j", workers)))
        story.auditor.observe = lambda *_: []  # type: ignore[method-assign]
        with counted() as count:
            for order in orders[:20]:
                story.tell(acknowledged(order))
        return count[0] / 20

    assert steps(1_000) < 1.5 * steps(50)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the instructions that are executed meanwhile: the same on any machine."""
    count = [0]

    def trace(frame: FrameType, event: str, _arg: object) -> object:
        frame.f_trace_opcodes = True
        count[0] += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        yield count
    finally:
        sys.settrace(before)


def strangers(count: int) -> list[InventoryRow]:
    """Workers that the log does not know."""
    return [
        InventoryRow(
            worker_id=f"stranger-{index}".ljust(LONG, "x"),
            job_id="j",
            run_id=1,
            slots=1,
            state=WorkerState.RUNNING,
        )
        for index in range(count)
    ]
