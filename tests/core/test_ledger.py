"""The ledger: what facts change, what can't be, snapshots and their order."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from events import facts as f
from events.facts import AnyFact, Record
from events.ledger import Ledger, live_digest
from events.states import IllegalTransition, NodeState, WorkerState
from schedulers.decide import Rules
from tests.support.story import (
    DAWN,
    FIRST_EPOCH,
    Story,
    acknowledged,
    ended,
    launches,
    register,
    start,
    stop,
    tick,
)


def fold(*facts: AnyFact, epoch: int = FIRST_EPOCH) -> Ledger:
    """One record a fact, a second apart."""
    ledger = Ledger()
    leader = f.LeaderStarted(epoch=epoch, cluster="here", scheduler="test")
    for second, fact in enumerate([leader, *facts]):
        moment = DAWN + timedelta(seconds=second)
        ledger.apply(Record(at=moment, epoch=epoch, cause="test", events=[fact]))
    return ledger


def node(node_id: str = "n1", slots: int = 4, incarnation: str = "a") -> AnyFact:
    return f.NodeRegistered(node_id=node_id, incarnation=incarnation, task_slots=slots)


def test_free_slots_are_those_registered_minus_those_of_live_workers(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j", 3)))
    ledger = story.ledger
    assert (ledger.free_slots("n1"), ledger.held_slots("n1")) == (1, 3)
    assert [w.worker_id for w in ledger.live_on("n1")] == [order.worker_id]
    story.tell(ended(order.worker_id))
    assert (ledger.free_slots("n1"), ledger.held_slots("n1")) == (4, 0)
    assert ledger.live_on("n1") == ledger.live_of("j") == []
    assert ledger.free_slots("nowhere") == 0


def test_the_digest_of_a_node_is_what_it_should_report(story: Story) -> None:
    story.nodes(n1=4)
    (order,) = launches(story.tell(start("j")))
    assert story.ledger.digest_of("n1") == live_digest([])
    story.tell(acknowledged(order))
    assert story.ledger.digest_of("n1") == live_digest([order.worker_id])
    story.tell(stop("j"))
    assert story.ledger.digest_of("n1") == live_digest([order.worker_id])
    story.tell(ended(order.worker_id))
    assert story.ledger.digest_of("n1") == live_digest([])


def test_superseded_incarnations_are_remembered_up_to_a_number() -> None:
    ledger = fold(*[node(incarnation=f"i{number}") for number in range(12)])
    assert ledger.nodes["n1"].incarnation == "i11"
    assert ledger.nodes["n1"].past == [f"i{number}" for number in range(3, 11)]


def test_a_cordon_is_kept_while_a_node_is_expired() -> None:
    expired = f.NodeExpired(node_id="n1", last_seen=DAWN)
    ledger = fold(node(), expired, f.NodeCordoned(node_id="n1"))
    assert ledger.nodes["n1"].state is NodeState.EXPIRED
    ledger = fold(node(), expired, f.NodeCordoned(node_id="n1"), f.NodeReturned(node_id="n1"))
    assert ledger.nodes["n1"].state is NodeState.CORDONED


def test_who_wrote_where_is_known_of_every_leader() -> None:
    ledger = fold(node("n1"), node("n2"))
    second = f.LeaderStarted(epoch=FIRST_EPOCH + 5, cluster="here", scheduler="test")
    ledger.apply(Record(at=DAWN, epoch=FIRST_EPOCH + 5, cause="leader", events=[second]))
    wrote = {p for p in range(8) if ledger.wrote(FIRST_EPOCH, p)}
    assert wrote == {1, 2, 3}
    assert {p for p in range(8) if ledger.wrote(FIRST_EPOCH + 5, p)} == {4}
    assert not ledger.wrote(FIRST_EPOCH + 1, 2)


@pytest.mark.parametrize(
    "facts",
    [
        [f.NodeReturned(node_id="n1")],
        [f.WorkerLaunched(worker_id="w1", incarnation="a")],
        [f.CommandDone(command_id="c1", ok=True, reply={})],
        [f.RunRunning(job_id="j", run_id=1)],
        [f.LeaderStarted(epoch=FIRST_EPOCH, cluster="here", scheduler="test")],
        [node(), f.NodeReturned(node_id="n1")],
        [node(), f.NodeUncordoned(node_id="n1")],
        [f.JobForgotten(job_id="j")],
    ],
)
def test_a_fact_that_can_not_be_is_illegal_whatever_is_wrong_with_it(
    facts: list[AnyFact],
) -> None:
    with pytest.raises(IllegalTransition):
        fold(*facts)


def test_a_run_is_not_forgotten_with_a_live_worker(story: Story) -> None:
    story.nodes(n1=1)
    story.running("j")
    record = Record(
        at=story.now,
        epoch=story.epoch,
        cause="test",
        events=[f.RunForgotten(job_id="j", run_id=1)],
    )
    with pytest.raises(IllegalTransition, match="live: forgotten"):
        story.fold().apply(record)


def test_what_is_restored_has_the_indexes_of_what_was_kept(story: Story) -> None:
    story.nodes(n2=2, n1=4)
    one, _ = story.running("j", 5)
    story.tell(start("k", 1, command_id="c9"))
    back = Ledger.restore(story.ledger.snapshot())
    assert back.snapshot() == story.ledger.snapshot()
    assert {n: back.free_slots(n) for n in back.nodes} == {"n1": 0, "n2": 0}
    assert back.digest_of("n1") == story.ledger.digest_of("n1")
    assert set(back.pending) == {"c9"}
    assert back.workers[one].launched
    assert [w.worker_id for w in back.live_on("n2")] == [
        w.worker_id for w in story.ledger.live_on("n2")
    ]


def test_what_is_restored_goes_through_things_in_the_same_order() -> None:
    story = Story(Rules(per_worker=1)).nodes(z=6, a=6)
    for command_id in ("z", "b", "a"):
        story.tell(start(f"job-{command_id}", 3, command_id=command_id))
    back = Ledger.restore(story.ledger.snapshot())
    for name in ("nodes", "workers", "jobs", "commands", "pending"):
        assert list(getattr(back, name)) == list(getattr(story.ledger, name))


def test_a_snapshot_and_its_tail_equal_the_whole_log_wherever_it_is_cut(story: Story) -> None:
    story.nodes(n1=2, n2=2)
    _, two = story.running("j", 4)
    story.tell(register("n3", 1), at=31)
    story.tell(stop("j"))
    story.tell(ended(two, "n2"))
    story.tell(tick(), at=90)
    whole = story.fold().snapshot()
    for cut in range(len(story.records) + 1):
        head = Ledger()
        for record in story.records[:cut]:
            head.apply(record)
        ledger = Ledger.restore(head.snapshot())
        for record in story.records[cut:]:
            ledger.apply(record)
        assert ledger.snapshot() == whole, f"cut at {cut}"


def test_a_broken_snapshot_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        Ledger.restore(b'{"nodes": 3}')


def test_one_ledger_takes_over_what_another_holds(story: Story) -> None:
    story.nodes(n1=1)
    mine = Ledger()
    mine.become(story.fold())
    assert mine.snapshot() == story.ledger.snapshot()
    assert mine.free_slots("n1") == 1


def test_states_of_workers_are_kept_with_when_they_began(story: Story) -> None:
    story.nodes(n1=1)
    (order,) = launches(story.tell(start("j"), at=1))
    story.tell(acknowledged(order), at=2)
    worker = story.ledger.workers[order.worker_id]
    assert (worker.state, worker.since) == (WorkerState.RUNNING, DAWN + timedelta(seconds=2))
    assert (worker.epoch, worker.position) == (FIRST_EPOCH, 3)
