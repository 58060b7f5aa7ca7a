"""Whom records concern."""

from __future__ import annotations

from typing import NamedTuple

from events.concerns import Concerns, Directory
from events.facts import (
    AnyFact,
    CommandDone,
    CommandForgotten,
    CommandTaken,
    JobForgotten,
    LeaderStarted,
    NodeCordoned,
    NodeExpired,
    Record,
    RunEnded,
    RunForgotten,
    WorkerAssigned,
    WorkerEnded,
    WorkerLaunched,
    WorkerLost,
)
from events.ledger import Ledger
from events.states import RunState, WorkerState
from tests.support.records import BEGIN, EPOCH


def record(*facts: AnyFact) -> Record:
    return Record(at=BEGIN, epoch=EPOCH, cause="test", events=list(facts))


def assigned(worker_id: str, job_id: str = "j", node_id: str = "n", run_id: int = 1) -> AnyFact:
    return WorkerAssigned(
        worker_id=worker_id, job_id=job_id, run_id=run_id, node_id=node_id, incarnation="i", slots=1
    )


class Whom(NamedTuple):
    jobs: list[str]
    nodes: list[str]
    leader: bool
    unresolved: list[str]


def concerns(jobs: str = "", nodes: str = "", leader: bool = False, unresolved: str = "") -> Whom:
    return Whom(jobs.split(), nodes.split(), leader, unresolved.split())


def whom(found: Concerns) -> Whom:
    return Whom(list(found.jobs), list(found.nodes), bool(found.leader), found.unresolved)


def test_a_worker_leads_to_its_job_and_node() -> None:
    directory = Directory()
    assert whom(directory.concerns(record(assigned("w")))) == concerns("j", "n")
    launched = WorkerLaunched(worker_id="w", incarnation="i")
    assert whom(directory.concerns(record(launched))) == concerns("j", "n")


def test_within_a_record_earlier_facts_explain_later_ones() -> None:
    directory = Directory()
    ended = WorkerEnded(worker_id="w2", state=WorkerState.FAILED, launched=False)
    found = directory.concerns(record(assigned("w1"), assigned("w2", node_id="m"), ended))
    assert whom(found) == concerns("j", "n m")


def test_an_outcome_concerns_the_job_or_node_of_its_command() -> None:
    directory = Directory()
    start = CommandTaken(command_id="c1", kind="start", digest="", job_id="j")
    drain = CommandTaken(command_id="c2", kind="drain", digest="", node_id="n")
    assert whom(directory.concerns(record(start))) == concerns("j")
    assert whom(directory.concerns(record(drain))) == concerns("", "n")
    assert whom(
        directory.concerns(record(CommandDone(command_id="c1", ok=True, reply={})))
    ) == concerns("j")
    done = CommandDone(command_id="c2", ok=False, reply=None)
    assert whom(directory.concerns(record(done))) == concerns("", "n")


def test_an_expiry_concerns_the_node_and_every_job_on_it() -> None:
    directory = Directory()
    directory.concerns(record(assigned("a", "j1"), assigned("b", "j2"), assigned("c", "j3", "m")))
    expired = NodeExpired(node_id="n", last_seen=BEGIN)
    lost = [WorkerLost(worker_id=worker_id, reason="expired") for worker_id in "ab"]
    assert whom(directory.concerns(record(expired, *lost))) == concerns("j1 j2", "n")


def test_what_concerns_nobody_else_concerns_the_leader() -> None:
    directory = Directory()
    started = LeaderStarted(epoch=EPOCH, cluster="c", scheduler="process")
    assert whom(directory.concerns(record(started))) == concerns(leader=True)
    assert whom(directory.concerns(record())) == concerns()
    both = record(started, NodeCordoned(node_id="n"))
    assert whom(directory.concerns(both)) == concerns("", "n", leader=True)
    forgotten = CommandForgotten(command_ids=["c1"])
    assert whom(directory.concerns(record(forgotten))) == concerns(leader=True)


def test_what_was_forgotten_is_told_and_then_unknown() -> None:
    directory = Directory()
    directory.concerns(record(assigned("a"), assigned("b", run_id=2), assigned("c", "k")))
    ended = WorkerEnded(worker_id="a", state=WorkerState.FINISHED)
    found = directory.concerns(record(ended, RunForgotten(job_id="j", run_id=1)))
    assert whom(found) == concerns("j", "n")
    assert whom(directory.concerns(record(ended))) == concerns(leader=True, unresolved="a")
    assert whom(directory.concerns(record(JobForgotten(job_id="j")))) == concerns("j")
    both = [WorkerLost(worker_id=worker_id, reason="") for worker_id in "bc"]
    told = concerns("k", "n", leader=True, unresolved="b")
    assert whom(directory.concerns(record(*both))) == told


def test_a_directory_may_begin_with_what_the_ledger_knows() -> None:
    ledger = Ledger()
    ledger.state.commands.clear()
    directory = Directory.of(ledger.state)
    done = CommandDone(command_id="c", ok=True, reply=None)
    assert whom(directory.concerns(record(done))) == concerns(leader=True, unresolved="c")
    ended = RunEnded(job_id="j", run_id=1, state=RunState.FAILED)
    assert whom(directory.concerns(record(ended))) == concerns("j")


def test_everybody_has_the_facts_that_concern_it_and_no_others() -> None:
    directory = Directory()
    directory.concerns(record(assigned("a", "j1"), assigned("b", "j2")))
    expired = NodeExpired(node_id="n", last_seen=BEGIN)
    lost = [WorkerLost(worker_id=worker_id, reason="expired") for worker_id in "ab"]
    over = RunEnded(job_id="j1", run_id=1, state=RunState.FAILED)
    forgotten = CommandForgotten(command_ids=["c"])
    found = directory.concerns(record(expired, *lost, over, forgotten))
    assert found == Concerns(
        jobs={"j1": [1, 3], "j2": [2]}, nodes={"n": [0, 1, 2]}, leader=[4], unresolved=[]
    )
