"""Metrics follow from the ledger at each scrape, and counters never go back."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Struct, field
from prometheus_client.parser import text_string_to_metric_families

from controller.metrics import Metrics, TimedLog
from controller.nodeseries import SLICE
from controller.outbox import InboxStats
from events.errors import Invalid
from events.facts import (
    AnyFact,
    NodeCordoned,
    NodeExpired,
    NodeRegistered,
    Record,
    RunCreated,
    RunWaiting,
    WorkerAssigned,
    WorkerEnded,
    WorkerLaunched,
)
from events.ids import START
from events.ledger import Ledger
from events.log import LogConflict, MemoryLog
from events.states import WorkerState
from schedulers.backend import Backend, Measure, Value
from schedulers.decide import Rules
from tests.support.scripted import ScriptedLauncher
from tests.support.waiting import background

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Counts(Struct):
    messages: Counter[str] = field(default_factory=Counter)
    records: int = 0
    loop_errors: int = 0


class Carried(Struct):
    outcomes: Counter[str] = field(default_factory=Counter)


class Led:
    """A leadership with a ledger and nothing behind it."""

    def __init__(self, *facts: AnyFact) -> None:
        self.ledger = Ledger()
        self.rules = Rules()
        self.stats = Counts()
        self.dispatcher = Carried()
        self.epoch = 7
        self.waiting = 0
        self.measured: list[Measure] = []
        self.backend = Backend(
            name="test", launcher=ScriptedLauncher(), measures=lambda: self.measured
        )
        self.happens(*facts)

    def __len__(self) -> int:
        return self.waiting

    def happens(self, *facts: AnyFact) -> None:
        self.ledger.apply(Record(at=BEGIN, epoch=7, cause="test", events=list(facts)))


def node(node_id: str, slots: int) -> NodeRegistered:
    return NodeRegistered(node_id=node_id, incarnation="i", task_slots=slots)


def run_on(node_id: str, slots: int) -> list[AnyFact]:
    return [
        RunCreated(
            job_id="j",
            run_id=1,
            command_id="c",
            slots=slots,
            name="j",
            hash="",
            deadline=BEGIN + timedelta(seconds=30),
        ),
        WorkerAssigned(
            worker_id="w", job_id="j", run_id=1, node_id=node_id, incarnation="i", slots=slots
        ),
        WorkerLaunched(worker_id="w", incarnation="i"),
    ]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(InboxStats(), version="1.0.0")


def read(metrics: Metrics, name: str, **labels: str) -> float | None:
    found = (sample for family in metrics.families() for sample in family.samples)
    named = (each for each in found if (each.name, each.labels) == (f"slotbus_{name}", labels))
    return next((each.value for each in named), None)


def test_a_standby_shows_no_fleet(metrics: Metrics) -> None:
    assert read(metrics, "leader") == 0
    assert read(metrics, "free_slots") is None
    assert read(metrics, "epoch") is None


def test_slots_follow_the_ledger(metrics: Metrics) -> None:
    led = Led(node("n1", 8), node("n2", 4))
    metrics.lead(led)
    assert read(metrics, "leader") == 1
    assert read(metrics, "registered_nodes") == 2
    assert read(metrics, "registered_slots") == 12
    assert read(metrics, "free_slots") == 12
    led.happens(*run_on("n1", 6))
    assert read(metrics, "free_slots") == 6
    assert read(metrics, "scheduled_slots") == 6
    assert read(metrics, "node_free_slots", node_id="n1") == 2
    assert read(metrics, "workers", state="running") == 1
    assert read(metrics, "jobs", state="waiting") == 1
    led.happens(WorkerEnded(worker_id="w", state=WorkerState.FINISHED, exit_code=0))
    assert read(metrics, "free_slots") == 12
    assert read(metrics, "workers", state="finished") == 1
    assert read(metrics, "workers", state="running") == 0


def test_what_those_who_wait_lack_follows_the_ledger(metrics: Metrics) -> None:
    led = Led(node("n1", 2))
    metrics.lead(led)
    assert (read(metrics, "missing_slots"), read(metrics, "waiting_starts")) == (0, 0)
    for job_id in ("a", "b"):
        led.happens(
            RunCreated(
                job_id=job_id,
                run_id=1,
                command_id=job_id,
                slots=5,
                name=job_id,
                hash="h",
                deadline=BEGIN,
            )
        )
    assert (read(metrics, "missing_slots"), read(metrics, "waiting_starts")) == (8, 2)
    later = BEGIN + timedelta(seconds=5)
    led.happens(RunWaiting(job_id="b", run_id=1, missing=0, reason="rests", not_before=later))
    assert (read(metrics, "missing_slots"), read(metrics, "waiting_starts")) == (3, 2)


def test_expired_nodes_offer_nothing_and_cordoned_ones_still_count(metrics: Metrics) -> None:
    led = Led(node("n1", 8), node("n2", 4))
    metrics.lead(led)
    led.happens(NodeCordoned(node_id="n2"))
    led.happens(NodeExpired(node_id="n1", last_seen=BEGIN))
    assert read(metrics, "registered_nodes") == 1
    assert read(metrics, "registered_slots") == 4
    assert read(metrics, "free_slots") == 4
    assert read(metrics, "node_free_slots", node_id="n1") is None
    assert read(metrics, "nodes", state="expired") == 1
    assert read(metrics, "nodes", state="cordoned") == 1


def test_the_engine_itself_is_shown(metrics: Metrics) -> None:
    led = Led(node("n1", 8))
    led.waiting = 3
    metrics.lead(led)
    assert read(metrics, "epoch") == 7
    assert read(metrics, "log_position") == 1
    assert read(metrics, "queue_length") == 3


def test_counters_go_on_over_leaderships(metrics: Metrics) -> None:
    for _ in range(2):
        led = Led()
        metrics.lead(led)
        led.stats.messages["Tick"] += 2
        led.stats.records += 5
        led.stats.loop_errors += 1
        led.dispatcher.outcomes["Launched"] += 1
        before = read(metrics, "records_appended_total")
        metrics.unlead()
        assert read(metrics, "records_appended_total") == before
    metrics.unlead()
    assert read(metrics, "records_appended_total") == 10
    assert read(metrics, "decisions_total", kind="Tick") == 4
    assert read(metrics, "effects_total", outcome="Launched") == 2
    assert read(metrics, "loop_errors_total") == 2


def test_the_inbox_is_counted(metrics: Metrics) -> None:
    metrics.inbox.received["cmd-start"] += 3
    metrics.inbox.refused("cmd-start", Invalid("no"))
    metrics.inbox.dropped["lease_over"] += 1
    assert read(metrics, "messages_total", kind="cmd-start") == 3
    assert read(metrics, "errors_total", kind="cmd-start", code="invalid") == 1
    assert read(metrics, "invalid_messages_total") == 1
    assert read(metrics, "answers_dropped_total", reason="lease_over") == 1
    assert read(metrics, "handler_faults_total") == 0


def test_a_backend_s_own_series_are_shown_and_its_counts_go_on(metrics: Metrics) -> None:
    def measured(requests: int, pods: int) -> list[Measure]:
        made = Value(requests, {"verb": "create"})
        return [
            Measure(name="asked", text="?", labels=("verb",), values=[made], grows=True),
            Measure(name="pods", text="?", values=[Value(pods)]),
        ]

    first, second = Led(), Led()
    metrics.lead(first)
    assert read(metrics, "pods") is None
    first.measured = measured(3, 7)
    assert read(metrics, "asked_total", verb="create") == 3
    assert read(metrics, "pods") == 7
    metrics.unlead()
    assert read(metrics, "pods") is None
    metrics.lead(second)
    second.measured = measured(2, 5)
    assert read(metrics, "asked_total", verb="create") == 5
    assert read(metrics, "pods") == 5


def test_latencies_are_histograms(metrics: Metrics) -> None:
    metrics.command_took("cmd-start", 0.02)
    metrics.append_took(0.0006)
    assert read(metrics, "command_seconds_bucket", command="cmd-start", le="0.025") == 1
    assert read(metrics, "command_seconds_bucket", command="cmd-start", le="0.01") == 0
    assert read(metrics, "append_seconds_count") == 1


async def test_all_of_it_is_in_the_text(metrics: Metrics) -> None:
    metrics.lead(Led(node("n1", 8)))
    text = (await metrics.render()).decode()
    assert "# TYPE slotbus_free_slots gauge\nslotbus_free_slots 8.0\n" in text
    assert 'slotbus_node_free_slots{node_id="n1"} 8.0\n' in text


async def test_many_nodes_are_written_in_slices_and_like_all_other_series() -> None:
    """In between others have their turn, and what they do shows."""
    metrics, led = Metrics(InboxStats()), Led(*(node(f"n{i:04}", 1) for i in range(3 * SLICE)))
    metrics.lead(led)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with background(others()):
        text = (await metrics.render()).decode()
    assert turns >= 3
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert text.count("# TYPE slotbus_node_free_slots ") == 1
    rows = {s.labels["node_id"]: s.value for s in families["slotbus_node_free_slots"].samples}
    assert rows == dict.fromkeys(led.ledger.nodes, 1.0)
    assert len(families["slotbus_node_scheduled_slots"].samples) == 3 * SLICE


async def test_above_a_number_of_nodes_only_the_sums_are_shown() -> None:
    metrics = Metrics(InboxStats(), node_series=1)
    metrics.lead(led := Led(node("n1", 8)))
    assert b'slotbus_node_free_slots{node_id="n1"} 8.0' in await metrics.render()
    led.happens(node("n2", 4))
    text = await metrics.render()
    assert b"slotbus_node_" not in text
    assert b"slotbus_free_slots 12.0" in text


async def test_a_leadership_that_ends_meanwhile_shows_no_nodes() -> None:
    metrics = Metrics(InboxStats())
    metrics.lead(Led(node("n1", 8)))
    rendering = asyncio.create_task(metrics.render())
    await asyncio.sleep(0)
    metrics.unlead()
    assert b"slotbus_node_" not in await rendering


async def test_appends_are_timed_when_acknowledged_only() -> None:
    took: list[float] = []
    log = TimedLog(MemoryLog(), took.append)
    record = Record(at=BEGIN, epoch=7, cause="test", events=[node("n1", 1)])
    await log.append([record], expected=START, timeout_s=1)
    with pytest.raises(LogConflict):
        await log.append([record], expected=START, timeout_s=1)
    assert len(took) == 1
    assert [batch async for batch in log.read()] == [[record]]
    await log.close()
