"""What the ledger remembers, to the last of each kind; and what forgetting means to who asks.

The numbers are smaller than those of docs/operating.md, which `test_limits_page` holds to the code;
what happens at them is the same.
"""

from __future__ import annotations

from events.errors import UnknownJob
from events.messages import StartReply
from events.queries import QueryJob
from schedulers.decide import Rules
from tests.support.story import Story, ended, kinds, start, tick

RULES = Rules(remembered_jobs=20, remembered_commands=100)


def run_through(story: Story, job_id: str) -> None:
    """A run of one worker, from its start to its end."""
    (worker,) = story.running(job_id)
    story.tell(ended(worker, job_id=job_id), after=1)


def test_so_many_ended_jobs_are_remembered_and_the_oldest_is_the_next_to_go() -> None:
    story = Story(RULES).nodes(n1=1)
    names = [f"j{number}" for number in range(RULES.remembered_jobs + 1)]
    for name in names[:-1]:
        run_through(story, name)
        story.nodes(n1=1)  # it beats
    assert story.tell(tick()).record is None
    assert len(story.ledger.jobs) == RULES.remembered_jobs
    run_through(story, names[-1])
    assert kinds(story.tell(tick())) == ["job_forgotten"]
    assert list(story.ledger.jobs) == names[1:]
    answer = story.tell(QueryJob(job_id=names[0])).answer
    assert isinstance(answer, UnknownJob)
    story.tell(start(names[0], run_id=1, command_id="old-run"))
    assert story.refusal("old-run").code == "stale_run"
    story.tell(start(names[0], command_id="next-run"))
    assert story.ledger.jobs[names[0]].current.run_id == 2


def test_so_many_runs_of_a_job_are_remembered() -> None:
    story = Story(RULES).nodes(n1=1)
    for _ in range(RULES.remembered_runs):
        run_through(story, "j")
    assert story.tell(tick()).record is None
    run_through(story, "j")
    assert kinds(story.tell(tick())) == ["run_forgotten"]
    kept = [run.run_id for run in story.ledger.jobs["j"].runs]
    assert kept == list(range(2, RULES.remembered_runs + 2))


def test_so_many_commands_are_remembered_and_a_forgotten_id_is_new_again() -> None:
    story = Story(RULES)
    for number in range(RULES.remembered_commands):
        story.tell(start("j", command_id=f"c{number}"))  # refused: there are no nodes
    assert story.tell(tick()).record is None
    story.nodes(n1=1)
    story.tell(start("j", command_id="c0"))
    assert story.refusal("c0").code == "not_enough_slots"  # the first answer again
    story.tell(start("k", 2, command_id="one-more"))
    assert kinds(story.tell(tick())) == ["command_forgotten"]
    assert len(story.ledger.commands) == RULES.remembered_commands
    assert "c0" not in story.ledger.commands
    (worker,) = story.running("j", command_id="c0")
    reply = story.outcome("c0")
    assert isinstance(reply, StartReply)
    assert [placed.worker_id for placed in reply.workers] == [worker]
