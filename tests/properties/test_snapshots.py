"""Law 4: a snapshot and what follows it are the whole log, wherever the log is cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from events import facts as f
from events.audit import Auditor
from events.auditing import audit_from
from events.facts import Record
from events.ids import Position
from events.ledger import Ledger
from events.snapshots import pieces, restore, take
from events.states import WorkerState
from tests.support.fleet import Fleet

Step = Callable[[Fleet, int], None]


def all_arrives(fleet: Fleet, _index: int) -> None:
    for machine in fleet.machines:
        machine.up = True
        fleet.speak(machine)
        while fleet.outboxes[machine.node_id]:
            fleet.deliver(machine)
    while fleet.orders:
        fleet.deliver_order(0)
    while fleet.answers:
        fleet.deliver_answer(0)


STEPS: list[Step] = [
    all_arrives,
    all_arrives,
    lambda fleet, index: fleet.start("ab"[index % 2], 1 + index % 6),
    lambda fleet, index: fleet.start("ab"[index % 2], 1 + index % 3, "even"),
    lambda fleet, index: fleet.stop("ab"[index % 2], force=index % 3 == 0),
    lambda fleet, index: fleet.end(index, index % 2),
    lambda fleet, index: fleet.cordon(fleet.machines[index % 3], on=index % 4 > 0),
    lambda fleet, index: fleet.silence(fleet.machines[index % 3]),
    lambda fleet, index: fleet.retry(index),
    lambda fleet, index: fleet.pass_time((0.5, 7.0, 31.0)[index % 3]),
    lambda fleet, _index: fleet.take_over(),
]
lives = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), min_size=5, max_size=40)


def lived(steps: list[tuple[Step, int]]) -> Fleet:
    fleet = Fleet(4, 3, 5)
    all_arrives(fleet, 0)
    for step, index in steps:
        step(fleet, index)
    return fleet


def folded(records: list[Record], ledger: Ledger | None = None) -> Ledger:
    ledger = ledger or Ledger()
    for record in records:
        ledger.apply(record)
    return ledger


@settings(max_examples=60, deadline=timedelta(seconds=5))
@given(lives, st.data())
def test_a_snapshot_and_its_tail_are_the_whole_log(
    steps: list[tuple[Step, int]], data: st.DataObject
) -> None:
    fleet = lived(steps)
    records = fleet.story.records
    whole = folded(records)
    assert whole.snapshot() == fleet.story.ledger.snapshot()
    assert b"".join(pieces(whole.state)) == whole.snapshot()
    for cut in data.draw(st.lists(st.integers(1, len(records)), min_size=1, max_size=4)):
        before = folded(records[:cut])
        assert b"".join(pieces(before.state)) == before.snapshot()
        again = folded(records[cut:], restore(take(before)))
        assert again.snapshot() == whole.snapshot()
        assert_asked_alike(again, whole)


@settings(max_examples=60, deadline=timedelta(seconds=5))
@given(lives, st.data())
def test_an_audit_that_begins_with_a_snapshot_sees_what_one_from_the_beginning_sees(
    steps: list[tuple[Step, int]], data: st.DataObject
) -> None:
    records = lived(steps).story.records
    cut = data.draw(st.integers(1, len(records)))
    whole, begun = Auditor(), audit_from(restore(take(folded(records[:cut]))))
    for position, record in enumerate(records, start=1):
        assert whole.observe(Position(position), record) == []
        if position > cut:
            assert begun.observe(Position(position), record) == []
    assert begun.finish() == whole.finish() == []
    assert begun.accounts.pending == whole.accounts.pending
    for node_id in whole.ledger.nodes:
        assert begun.accounts.free(node_id) == whole.accounts.free(node_id)
        assert begun.accounts.answers(node_id) == whole.accounts.answers(node_id)
    assert_finds_the_same_faults(begun, whole, records[-1])


def assert_finds_the_same_faults(begun: Auditor, whole: Auditor, last: Record) -> None:
    """What can't be is seen by both: too many slots, a second start of a worker, an end twice."""
    for fact in faults(whole.ledger):
        wrong = replace(last, events=[fact])
        following = Position(whole.position + 1)
        found = [copy.deepcopy(each).observe(following, wrong) for each in (begun, whole)]
        assert found[0] == found[1]
        assert found[0]


def faults(ledger: Ledger) -> Iterator[f.AnyFact]:
    for worker in ledger.workers.values():
        yield f.WorkerAssigned(
            worker_id=worker.worker_id,
            job_id=worker.job_id,
            run_id=worker.run_id,
            node_id=worker.node_id,
            incarnation=worker.incarnation,
            slots=1_000,
        )
        if worker.gone:
            yield f.WorkerEnded(worker_id=worker.worker_id, state=WorkerState.FAILED)
        return
    yield f.CommandDone(command_id="nobody's", ok=True, reply=None)


def assert_asked_alike(one: Ledger, other: Ledger) -> None:
    """What decisions ask of it: what is kept beside the state, and in which order."""
    assert list(one.pending) == list(other.pending)
    assert one.unended == other.unended
    for node_id in one.nodes:
        assert one.free_slots(node_id) == other.free_slots(node_id)
        assert one.digest_of(node_id) == other.digest_of(node_id)
        assert [w.worker_id for w in one.live_on(node_id)] == [
            w.worker_id for w in other.live_on(node_id)
        ]
    for job in one.jobs.values():
        for run in job.runs:
            assert one.tally(job.job_id, run.run_id) == other.tally(job.job_id, run.run_id)
