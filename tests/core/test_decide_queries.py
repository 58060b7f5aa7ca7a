"""Queries: rows and pages, and the memory of what is over."""

from __future__ import annotations

from collections.abc import Callable

from events.messages import StopReply
from events.queries import JobsReply, NodesReply, QueryJobs, QueryNodes, QueryWorkers, WorkersReply
from events.states import NodeState, RunState, WorkerState
from events.traffic import InventoryRow
from schedulers.decide import Rules
from schedulers.decide.messages import Inbound
from tests.support.story import (
    DAWN,
    Story,
    beat,
    ended,
    inventory,
    kinds,
    register,
    start,
    stop,
    tick,
)


def workers(story: Story, **fields: object) -> WorkersReply:
    reply = answer(story, QueryWorkers(**fields))  # type: ignore[arg-type]
    assert isinstance(reply, WorkersReply)
    return reply


def jobs(story: Story, **fields: object) -> JobsReply:
    reply = answer(story, QueryJobs(**fields))  # type: ignore[arg-type]
    assert isinstance(reply, JobsReply)
    return reply


def nodes(story: Story, **fields: object) -> NodesReply:
    reply = answer(story, QueryNodes(**fields))  # type: ignore[arg-type]
    assert isinstance(reply, NodesReply)
    return reply


def answer(story: Story, query: Inbound) -> object:
    draft = story.tell(query)
    assert (draft.record, draft.effects) == (None, [])
    return draft.answer


def test_workers_are_those_alive_and_on_request_the_ended_ones(story: Story) -> None:
    story.nodes(n1=1, n2=1)
    one, two = story.running("j", 2)
    story.tell(ended(one, exit_code=4), after=3)
    (row,) = workers(story).workers
    assert (row.worker_id, row.node_id, row.state) == (two, "n2", WorkerState.RUNNING)
    everyone = {row.worker_id: row for row in workers(story, all=True).workers}
    assert set(everyone) == {one, two}
    gone = everyone[one]
    assert (gone.state, gone.exit_code, gone.reason) == (WorkerState.FAILED, 4, "exit 4")
    assert (gone.since - DAWN).total_seconds() == 3


def test_workers_of_a_job_or_a_run(story: Story) -> None:
    story.nodes(n1=3)
    (old,) = story.running("j")
    story.tell(ended(old))
    (new,) = story.running("j")
    story.running("k")
    assert [row.worker_id for row in workers(story, job_id="j").workers] == [new]
    assert [row.worker_id for row in workers(story, job_id="j", run_id=1).workers] == []
    assert [row.worker_id for row in workers(story, run_id=2).workers] == [new]
    assert [row.run_id for row in workers(story, job_id="j", run_id=1, all=True).workers] == [1]
    assert workers(story, job_id="nobody").workers == []


def test_pages_join_without_gap_or_repetition(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(per_worker=1)).nodes(n1=25)
    ids = sorted(story.running("j", 25))
    seen: list[str] = []
    cursor = ""
    for expected in (10, 10, 5):
        page = workers(story, limit=10, cursor=cursor)
        assert len(page.workers) == expected
        seen += [row.worker_id for row in page.workers]
        cursor = page.next
    assert (seen, cursor) == (ids, "")


def test_a_page_that_just_fits_is_the_last(story: Story) -> None:
    story.nodes(n1=1, n2=1)
    assert nodes(story, limit=2).next == ""
    assert nodes(story, limit=1).next == "n1"
    assert [row.node_id for row in nodes(story, limit=1, cursor="n1").nodes] == ["n2"]


def test_jobs_show_their_current_run(story: Story) -> None:
    story.nodes(n1=4)
    (one,) = story.running("a", 2, name="first")
    story.tell(start("b", 1))
    rows = {row.job_id: row for row in jobs(story).jobs}
    assert (rows["a"].name, rows["a"].state, rows["a"].slots) == ("first", RunState.RUNNING, 2)
    assert (rows["b"].state, rows["b"].workers) == (RunState.STARTING, 1)
    story.tell(ended(one, exit_code=1))
    (row,) = jobs(story, job_id="a").jobs
    assert (row.state, row.workers, row.reason) == (RunState.FAILED, 0, f"worker {one}: exit 1")
    assert jobs(story, job_id="nobody").jobs == []


def test_nodes_show_slots_and_when_they_were_heard(story: Story) -> None:
    story.tell(register("n1", 4, labels={"zone": "a"}))
    story.tell(start("j", 3))
    story.tell(beat("n1"), at=4)
    story.rules = Rules(local_node="local")
    story.tell(register("local", 2, incarnation="l"))
    story.now = DAWN.replace(second=6, microsecond=500_000)
    rows = {row.node_id: row for row in nodes(story).nodes}
    one = rows["n1"]
    assert (one.registered_slots, one.scheduled_slots, one.free_slots) == (4, 3, 1)
    assert (one.state, one.heartbeat_age_s, one.labels) == (NodeState.READY, 2.5, {"zone": "a"})
    assert rows["local"].heartbeat_age_s is None
    assert [row.node_id for row in nodes(story, node_id="n1").nodes] == ["n1"]


def test_a_query_notices_an_expiry_that_is_due(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(QueryNodes(), at=31)
    assert kinds(draft) == ["node_expired"]
    assert isinstance(draft.answer, NodesReply)
    assert draft.answer.nodes[0].state is NodeState.EXPIRED


# --- forgetting -----------------------------------------------------------------------------


def run_through(story: Story, job_id: str = "j") -> None:
    (one,) = story.running(job_id)
    story.tell(ended(one), after=1)


def test_old_runs_leave_and_the_highest_run_id_stays(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(remembered_runs=2)).nodes(n1=1)
    for _ in range(4):
        run_through(story)
    draft = story.tell(tick())
    assert kinds(draft) == ["run_forgotten", "run_forgotten"]
    assert [run.run_id for run in story.ledger.jobs["j"].runs] == [3, 4]
    assert len(story.ledger.workers) == 2


def test_a_run_with_a_live_worker_is_not_forgotten(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(remembered_runs=1)).nodes(n1=1)
    (lost,) = story.running("j")
    story.tell(register("n2", 1), at=31)
    (second,) = story.running("j")
    story.tell(ended(second, "n2"))
    assert story.tell(tick()).record is None
    assert lost in story.ledger.workers


def test_the_jobs_that_ended_first_leave_first(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(remembered_jobs=1)).nodes(n1=2)
    run_through(story, "b")
    run_through(story, "a")
    story.running("c")
    assert kinds(story.tell(tick())) == ["job_forgotten"]
    assert set(story.ledger.jobs) == {"a", "c"}
    story.tell(stop("b", command_id="c9"))
    reply = story.outcome("c9")
    assert isinstance(reply, StopReply)
    story.tell(start("b", run_id=1, command_id="c10"))
    assert story.refusal("c10").code == "stale_run"


def test_the_oldest_command_ids_leave_first_also_after_a_restart(
    stories: Callable[[Rules], Story],
) -> None:
    story = stories(Rules(remembered_commands=2))
    for command_id in ("z", "y", "x", "w"):
        story.tell(start("j", command_id=command_id))
    story.ledger = type(story.ledger).restore(story.ledger.snapshot())
    assert kinds(story.tell(tick())) == ["command_forgotten"]
    assert list(story.ledger.commands) == ["x", "w"]


def test_a_pending_command_is_not_forgotten(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(remembered_commands=0)).nodes(n1=1)
    story.tell(start("j", command_id="c1"))
    story.tell(tick())
    assert "c1" in story.ledger.pending


def test_a_node_silent_for_long_leaves_if_it_holds_no_workers(
    stories: Callable[[Rules], Story],
) -> None:
    story = stories(Rules(node_memory_s=100)).nodes(n1=1, n2=1)
    story.running("j")
    story.tell(tick(), at=31)
    assert story.tell(tick(), at=131).record is None
    assert kinds(story.tell(tick(), at=131.1)) == ["node_forgotten"]
    assert set(story.ledger.nodes) == {"n1"}


def test_orphans_leave_with_their_node(stories: Callable[[Rules], Story]) -> None:
    story = stories(Rules(node_memory_s=100)).nodes(n1=1)
    row = InventoryRow(worker_id="w-x", job_id="x", run_id=1, slots=1, state=WorkerState.RUNNING)
    story.tell(inventory("n1", row))
    assert [o.node_id for o in story.ledger.state.orphans.values()] == ["n1"]
    story.tell(tick(), at=31)
    story.tell(tick(), at=200)
    assert story.ledger.state.orphans == {}
