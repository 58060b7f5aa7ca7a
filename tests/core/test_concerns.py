"""Whom records concern."""

from __future__ import annotations

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


def concerns(
    jobs: str = "", nodes: str = "", leader: bool = False, unresolved: str = ""
) -> Concerns:
    return Concerns(
        jobs=jobs.split(), nodes=nodes.split(), leader=leader, unresolved=unresolved.split()
    )


def test_a_worker_leads_to_its_job_and_node() -> None:
    directory = Directory()
    assert directory.concerns(record(assigned("w"))) == concerns("j", "n")
    launched = WorkerLaunched(worker_id="w", incarnation="i")
    assert directory.concerns(record(launched)) == concerns("j", "n")


def test_within_a_record_earlier_facts_explain_later_ones() -> None:
    directory = Directory()
    ended = WorkerEnded(worker_id="w2", state=WorkerState.FAILED, launched=False)
    found = directory.concerns(record(assigned("w1"), assigned("w2", node_id="m"), ended))
    assert found == concerns("j", "n m")


def test_an_outcome_concerns_the_job_or_node_of_its_command() -> None:
    directory = Directory()
    start = CommandTaken(command_id="c1", kind="start", digest="", job_id="j")
    drain = CommandTaken(command_id="c2", kind="drain", digest="", node_id="n")
    assert directory.concerns(record(start)) == concerns("j")
    assert directory.concerns(record(drain)) == concerns("", "n")
    assert directory.concerns(record(CommandDone(command_id="c1", ok=True, reply={}))) == concerns(
        "j"
    )
    done = CommandDone(command_id="c2", ok=False, reply=None)
    assert directory.concerns(record(done)) == concerns("", "n")


def test_an_expiry_concerns_the_node_and_every_job_on_it() -> None:
    directory = Directory()
    directory.concerns(record(assigned("a", "j1"), assigned("b", "j2"), assigned("c", "j3", "m")))
    expired = NodeExpired(node_id="n", last_seen=BEGIN)
    lost = [WorkerLost(worker_id=worker_id, reason="expired") for worker_id in "ab"]
    assert directory.concerns(record(expired, *lost)) == concerns("j1 j2", "n")


def test_what_concerns_nobody_else_concerns_the_leader() -> None:
    directory = Directory()
    started = LeaderStarted(epoch=EPOCH, cluster="c", scheduler="process")
    assert directory.concerns(record(started)) == concerns(leader=True)
    assert directory.concerns(record()) == concerns(leader=True)
    both = record(started, NodeCordoned(node_id="n"))
    assert directory.concerns(both) == concerns("", "n", leader=True)
    forgotten = CommandForgotten(command_ids=["c1"])
    assert directory.concerns(record(forgotten)) == concerns(leader=True)


def test_what_was_forgotten_is_told_and_then_unknown() -> None:
    directory = Directory()
    directory.concerns(record(assigned("a"), assigned("b", run_id=2), assigned("c", "k")))
    ended = WorkerEnded(worker_id="a", state=WorkerState.FINISHED)
    found = directory.concerns(record(ended, RunForgotten(job_id="j", run_id=1)))
    assert found == concerns("j", "n")
    assert directory.concerns(record(ended)) == concerns(leader=True, unresolved="a")
    assert directory.concerns(record(JobForgotten(job_id="j"))) == concerns("j")
    both = [WorkerLost(worker_id=worker_id, reason="") for worker_id in "bc"]
    assert directory.concerns(record(*both)) == concerns("k", "n", unresolved="b")


def test_a_directory_may_begin_with_what_the_ledger_knows() -> None:
    ledger = Ledger()
    ledger.state.commands.clear()
    directory = Directory.of(ledger.state)
    done = CommandDone(command_id="c", ok=True, reply=None)
    assert directory.concerns(record(done)) == concerns(leader=True, unresolved="c")
    ended = RunEnded(job_id="j", run_id=1, state=RunState.FAILED)
    assert directory.concerns(record(ended)) == concerns("j")
