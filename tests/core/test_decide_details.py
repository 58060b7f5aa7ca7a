"""Queries for everything about one thing, and what an ended run leaves to be started again."""

from __future__ import annotations

import msgspec
import pytest

from events import folding_runs
from events.errors import SlotbusError
from events.ledger import Ledger
from events.queries import (
    JobReply,
    LeaderReply,
    NodeDetailReply,
    QueryJob,
    QueryLeader,
    QueryNode,
    QueryWorker,
    QueryWorkers,
    WorkerReply,
    WorkersReply,
)
from events.states import NodeState, RunState, WorkerState
from schedulers.decide.messages import Inbound
from tests.support.story import FIRST_EPOCH, Story, beat, ended, start, stop


def answer(story: Story, query: Inbound) -> object:
    draft = story.tell(query)
    assert (draft.record, draft.effects) == (None, [])
    return draft.answer


def job(story: Story, job_id: str = "j", run_id: int | None = None) -> JobReply:
    reply = answer(story, QueryJob(job_id=job_id, run_id=run_id))
    assert isinstance(reply, JobReply), reply
    return reply


def refused(story: Story, query: Inbound) -> str:
    reply = answer(story, query)
    assert isinstance(reply, SlotbusError)
    return reply.code


def definition(reply: JobReply) -> tuple[bool, bytes, dict[str, str]]:
    return reply.defined, bytes(reply.program), reply.env_vars


def finish(story: Story, job_id: str, program: object = None) -> None:
    """A run that is started and ends well."""
    (worker_id,) = story.running(job_id, 1, program=program or {}, env_vars={"A": "b"})
    story.tell(ended(worker_id, exit_code=0))


def test_a_run_can_be_described_while_it_runs(story: Story) -> None:
    story.nodes(n1=4)
    story.running("j", 2, program={"a": 1}, env_vars={"A": "b"}, name="Count", wasm_path="x.wasm")
    reply = job(story)
    assert definition(reply) == (True, b'{"a":1}', {"A": "b"})
    assert (reply.name, reply.wasm_path, reply.slots, reply.state) == (
        "Count", "x.wasm", 2, RunState.RUNNING,
    )  # fmt: skip
    assert [(row.run_id, row.state, row.workers) for row in reply.runs] == [
        (1, RunState.RUNNING, reply.workers)
    ]


def test_the_newest_run_keeps_its_definition_after_its_end_and_older_ones_lose_it(
    story: Story,
) -> None:
    story.nodes(n1=4)
    finish(story, "j", ["first"])
    assert definition(job(story)) == (True, b'["first"]', {"A": "b"})
    finish(story, "j", ["second"])
    assert definition(job(story)) == (True, b'["second"]', {"A": "b"})
    assert definition(job(story, run_id=1)) == (False, b"{}", {})
    assert [row.run_id for row in job(story).runs] == [1, 2]


def test_a_run_whose_worker_is_out_of_reach_leaves_nothing_to_a_newer_one(story: Story) -> None:
    story.nodes(n1=1, n2=1)
    story.running("j", 1, program=["old"])
    old = story.ledger.jobs["j"].current
    for _ in range(2):
        story.tell(beat("n2"), after=20)
    assert story.node_state("n1") is NodeState.EXPIRED
    story.tell(stop("j"))
    assert old.ended  # unconfirmed: its worker may live on
    story.running("j", 1, program=["new"])
    assert definition(job(story, run_id=1)) == (False, b"{}", {})
    assert definition(job(story))[:2] == (True, b'["new"]')


def test_definitions_of_ended_runs_have_a_limit_and_the_oldest_go_first(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding_runs, "DEFINITION_BYTES", 100)
    story.nodes(n1=4)
    for name in ("a", "b", "c"):
        finish(story, name, "x" * 40)
    assert [definition(job(story, name))[0] for name in ("a", "b", "c")] == [False, True, True]
    finish(story, "d", "x" * 200)  # too large by itself: nothing is left
    assert [definition(job(story, name))[0] for name in ("b", "c", "d")] == [False, False, False]


def test_a_restored_ledger_forgets_definitions_in_the_same_order(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding_runs, "DEFINITION_BYTES", 100)
    story.nodes(n1=4)
    finish(story, "z", "x" * 40)
    finish(story, "a", "x" * 40)
    restored = Ledger.restore(story.ledger.snapshot())
    at = len(story.records)
    finish(story, "m", "x" * 40)
    for record in story.records[at:]:
        restored.apply(record)
    assert restored.snapshot() == story.ledger.snapshot()
    assert [story.ledger.defines(story.ledger.jobs[name].current) for name in "zam"] == [
        False, True, True,
    ]  # fmt: skip


def test_a_run_refused_for_lack_of_room_changes_nothing(story: Story) -> None:
    story.nodes(n1=1)
    finish(story, "j", ["kept"])
    story.tell(start("j", 5))
    assert definition(job(story))[1] == b'["kept"]'


def test_nodes_and_workers_can_be_described(story: Story) -> None:
    story.nodes(n1=2, n2=2)
    (worker_id,) = story.running("j", 2)
    reply = answer(story, QueryWorker(worker_id=worker_id))
    assert isinstance(reply, WorkerReply)
    assert (reply.worker.state, reply.launched, reply.gone) == (WorkerState.RUNNING, True, False)
    assert (reply.epoch, reply.position > 0) == (FIRST_EPOCH, True)
    node = answer(story, QueryNode(node_id=reply.worker.node_id))
    assert isinstance(node, NodeDetailReply)
    assert (node.node.free_slots, node.cordon, node.orphans) == (0, NodeState.READY, [])
    assert node.incarnation == reply.incarnation


def test_workers_of_one_node(story: Story) -> None:
    story.nodes(n1=1, n2=1)
    story.running("j", 2)
    reply = answer(story, QueryWorkers(node_id="n2"))
    assert isinstance(reply, WorkersReply)
    assert [row.node_id for row in reply.workers] == ["n2"]


def test_what_is_not_known_is_said_by_its_code(story: Story) -> None:
    story.nodes(n1=1)
    finish(story, "j")
    assert refused(story, QueryJob(job_id="k")) == "unknown_job"
    assert refused(story, QueryJob(job_id="j", run_id=7)) == "unknown_job"
    assert refused(story, QueryNode(node_id="n9")) == "unknown_node"
    assert refused(story, QueryWorker(worker_id="w9")) == "unknown_worker"


def test_the_leader_says_who_it_is_and_what_time_it_is(story: Story) -> None:
    story.nodes(n1=1)
    story.running("j")
    reply = answer(story, QueryLeader())
    assert isinstance(reply, LeaderReply)
    assert (reply.epoch, reply.now, reply.position) == (
        FIRST_EPOCH, story.now, len(story.records),
    )  # fmt: skip
    assert (reply.nodes, reply.jobs, reply.workers, reply.pending) == (1, 1, 1, 0)
    assert msgspec.json.encode(reply)
