"""The auditor can fail: logs broken in several ways for each law."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from events import facts as f
from events.audit import Auditor, Violation, audit
from events.facts import AnyFact, Record
from events.ids import Position
from events.ledger import Ledger
from events.messages import SchedulerConfig
from events.states import RunState, WorkerState
from tests.support.story import (
    DAWN,
    FIRST_EPOCH,
    Story,
    ended,
    kinds,
    register,
    start,
    stop,
    tick,
)


def leader(epoch: int = FIRST_EPOCH) -> AnyFact:
    return f.LeaderStarted(epoch=epoch, cluster="here", scheduler="test")


def node(node_id: str = "n1", slots: int = 4) -> AnyFact:
    return f.NodeRegistered(node_id=node_id, incarnation=f"{node_id}-a", task_slots=slots)


def taken(command_id: str = "c1", **fields: object) -> AnyFact:
    return f.CommandTaken(command_id=command_id, kind="start", digest="", **fields)  # type: ignore[arg-type]


def done(command_id: str = "c1", *, ok: bool = True, reply: object = None) -> AnyFact:
    return f.CommandDone(command_id=command_id, ok=ok, reply=reply or {})


def created(run_id: int = 1, slots: int = 2, command_id: str = "c1") -> AnyFact:
    return f.RunCreated(
        job_id="j",
        run_id=run_id,
        command_id=command_id,
        slots=slots,
        name="j",
        hash="",
        deadline=DAWN,
    )


def assigned(worker_id: str = "w1", run_id: int = 1, slots: int = 2, on: str = "n1") -> AnyFact:
    return f.WorkerAssigned(
        worker_id=worker_id,
        job_id="j",
        run_id=run_id,
        node_id=on,
        incarnation=f"{on}-a",
        slots=slots,
    )


def placed(run_id: int = 1) -> AnyFact:
    return f.RunPlaced(job_id="j", run_id=run_id, attempt=1)


def launched(worker_id: str = "w1") -> AnyFact:
    return f.WorkerLaunched(worker_id=worker_id, incarnation="n1-a")


def gone(worker_id: str = "w1", *, launched: bool = True) -> AnyFact:
    return f.WorkerEnded(worker_id=worker_id, state=WorkerState.FAILED, launched=launched)


def running(run_id: int = 1) -> AnyFact:
    return f.RunRunning(job_id="j", run_id=run_id)


def stopping(worker_id: str = "w1") -> AnyFact:
    return f.WorkerStopping(worker_id=worker_id, reason="")


def rollback(run_id: int = 1) -> list[AnyFact]:
    return [
        f.RunStopping(job_id="j", run_id=run_id, reason="", failed=True),
        f.RunEnded(job_id="j", run_id=run_id, state=RunState.FAILED),
    ]


GIVEN = [leader(), node(), taken(), created(), placed(), assigned()]
"""A start whose worker is on its way."""


def log_of(*facts: AnyFact, at: float = 0.0, epoch: int = FIRST_EPOCH) -> list[Record]:
    """One record a fact."""
    moment = DAWN + timedelta(seconds=at)
    return [Record(at=moment, epoch=epoch, cause="test", events=[fact]) for fact in facts]


def laws(found: list[Violation]) -> set[int]:
    return {violation.law for violation in found}


def broken(*facts: AnyFact) -> list[Violation]:
    """What the auditor finds in the story so far and these facts."""
    return audit(log_of(*GIVEN, *facts))


def test_a_sound_log_breaks_no_law() -> None:
    assert broken(launched(), running(), done(), gone(), f.RunEnded(
        job_id="j", run_id=1, state=RunState.FAILED
    )) == []  # fmt: skip


# --- law 1 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        [assigned("w2", slots=3)],
        [assigned("w2", on="nowhere")],
        [launched(), f.NodeRegistered(node_id="n1", incarnation="n1-a", task_slots=1),
         assigned("w2", slots=1)],
        [f.WorkerLost(worker_id="w1", reason=""), assigned("w2", slots=3)],
        [stopping(), assigned("w2", slots=3)],
    ],
    ids=["too-much", "unknown-node", "shrunk-node", "lost-keeps-slots", "stopping-keeps-slots"],
)  # fmt: skip
def test_law_1_no_placement_takes_more_than_is_free(facts: list[AnyFact]) -> None:
    found = broken(*facts)
    assert 1 in laws(found)
    assert found[0].facts["worker_id"] == "w2"


def test_law_1_the_ledgers_free_slots_are_counted_again() -> None:
    auditor = Auditor()
    for position, record in enumerate(log_of(*GIVEN), start=1):
        assert auditor.observe(Position(position), record) == []
    auditor.ledger._held["n1"] -= 1
    (record,) = log_of(stopping())
    (found,) = auditor.observe(Position(len(GIVEN) + 1), record)
    assert (found.law, found.sentence) == (1, "node n1 has 2 free slots, the ledger says 3")


# --- law 2 ----------------------------------------------------------------------------------


def test_law_2_a_worker_id_is_assigned_once() -> None:
    assert 2 in laws(broken(assigned("w1", slots=1)))
    assert 2 in laws(broken(gone(), assigned("w1")))


def test_law_2_not_even_after_it_was_forgotten() -> None:
    facts = [gone(), *rollback(), done(ok=False), f.RunForgotten(job_id="j", run_id=1),
             created(2, command_id="c2"), placed(2), assigned("w1", 2)]  # fmt: skip
    found = broken(taken("c2"), *facts)
    assert laws(found) == {2}


@pytest.mark.parametrize("extra", [[], [launched("w1"), launched("w2")]], ids=["new", "running"])
def test_law_2_no_two_runs_of_a_job_live_on_nodes_that_answer(extra: list[AnyFact]) -> None:
    facts = [taken("c2"), created(2, command_id="c2"), placed(2), assigned("w2", 2)]
    found = broken(*facts, *extra)
    assert laws(found) == {2}
    assert "runs [1, 2]" in found[0].sentence


def test_law_2_sees_what_a_return_brings_together() -> None:
    facts = [f.NodeExpired(node_id="n1", last_seen=DAWN), node("n2"), taken("c2"),
             created(2, command_id="c2"), placed(2), assigned("w2", 2, on="n2")]  # fmt: skip
    assert laws(broken(*facts)) == set()
    assert laws(broken(*facts, f.NodeReturned(node_id="n1"))) == {2}
    assert laws(broken(*facts, stopping(), f.NodeReturned(node_id="n1"))) == set()


def follower(run_id: int = 2) -> AnyFact:
    made = created(run_id, command_id="")
    assert isinstance(made, f.RunCreated)
    return msgspec.structs.replace(made, restart_of=1, tries=1)


def test_law_2_what_begins_by_itself_begins_when_every_older_copy_is_gone() -> None:
    silent = [launched(), running(), done(), node("n2"),
              f.NodeExpired(node_id="n1", last_seen=DAWN), stopping(),
              *rollback(), follower()]  # fmt: skip
    assert laws(broken(*silent)) == set()
    (found,) = broken(*silent, placed(2))
    assert (found.law, found.facts) == (2, {"job_id": "j", "worker_id": "w1"})
    assert found.sentence == (
        "run 2 of job j began by itself while worker w1 of run 1 may live on node n1"
    )
    assert laws(broken(*silent, gone(), placed(2))) == set()


# --- law 3 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        [launched(), running(), done(), done()],
        [done("c9")],
        [taken()],
        [launched(), running(), done(), taken()],
        [f.CommandForgotten(command_ids=["c1"])],
    ],
    ids=["twice", "unknown", "taken-twice", "taken-again", "forgotten-pending"],
)
def test_law_3_exactly_one_outcome_a_command(facts: list[AnyFact]) -> None:
    assert 3 in laws(broken(*facts))


def test_law_3_an_outcome_is_not_overdue() -> None:
    due = DAWN + timedelta(seconds=10)
    records = log_of(leader(), taken(deadline=due))
    assert audit(records) == audit(records, due) == []
    (found,) = audit(records, due + timedelta(minutes=1))
    assert (found.law, found.facts) == (3, {"command_id": "c1"})


def test_law_3_while_nobody_led_no_outcome_was_due() -> None:
    due = DAWN + timedelta(seconds=10)
    first = log_of(leader(), taken(deadline=due))
    back = due + timedelta(minutes=5)
    led = Record(at=back, epoch=FIRST_EPOCH + 1, cause="leader", events=[leader(FIRST_EPOCH + 1)])
    assert audit([*first, led], back + timedelta(seconds=4)) == []
    (found,) = audit([*first, led], back + timedelta(seconds=6))
    assert found.law == 3


# --- law 4 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        [running(), running()],
        [launched("nobody")],
        [f.NodeReturned(node_id="n1")],
        [f.NodeCordoned(node_id="nowhere")],
        [created(1)],
    ],
    ids=["twice", "unknown-worker", "not-expired", "unknown-node", "stale"],
)
def test_law_4_a_log_can_be_folded(facts: list[AnyFact]) -> None:
    assert 4 in laws(broken(*facts))


def test_law_4_a_missing_record_is_noticed() -> None:
    auditor = Auditor()
    first, second = log_of(leader(), node())
    auditor.observe(Position(1), first)
    (found,) = auditor.observe(Position(3), second)
    assert (found.law, found.position) == (4, 3)


def test_law_4_a_snapshot_and_its_tail_equal_the_whole_log() -> None:
    auditor = Auditor(snapshot_every=2)
    for position, record in enumerate(log_of(*GIVEN), start=1):
        assert auditor.observe(Position(position), record) == []
    auditor.ledger.workers["w1"].pid = 99
    assert laws(auditor.finish()) == {4}


def test_law_4_in_a_long_log_the_comparisons_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    whole = Ledger.snapshot

    def snapshot(ledger: Ledger) -> bytes:
        nonlocal taken
        taken += 1
        return whole(ledger)

    monkeypatch.setattr(Ledger, "snapshot", snapshot)
    assert _long(Auditor(), 5_000) == []
    assert 10 < taken < 30


def test_law_4_a_twin_that_begins_late_is_compared_too() -> None:
    auditor = Auditor()
    assert _long(auditor, 2_420) == []
    auditor.ledger.nodes["n1"].addr = "elsewhere"
    assert laws(_long(auditor, 100)) == {4}


def _long(auditor: Auditor, count: int) -> list[Violation]:
    """So many more records, in which next to nothing happens."""
    facts = log_of(leader(), node()) if auditor.position == 0 else []
    facts += log_of(f.CommandForgotten(command_ids=["c"])) * (count - len(facts))
    return [
        violation
        for position, record in enumerate(facts, start=auditor.position + 1)
        for violation in auditor.observe(Position(position), record)
    ]


def test_law_4_what_is_folded_as_it_happens_equals_what_is_read_back() -> None:
    """A value that JSON turns into another makes a ledger that nobody can rebuild."""
    whole_number: int = 3
    config = SchedulerConfig(stop_after_s=whole_number)
    made = msgspec.structs.replace(created(), scheduler_config=config)
    assert laws(audit(log_of(leader(), taken(), made))) == {4}


# --- law 5 ----------------------------------------------------------------------------------


def test_law_5_epochs_grow() -> None:
    again = log_of(leader(FIRST_EPOCH), epoch=FIRST_EPOCH)
    assert 5 in laws(audit(log_of(*GIVEN) + again))
    lower = log_of(leader(FIRST_EPOCH - 1), epoch=FIRST_EPOCH - 1)
    assert 5 in laws(audit(log_of(*GIVEN) + lower))


@pytest.mark.parametrize("epoch", [FIRST_EPOCH - 1, FIRST_EPOCH + 1])
def test_law_5_only_the_last_leader_writes(epoch: int) -> None:
    assert laws(audit(log_of(*GIVEN) + log_of(launched(), epoch=epoch))) == {5}


def test_law_5_nobody_writes_before_a_leader_started() -> None:
    assert 5 in laws(audit(log_of(node())))


@pytest.mark.parametrize(
    "make",
    [
        launched,
        stopping,
        gone,
        lambda w: f.WorkerLost(worker_id=w, reason=""),
        lambda w: f.WorkerReturned(worker_id=w, incarnation="n1-a"),
    ],
    ids=["launched", "stopping", "ended", "lost", "returned"],
)
def test_law_5_nothing_happens_to_a_worker_nobody_decided_or_that_is_over(
    make: Callable[[str], AnyFact],
) -> None:
    assert 5 in laws(broken(make("nobody")))
    assert 5 in laws(broken(gone(), make("w1")))


# --- law 6 ----------------------------------------------------------------------------------


def failed(*unconfirmed: str) -> AnyFact:
    error = {"code": "start_failed", "message": "", "unconfirmed": list(unconfirmed)}
    return done(ok=False, reply={"error": error})


def test_law_6_a_failed_start_leaves_nothing_on_a_node_that_answers() -> None:
    assert laws(broken(launched(), stopping(), *rollback(), failed())) == {6}
    assert laws(broken(launched(), stopping(), gone(), *rollback(), failed())) == set()


def test_law_6_naming_a_worker_unconfirmed_is_no_excuse_before_the_deadline() -> None:
    due = DAWN + timedelta(seconds=9)
    given = log_of(leader(), node(), taken(deadline=due), created(), placed(), assigned())
    outcome = [stopping(), *rollback(), failed("w1")]
    assert laws(audit(given + log_of(*outcome, at=8.9))) == {6}
    assert laws(audit(given + log_of(*outcome, at=9))) == set()


def test_law_6_what_is_left_on_a_silent_node_is_no_breach() -> None:
    silent = f.NodeExpired(node_id="n1", last_seen=DAWN)
    lost = f.WorkerLost(worker_id="w1", reason="")
    assert laws(broken(silent, lost, stopping(), *rollback(), failed("w1"))) == set()


@pytest.mark.parametrize(
    "facts",
    [
        [running()],
        [gone(launched=False), running()],
        [launched(), stopping(), gone(), running()],
    ],
    ids=["not-launched", "never-ran", "stopped"],
)
def test_law_6_a_run_is_not_said_to_run_before_all_its_slots_were_launched(
    facts: list[AnyFact],
) -> None:
    assert laws(broken(*facts)) == {6}


def test_law_6_nor_with_more_than_it_asked_for() -> None:
    assert laws(broken(assigned("w2", slots=1), launched(), launched("w2"), running())) == {6}


def test_law_6_a_start_succeeds_with_all_its_slots() -> None:
    assert laws(broken(done())) == {6}


# --- told by the rules themselves -----------------------------------------------------------


def test_a_story_told_by_the_rules_is_sound_and_any_lost_record_is_noticed(story: Story) -> None:
    story.nodes(n1=2, n2=2)
    one, two = story.running("j", 4, command_id="c1")
    story.tell(register("n3", 1), at=31)
    story.tell(stop("j", command_id="c2"))
    story.tell(register("n1", 2, incarnation="n1-b", workers=[]))
    story.tell(ended(two, "n2"))
    assert kinds(story.tell(start("j", 2), at=40))[-1] == "worker_assigned"
    story.lead()
    story.tell(tick(), at=100)
    assert one != two
    assert audit(story.records, story.now + timedelta(hours=1)) == []
    for missing in range(1, len(story.records)):
        auditor, found = Auditor(), list[Violation]()
        for position, record in enumerate(story.records, start=1):
            if position != missing:
                found += auditor.observe(Position(position), record)
        assert 4 in laws(found), f"record {missing} is not missed"
