"""A cluster of 10,000 nodes and 20,000 workers: every question has an answer that fits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

import msgspec
import pytest

from events.codec import encode
from events.messages import Message
from events.queries import (
    JobsReply,
    LeaderReply,
    NodesReply,
    QueryJob,
    QueryJobs,
    QueryLeader,
    QueryNode,
    QueryNodes,
    QueryWorker,
    QueryWorkers,
    WorkersReply,
)
from schedulers.decide import Rules
from schedulers.decide.messages import Query
from tests.support.story import Story, acknowledged, launches, register, start

NODES = 10_000
WORKERS = 20_000
A_RUN = 1_000
MESSAGE_BYTES = 1_000_000
SOME_SECONDS = 3.0


@cache
def crowd() -> Story:
    """Built once; asking changes nothing."""
    story = Story(Rules(expiry_s=10_000, per_worker=1))
    story.auditor.observe = lambda *_: []  # type: ignore[method-assign]
    for index in range(NODES):
        story.tell(register(f"n{index:05}", 2, labels={"zone": "z" * 200}))
    for number in range(WORKERS // A_RUN):
        for order in launches(story.tell(start(f"j{number:02}", A_RUN, spread="even"))):
            story.tell(acknowledged(order))
    return story


def pages(query: QueryNodes | QueryWorkers | QueryJobs) -> Iterator[Message]:
    """All pages, each of which fits into a message."""
    while True:
        reply = crowd().tell(query).answer
        assert isinstance(reply, NodesReply | WorkersReply | JobsReply)
        assert len(encode(reply)) < MESSAGE_BYTES
        yield reply
        if not reply.next:
            return
        query = msgspec.structs.replace(query, cursor=reply.next)


@pytest.mark.parametrize("limit", [1_000, 5_000])
def test_all_nodes_workers_and_jobs_are_listed_once(limit: int) -> None:
    crowd()
    began = time.perf_counter()
    nodes = [
        row.node_id
        for reply in pages(QueryNodes(limit=limit))
        if isinstance(reply, NodesReply)
        for row in reply.nodes
    ]
    workers = [
        row.worker_id
        for reply in pages(QueryWorkers(limit=limit))
        if isinstance(reply, WorkersReply)
        for row in reply.workers
    ]
    jobs = [
        (row.job_id, row.workers)
        for reply in pages(QueryJobs(limit=limit))
        if isinstance(reply, JobsReply)
        for row in reply.jobs
    ]
    assert time.perf_counter() - began < SOME_SECONDS
    assert nodes == sorted(set(nodes))
    assert (len(nodes), len(workers), len(set(workers))) == (NODES, WORKERS, WORKERS)
    assert jobs == [(f"j{number:02}", A_RUN) for number in range(WORKERS // A_RUN)]


def test_every_other_question_is_answered_at_once() -> None:
    worker_id = next(iter(crowd().ledger.workers))
    asked: list[Query] = [
        QueryLeader(),
        QueryNode(node_id="n00000"),
        QueryJob(job_id="j00"),
        QueryWorker(worker_id=worker_id),
        QueryWorkers(job_id="j00"),
        QueryWorkers(node_id="n00000"),
    ]
    for query in asked:
        began = time.perf_counter()
        reply = crowd().tell(query).answer
        assert time.perf_counter() - began < 1.0
        assert isinstance(reply, Message), reply
        assert len(encode(reply)) < MESSAGE_BYTES
    told = crowd().tell(QueryLeader()).answer
    assert isinstance(told, LeaderReply)
    assert (told.nodes, told.workers) == (NODES, WORKERS)
