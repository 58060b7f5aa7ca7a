"""The audit that every test gets at its end, and the one of a controller's log on a server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.facts import LeaderStarted, NodeRegistered, Record, WorkerLaunched
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.log import EventLog, MemoryLog
from events.messages import SchedulerConfig, StartPipelineReq
from events.subjects import Subjects
from schedulers.process import ProcessScheduler
from tests.support.auditing import Watch, WatchedLog, audit_server

EPOCH = 7
LED = LeaderStarted(epoch=EPOCH, cluster="here", scheduler="test")
NODE = NodeRegistered(node_id="n1", incarnation="n1-a", task_slots=1)
BROKEN = WorkerLaunched(worker_id="nobody", incarnation="n1-a")


def records(*facts: LeaderStarted | NodeRegistered | WorkerLaunched) -> list[Record]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return [Record(at=at, epoch=EPOCH, cause="test", events=[fact]) for fact in facts]


async def test_an_engine_is_audited_with_all_that_its_log_held_before(laws: Watch) -> None:
    log = MemoryLog()
    for _ in range(2):
        async with ProcessScheduler(log=log) as scheduler:
            await scheduler.start_workers(
                StartPipelineReq(job_id="j", slots=1, scheduler_config=_short())
            )
    laws.check()


async def test_a_ledger_that_is_not_its_logs_fails_the_test(laws: Watch) -> None:
    async with ProcessScheduler() as scheduler:
        await scheduler.start()
        scheduler.ledger.nodes["local"].addr = "somewhere else"
        with pytest.raises(AssertionError, match="not what its log says"):
            laws.check()
        scheduler.ledger.nodes["local"].addr = ""


async def test_a_broken_log_fails_the_test(laws: Watch) -> None:
    async with ProcessScheduler() as scheduler:
        await scheduler.start()
        log = scheduler.log
        assert isinstance(log, WatchedLog)
        good = list(log.lines)
        log.lines = log.lines[1:]
        with pytest.raises(AssertionError, match="law 5"):
            laws.check()
        log.lines = good


async def test_a_watched_log_is_a_log_and_remembers_what_was_stored() -> None:
    inner = MemoryLog()
    await inner.append(records(LED), expected=START, timeout_s=1)
    log: EventLog = WatchedLog(inner)
    assert [len(batch) async for batch in log.read()] == [1]
    await log.append(records(NODE), expected=Position(1), timeout_s=1)
    assert isinstance(log, WatchedLog)
    assert log.records() == records(LED, NODE)
    await log.close()


async def test_the_log_of_a_controller_elsewhere(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> None:
    log = JetStreamLog(nc, subjects)
    await log.append(records(LED, NODE), expected=START, timeout_s=10)
    assert await audit_server(nats_server.url, subjects.root) == 2
    await log.append(records(BROKEN), expected=Position(2), timeout_s=10)
    with pytest.raises(AssertionError, match="law 5 at record 3"):
        await audit_server(nats_server.url, subjects.root)


def _short() -> SchedulerConfig:
    return SchedulerConfig(command=["true"])
