"""Policies: what a run does when a worker of it fails, and the run that follows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from events.facts import RunCreated, RunEnded, RunStopping, RunWaiting, WorkerEnded
from events.ids import MAX_INT, MAX_RECORD_BYTES
from events.log import encode_record
from events.policies import Policy, Restarting, RestartOptions, chance_of, gone_at
from events.queries import JobReply, QueryJob
from events.states import RunState, WorkerState
from schedulers.decide import Rules, next_due
from schedulers.launcher import Assignment
from tests.support.story import (
    DAWN,
    Story,
    acknowledged,
    beat,
    ended,
    fact,
    facts,
    inventory,
    kinds,
    launches,
    refused,
    register,
    row,
    start,
    stop,
    stopped_ids,
    tick,
)

RESTART = {"on_failure": "restart", "on_lost": "restart"}
PATIENT = Rules(expiry_s=100_000)


def run_of(story: Story, run_id: int, job_id: str = "j") -> RunState:
    return story.ledger.jobs[job_id].run(run_id).state


def newest(story: Story) -> RunState:
    return story.ledger.jobs["j"].current.state


def launched(story: Story, orders: list[Assignment]) -> list[str]:
    for order in orders:
        story.tell(acknowledged(order))
    return [order.worker_id for order in orders]


def fails(story: Story, worker_id: str, **fields: object) -> None:
    """A worker that is alone in its run fails; its run waits for its restart."""
    node_id = story.ledger.workers[worker_id].node_id
    story.tell(ended(worker_id, node_id, **({"exit_code": 1} | fields)))


def restarted(story: Story) -> list[str]:
    """The restart that waits begins, at its time."""
    due = next_due(story.ledger, story.pulse)
    assert due is not None
    story.now = max(story.now, due)
    return launched(story, launches(story.tell(tick())))


# --- a failure ------------------------------------------------------------------------------


def test_without_a_policy_the_others_go_on() -> None:
    story = Story().nodes(n1=2, n2=2)
    one, two = story.running("j", 4)
    assert kinds(story.tell(ended(one, "n1", exit_code=1))) == ["worker_ended"]
    draft = story.tell(ended(two, "n2"))
    assert kinds(draft) == ["worker_ended", "run_ended"]
    assert fact(draft, RunEnded).state is RunState.FAILED


@pytest.mark.parametrize("end", [{"exit_code": 1}, {"signal": 9}], ids=["exit", "signal"])
def test_a_failed_worker_stops_its_gang_and_another_run_follows(end: dict[str, object]) -> None:
    story = Story().nodes(n1=2, n2=2)
    one, two = story.running("j", 4, on_failure="restart", program={"x": 1}, env_vars={"A": "b"})
    draft = story.tell(ended(one, "n1", **end))
    stopping = fact(draft, RunStopping)
    assert (stopping.failed, stopping.restart, stopping.tries) == (True, True, 1)
    assert stopped_ids(draft) == [two]
    assert run_of(story, 1) is RunState.STOPPING

    draft = story.tell(ended(two, "n2", signal=15))
    assert fact(draft, RunEnded).state is RunState.FAILED
    created = fact(draft, RunCreated)
    assert (created.run_id, created.restart_of, created.tries, created.slots) == (2, 1, 1, 4)
    assert (bytes(created.program), created.env_vars) == (b'{"x":1}', {"A": "b"})
    assert created.policy.on_failure == "restart"
    waiting = fact(draft, RunWaiting)
    assert waiting.not_before is not None
    assert 0.5 <= (waiting.not_before - story.now).total_seconds() <= 1.0
    assert not launches(draft)

    story.now = waiting.not_before - timedelta(microseconds=1)
    assert kinds(story.tell(tick())) == []
    story.now = waiting.not_before
    draft = story.tell(tick())
    assert len(launches(draft)) == 2
    assert launches(draft)[0].program == created.program
    launched(story, launches(draft))
    assert run_of(story, 2) is RunState.RUNNING
    story.check()


def test_a_worker_that_was_done_does_not_hold_up_the_restart_and_all_done_is_finished() -> None:
    story = Story().nodes(n1=2, n2=2)
    one, two = story.running("j", 4, **RESTART)
    assert kinds(story.tell(ended(one, "n1"))) == ["worker_ended"]
    assert run_of(story, 1) is RunState.RUNNING
    story.tell(ended(two, "n2", exit_code=2))
    assert run_of(story, 2) is RunState.WAITING
    three, four = restarted(story)
    story.tell(ended(three, story.ledger.workers[three].node_id))
    draft = story.tell(ended(four, story.ledger.workers[four].node_id))
    assert fact(draft, RunEnded).state is RunState.FINISHED
    assert not facts(draft, RunCreated)


def test_only_the_kind_of_end_that_the_policy_names_restarts() -> None:
    story = Story().nodes(n1=2, n2=2)
    one, _ = story.running("j", 4, on_lost="restart")
    draft = story.tell(ended(one, "n1", exit_code=1))
    assert kinds(draft) == ["worker_ended"]

    story = Story().nodes(n1=2, n2=2)
    one, _ = story.running("j", 4, on_failure="restart")
    draft = story.tell(ended(one, "n1", state=WorkerState.LOST))
    assert kinds(draft) == ["worker_ended"]


def test_a_worker_that_fails_while_others_start_restarts_when_all_are_there() -> None:
    story = Story().nodes(n1=2, n2=2)
    one, two = launches(story.tell(start("j", 4, on_failure="restart", command_id="c")))
    story.tell(acknowledged(one))
    story.tell(ended(one.worker_id, one.node_id, exit_code=3))
    assert run_of(story, 1) is RunState.STARTING
    draft = story.tell(acknowledged(two))
    assert kinds(draft)[-3:] == ["command_done", "run_stopping", "worker_stopping"]
    story.check()


# --- back-off and limit ---------------------------------------------------------------------


def test_the_back_off_doubles_up_to_the_longest_and_begins_anew_after_a_quiet_time() -> None:
    how = RestartOptions(first_s=1, longest_s=5, limit=100, quiet_s=600)
    story = Story().nodes(n1=1)
    (worker,) = story.running("j", 1, on_failure="restart", restart=how)
    pauses = []
    for _ in range(5):
        began = story.now
        fails(story, worker)
        (worker,) = restarted(story)
        story.tell(beat())
        pauses.append((story.now - began).total_seconds())
    for pause, longest in zip(pauses, [1, 2, 4, 5, 5], strict=True):
        assert longest / 2 <= pause <= longest
    for _ in range(30):
        story.tell(beat(), after=20)
    fails(story, worker)
    assert story.ledger.jobs["j"].current.tries == 1
    story.check()


def test_the_jitter_comes_from_the_message_and_differs_between_jobs() -> None:
    assert chance_of("t", "a") == chance_of("t", "a")
    assert len({chance_of("t", f"j{i}") for i in range(100)}) == 100
    assert all(0 <= chance_of(f"{i}", "j") < 1 for i in range(1_000))
    assert Restarting(first_s=10, longest_s=1).backoff_s(4, 0.0) == 10


def test_beyond_the_limit_the_run_ends_and_says_so() -> None:
    how = RestartOptions(first_s=0.1, limit=2, window_s=100)
    story = Story().nodes(n1=1)
    (worker,) = story.running("j", 1, on_failure="restart", restart=how)
    for _ in range(2):
        fails(story, worker)
        (worker,) = restarted(story)
    draft = story.tell(ended(worker, exit_code=7))
    over = fact(draft, RunEnded)
    assert over.state is RunState.FAILED
    assert over.reason.endswith(
        "exit 7; not restarted: it was restarted 2 times within 100 s, the limit"
    )
    assert not facts(draft, RunCreated)
    assert len(story.ledger.jobs["j"].restarts) == 2


def test_restarts_before_the_window_do_not_count_and_a_person_begins_anew() -> None:
    how = RestartOptions(first_s=0.1, limit=1, window_s=50, quiet_s=1_000)
    story = Story().nodes(n1=1)
    (worker,) = story.running("j", 1, on_failure="restart", restart=how)
    fails(story, worker)
    (worker,) = restarted(story)
    for _ in range(3):
        story.tell(beat(), after=20)
    fails(story, worker)
    (worker,) = restarted(story)
    fails(story, worker)
    assert newest(story) is RunState.FAILED

    (worker,) = story.running("j", 1, on_failure="restart", restart=how)
    assert story.ledger.jobs["j"].restarts == []
    fails(story, worker)
    assert newest(story) is RunState.WAITING


# --- waiting for a restart ------------------------------------------------------------------


def test_a_restart_whose_time_has_not_come_keeps_nothing_from_others() -> None:
    how = RestartOptions(first_s=60)
    story = Story(PATIENT).nodes(n1=2)
    fails(story, story.running("j", 2, on_failure="restart", restart=how)[0])
    other = story.running("k", 2)
    assert other
    assert restarted(story) == []
    waiting = story.ledger.jobs["j"].current
    assert (waiting.missing, waiting.not_before) == (2, None)
    # now it stands in line, and small starts can't pass it
    story.tell(start("small", 1, command_id="small"))
    assert story.refusal("small").code == "not_enough_slots"
    assert len(launches(story.tell(ended(other[0])))) == 1
    story.check()


def test_one_without_room_is_not_looked_at_all_the_time() -> None:
    story = Story().nodes(n1=1, n2=1)
    story.running("k", 1)
    fails(story, story.running("j", 1, on_failure="restart")[0])
    story.running("l", 1)
    restarted(story)
    due = next_due(story.ledger, story.pulse)
    assert due is not None
    assert due > story.now + timedelta(seconds=1)


def test_a_higher_priority_in_line_lets_a_restart_say_why_it_waits() -> None:
    story = Story().nodes(n1=2)
    (worker,) = story.running("j", 2, on_failure="restart")
    story.tell(start("first", 2, on_shortage="wait", priority=5))
    fails(story, worker)
    assert run_of(story, 1, "first") is RunState.STARTING
    restarted(story)
    assert story.ledger.jobs["j"].current.missing == 2


def test_stop_cancels_a_restart_that_waits() -> None:
    story = Story().nodes(n1=1)
    fails(story, story.running("j", 1, on_failure="restart")[0])
    draft = story.tell(stop("j", command_id="s"))
    assert fact(draft, RunEnded).state is RunState.STOPPED
    assert kinds(story.tell(tick(), after=100)) == ["node_expired"]
    assert len(story.ledger.jobs["j"].runs) == 2


def test_stop_cancels_a_restart_while_the_old_workers_end() -> None:
    story = Story().nodes(n1=2, n2=2)
    one, two = story.running("j", 4, on_failure="restart")
    fails(story, one)
    story.tell(stop("j", command_id="s"))
    draft = story.tell(ended(two, "n2", signal=15))
    assert fact(draft, RunEnded).state is RunState.STOPPED
    assert not facts(draft, RunCreated)
    assert story.ledger.commands["s"].done
    story.check()


def test_a_start_while_a_restart_waits_is_refused() -> None:
    story = Story().nodes(n1=1)
    fails(story, story.running("j", 1, on_failure="restart")[0])
    story.tell(start("j", 1, command_id="again"))
    assert story.refusal("again").code == "run_active"


def test_an_automatic_start_that_fails_is_tried_again() -> None:
    story = Story().nodes(n1=1)
    fails(story, story.running("j", 1, on_failure="restart")[0])
    story.now += timedelta(seconds=2)
    (order,) = launches(story.tell(tick()))
    draft = story.tell(refused(order, "no such program"))
    stopping = fact(draft, RunStopping)
    assert (stopping.restart, stopping.tries) == (True, 2)
    assert fact(draft, RunCreated).run_id == 3
    assert run_of(story, 2) is RunState.FAILED
    restarted(story)
    assert run_of(story, 3) is RunState.RUNNING
    story.check()


def test_an_automatic_start_that_takes_too_long_is_rolled_back_by_time() -> None:
    story = Story(Rules(expiry_s=1_000)).nodes(n1=1)
    fails(story, story.running("j", 1, on_failure="restart")[0])
    story.now += timedelta(seconds=2)
    (order,) = launches(story.tell(tick()))
    due = next_due(story.ledger, story.pulse)
    assert due == story.now + timedelta(seconds=story.rules.start_timeout_s)
    story.now = due
    draft = story.tell(tick())
    assert fact(draft, RunStopping).restart
    assert stopped_ids(draft) == [order.worker_id]


def test_a_start_by_hand_that_fails_is_not_tried_again() -> None:
    story = Story().nodes(n1=1)
    (order,) = launches(story.tell(start("j", 1, command_id="c", **RESTART)))
    draft = story.tell(refused(order))
    assert kinds(draft)[-2:] == ["run_ended", "command_done"]
    assert story.refusal("c").code == "start_failed"


def test_a_new_leader_goes_on_with_a_restart() -> None:
    story = Story().nodes(n1=2, n2=2)
    one, two = story.running("j", 4, on_failure="restart")
    fails(story, one)
    story.lead()
    draft = story.tell(ended(two, "n2", signal=15))
    assert fact(draft, RunCreated).tries == 1
    story.lead()
    story.tell(register("n1", 2, epoch=story.epoch))
    story.tell(register("n2", 2, epoch=story.epoch))
    assert len(restarted(story)) == 2
    story.check()


def test_many_restarts_at_once_are_written_in_records_that_fit() -> None:
    story = Story().nodes(n1=3)
    program = {"x": "y" * 400_000}
    for job_id in "abc":
        story.running(job_id, 1, program=program, on_lost="restart", stop_after_s=1)
    story.now += timedelta(seconds=60)
    story.tell(tick())
    created = [f for record in story.records for f in record.events if isinstance(f, RunCreated)]
    assert len(created) == 6
    assert all(len([f for f in r.events if isinstance(f, RunCreated)]) <= 1 for r in story.records)
    story.check()


# --- lost workers ---------------------------------------------------------------------------


def test_a_lost_worker_without_a_lease_waits_and_returns_to_its_run() -> None:
    story = Story().nodes(n1=2)
    (order,) = launches(story.tell(start("j", 1, on_lost="restart")))
    story.tell(acknowledged(order))
    draft = story.tell(tick(), after=31)
    assert kinds(draft) == ["node_expired", "worker_lost"]
    story.tell(register("n2", 2))
    for _ in range(100):
        story.tell(beat("n2"), after=25)
    assert len(story.ledger.jobs["j"].runs) == 1
    story.tell(beat("n1"))
    draft = story.tell(inventory("n1", row(order)))
    assert kinds(draft) == ["worker_returned"]
    assert run_of(story, 1) is RunState.RUNNING
    story.check()


def test_a_lease_that_is_over_makes_a_silent_worker_gone_and_its_run_restarts() -> None:
    story = Story().nodes(n1=2)
    (worker,) = story.running("j", 1, on_lost="restart", stop_after_s=60)
    story.tell(tick(), after=31)
    story.tell(register("n2", 2))
    over = gone_at(DAWN, 60)
    assert over == DAWN + timedelta(seconds=60.06 + 20)
    story.now = over - timedelta(milliseconds=1)
    story.tell(beat("n2"))
    assert kinds(story.tell(tick())) == []
    assert next_due(story.ledger, story.pulse) == over
    story.now = over
    draft = story.tell(tick())
    gone = fact(draft, WorkerEnded)
    assert gone.state is WorkerState.LOST
    assert gone.reason == "its lease of 60 s is over: nobody has heard node n1 since 00:00:00"
    assert fact(draft, RunCreated).restart_of == 1
    (successor,) = restarted(story)
    assert story.ledger.workers[successor].node_id == "n2"
    # the old machine returns with the worker, which should not be: it is stopped
    story.tell(beat("n1"))
    order = row(launches_of(story, worker))
    draft = story.tell(inventory("n1", order))
    assert kinds(draft) == ["worker_orphaned"]
    assert stopped_ids(draft) == [worker]
    story.check()


def launches_of(story: Story, worker_id: str) -> Assignment:
    """As it was ordered, for the row of an inventory."""
    worker = story.ledger.workers[worker_id]
    (order,) = launches(Story().nodes(n1=2).tell(start("j", 1)))
    return Assignment(
        **{
            name: getattr(order, name)
            for name in order.__struct_fields__
            if name not in ("worker_id", "run_id")
        },
        worker_id=worker_id,
        run_id=worker.run_id,
    )


def test_a_node_that_returns_in_time_keeps_its_workers() -> None:
    story = Story().nodes(n1=2)
    (order,) = launches(story.tell(start("j", 1, on_lost="restart", stop_after_s=60)))
    story.tell(acknowledged(order))
    story.tell(tick(), after=31)
    story.tell(beat("n1"), after=20)
    draft = story.tell(inventory("n1", row(order)))
    assert kinds(draft) == ["worker_returned"]
    for _ in range(10):
        story.tell(beat("n1"), after=20)
        story.tell(tick())
    assert run_of(story, 1) is RunState.RUNNING
    assert not story.ledger.leases


def test_a_new_leader_makes_a_lease_end_later_and_never_earlier() -> None:
    story = Story().nodes(n1=2)
    story.running("j", 1, on_lost="restart", stop_after_s=60)
    story.now += timedelta(seconds=29)
    story.lead()
    draft = story.tell(tick(), after=31)
    assert "node_expired" in kinds(draft)
    assert story.ledger.leases[0][0] == gone_at(DAWN + timedelta(seconds=29), 60)
    story.now += timedelta(seconds=20)
    story.lead()  # whose log may have lost that the node returned
    assert story.ledger.leases[0][0] == gone_at(DAWN + timedelta(seconds=80), 60)
    story.now = story.ledger.leases[0][0]
    assert "run_created" in kinds(story.tell(tick()))
    story.check()


def test_a_failure_beside_a_lost_worker_waits_for_proof_of_its_end() -> None:
    story = Story().nodes(n1=2, n2=2)
    one, two = story.running("j", 4, **RESTART, stop_after_s=100)
    for _ in range(4):
        story.tell(beat("n2"), after=10)
    assert story.state_of(one) is WorkerState.LOST
    story.tell(ended(two, "n2", exit_code=1))
    assert run_of(story, 1) is RunState.STOPPING
    reply = story.tell(QueryJob(job_id="j")).answer
    assert isinstance(reply, JobReply)
    assert reply.awaits == [one]
    story.now = story.ledger.leases[0][0]
    draft = story.tell(tick())
    assert fact(draft, RunCreated).run_id == 2
    story.check()


def test_the_copies_of_older_runs_count_too() -> None:
    story = Story().nodes(n1=2, n2=2)
    (old,) = story.running("j", 2)
    for _ in range(4):
        story.tell(beat("n2"), after=10)
    (new,) = story.running("j", 2, on_failure="restart")  # a person takes the risk
    assert story.ledger.workers[new].node_id == "n2"
    story.tell(ended(new, "n2", exit_code=1))
    assert run_of(story, 2) is RunState.STOPPING
    story.tell(beat("n1"))
    draft = story.tell(ended(old, "n1", signal=15))
    assert fact(draft, RunCreated).restart_of == 2
    story.check()


def test_a_start_by_hand_replaces_a_run_that_waits_for_proof() -> None:
    story = Story().nodes(n1=2, n2=2)
    one, two = story.running("j", 4, **RESTART)
    for _ in range(4):
        story.tell(beat("n2"), after=10)
    story.tell(ended(two, "n2", exit_code=1))
    assert run_of(story, 1) is RunState.STOPPING
    assert len(story.running("j", 2)) == 1
    assert run_of(story, 1) is RunState.FAILED
    assert story.state_of(one) is WorkerState.STOPPING
    story.check()


def test_an_unwatched_node_has_no_leases() -> None:
    story = Story(Rules(local_node="n1")).nodes(n1=2)
    story.running("j", 1, on_lost="restart", stop_after_s=1)
    assert not story.ledger.leases
    story.tell(tick(), after=1_000)
    assert run_of(story, 1) is RunState.RUNNING


# --- the policy itself ----------------------------------------------------------------------


def test_what_a_start_leaves_open_is_as_configured_and_stands_in_the_fact() -> None:
    rules = Rules(on_failure="restart", restart=Restarting(first_s=3, limit=4))
    story = Story(rules).nodes(n1=4)
    draft = story.tell(start("j", 1, restart={"limit": 7}))
    policy = fact(draft, RunCreated).policy
    assert policy == Policy(
        on_failure="restart", on_drain="move", restart=Restarting(first_s=3, limit=7)
    )
    draft = story.tell(start("k", 1, on_failure="report", on_lost="restart", on_drain="stop"))
    assert fact(draft, RunCreated).policy == Policy(
        on_lost="restart", on_drain="stop", restart=Restarting(first_s=3, limit=4)
    )
    assert fact(Story().nodes(n=1).tell(start()), RunCreated).policy == Policy()


def test_a_job_that_has_used_up_all_run_ids_is_not_restarted() -> None:
    story = Story().nodes(n1=1)
    (worker,) = story.running("j", 1, on_failure="restart", run_id=MAX_INT)
    draft = story.tell(ended(worker, exit_code=1, run_id=MAX_INT))
    assert fact(draft, RunEnded).state is RunState.FAILED
    assert not facts(draft, RunCreated)
    story.check()


def test_what_json_makes_larger_still_fits_a_record() -> None:
    story = Story().nodes(n1=6)
    env_vars = {"A": "\x01" * 100_000}  # six bytes each, once they are written
    for job_id in "abcdef":
        story.running(job_id, 1, env_vars=env_vars, on_lost="restart", stop_after_s=1)
    story.now += timedelta(seconds=60)
    story.tell(tick())
    assert all(len(encode_record(record)) <= MAX_RECORD_BYTES for record in story.records)
    assert all(run_of(story, 2, job_id) is RunState.WAITING for job_id in "abcdef")
    story.check()
