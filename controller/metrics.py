"""Metrics: what Prometheus reads of a controller.

What lives here: names and helps of the series, and how they follow from the ledger and from
counts kept elsewhere. What may not: gauges counted by hand: free and registered slots,
nodes, workers and jobs are read off the ledger at every scrape, and can't drift from it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.config import METRICS_NODES
from controller.nodeseries import node_families, node_pages
from controller.outbox import InboxStats
from controller.queue import QueueStats
from controller.recordbuffer import RecordStats
from controller.snapshotting import SnapshotStats
from events.facts import Record
from events.ids import START, Position
from events.ledger import Ledger
from events.log import EventLog
from events.states import NodeState, RunState, WorkerState
from schedulers.backend import Backend, Measure
from schedulers.decide import Rules
from schedulers.decide.waiting import missing_slots

COMMAND_BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
)
APPEND_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
"""In seconds; an append takes about half a millisecond on an idle machine."""

LAWS: Final = range(1, 7)


class EngineCounts(Protocol):
    """The engine's own counts."""

    @property
    def messages(self) -> Counter[str]: ...
    @property
    def records(self) -> int: ...
    @property
    def loop_errors(self) -> int: ...


class Outcomes(Protocol):
    """What carries effects out."""

    @property
    def outcomes(self) -> Counter[str]: ...


class Leading(Protocol):
    """What a leadership shows of itself: an engine, seen from here."""

    @property
    def ledger(self) -> Ledger: ...
    @property
    def rules(self) -> Rules: ...
    @property
    def stats(self) -> EngineCounts: ...
    @property
    def dispatcher(self) -> Outcomes: ...
    @property
    def epoch(self) -> int: ...
    @property
    def backend(self) -> Backend: ...
    def __len__(self) -> int: ...


class _Ended(Struct):
    """Counts of leaderships that are over: a counter never goes back. ``of_backend``: by the
    name of a measure, numbers by the values of its labels."""

    messages: Counter[str]
    outcomes: Counter[str]
    of_backend: dict[str, Counter[tuple[str, ...]]]
    records: int = 0
    loop_errors: int = 0


class Metrics(Collector):
    """One controller's series, in a registry of their own.

    ``inbox`` is shared with the inboxes of all leaderships of this process. Where there are
    more than ``node_series`` nodes, none has series of its own.
    """

    def __init__(
        self, inbox: InboxStats, *, version: str = "", node_series: int = METRICS_NODES
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.inbox = inbox
        self.violations: Counter[int] = Counter()
        """Broken laws by number, as the audit found them."""
        self.recording = RecordStats()
        self.queue = QueueStats()
        self.snapshots = SnapshotStats()
        self.following: Callable[[], int] = lambda: 0
        """Up to where a standby has folded the log; 0 where this is none."""
        self._version = version
        self._node_series = node_series
        self._leading: Leading | None = None
        self._ended = _Ended(Counter(), Counter(), {})
        self._commands = Histogram(
            "slotbus_command_seconds",
            "Seconds from a command or query to its answer.",
            ["command"],
            buckets=COMMAND_BUCKETS,
            registry=self.registry,
        )
        self._appends = Histogram(
            "slotbus_append_seconds",
            "Seconds that an append to the event log took to be acknowledged.",
            buckets=APPEND_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)

    def lead(self, engine: Leading) -> None:
        """This controller leads from here on."""
        self._leading = engine

    def unlead(self) -> None:
        """The leadership is over; what it counted stays counted."""
        engine, self._leading = self._leading, None
        if engine is not None:
            self._ended.messages.update(engine.stats.messages)
            self._ended.outcomes.update(engine.dispatcher.outcomes)
            self._ended.records += engine.stats.records
            self._ended.loop_errors += engine.stats.loop_errors
            for measure in filter(lambda each: each.grows, _measures(engine)):
                ended = self._ended.of_backend.setdefault(measure.name, Counter())
                ended.update(_numbers(measure))

    def command_took(self, kind: str, seconds: float) -> None:
        """A command or query was answered."""
        self._commands.labels(kind).observe(seconds)

    def append_took(self, seconds: float) -> None:
        """An append was acknowledged."""
        self._appends.observe(seconds)

    async def render(self) -> bytes:
        """All series in Prometheus's text format; the loop is not held up by many nodes."""
        return generate_latest(self.registry) + await node_pages(self._shown_by_node)

    def _shown_by_node(self) -> Ledger | None:
        engine = self._leading
        if engine is None or len(engine.ledger.nodes) > self._node_series:
            return None
        return engine.ledger

    def families(self) -> Iterator[Metric]:
        """All series, as they are now, those of single nodes too."""
        yield from self.registry.collect()
        ledger = self._shown_by_node()
        if ledger is not None:
            yield from node_families(ledger, list(ledger.nodes))

    # --- the collector ------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client calls at a scrape."""
        engine = self._leading
        yield _gauge("leader", "1 while this controller leads, else 0.", float(engine is not None))
        yield _labelled_gauge("build_info", "Always 1.", "version", {self._version: 1})
        if engine is not None:
            yield from _of_engine(engine)
            yield from _of_nodes(engine.ledger)
            yield from _of_work(engine.ledger)
            yield from _of_line(engine.ledger, engine.rules)
            waiting = "Queued commands that were not taken at the last look."
            yield _gauge("queued_commands", waiting, self.queue.waiting)
            for measure in _measures(engine):
                yield _of_backend(measure, self._ended.of_backend.get(measure.name, Counter()))
        yield _gauge(
            "standby_position",
            "Records of the event log that a standby has folded; 0 for the leader.",
            self.following(),
        )
        yield from _of_snapshots(self.snapshots, leading=engine is not None)
        yield from self._counters(engine)

    def _counters(self, engine: Leading | None) -> Iterator[Metric]:
        decided, outcomes = Counter(self._ended.messages), Counter(self._ended.outcomes)
        records, loop_errors = self._ended.records, self._ended.loop_errors
        if engine is not None:
            decided.update(engine.stats.messages)
            outcomes.update(engine.dispatcher.outcomes)
            records += engine.stats.records
            loop_errors += engine.stats.loop_errors
        inbox = self.inbox
        yield _counter("messages", "Messages received, by kind.", "kind", inbox.received)
        yield _counter("decisions", "Messages decided upon, by kind.", "kind", decided)
        yield _counter("effects", "Effects carried out, by outcome.", "outcome", outcomes)
        yield _counter("answers_dropped", "Answers not sent, by reason.", "reason", inbox.dropped)
        yield _errors(inbox.errors)
        broken = {str(law): self.violations[law] for law in LAWS}
        yield _counter("law_violations", "Broken laws found by the audit.", "law", broken)
        yield _total("invalid_messages", "Messages that could not be read.", inbox.invalid)
        yield _total("handler_faults", "Faults of slotbus in handling messages.", inbox.faults)
        yield _total("records_appended", "Records appended to the event log.", records)
        yield _total("recorded_lines", "Lines written to recordings.", self.recording.lines)
        yield _total("recorded_bytes", "Bytes of these lines.", self.recording.bytes)
        lost = "Lines missing in recordings; each gap is marked there."
        yield _total("recording_lost_lines", lost, self.recording.lost)
        yield _total("queue_taken", "Commands taken from the queue.", self.queue.taken)
        aside = "Messages of the queue that were put aside, since they are no commands."
        yield _total("queue_set_aside", aside, self.queue.set_aside)
        yield _total("loop_errors", "Faults of slotbus in the engine's loop.", loop_errors)


def _of_engine(engine: Leading) -> Iterator[Metric]:
    yield _gauge("epoch", "Epoch of this leadership.", engine.epoch)
    unconfirmed = "Workers on nodes that the log can't confirm: see `slotbus rebuild`."
    yield _gauge("unconfirmed_workers", unconfirmed, len(engine.ledger.state.orphans))
    yield _gauge("log_position", "Records of the event log folded.", engine.ledger.position)
    yield _gauge("queue_length", "Messages that wait for the engine.", len(engine))


def _of_snapshots(stats: SnapshotStats, *, leading: bool) -> Iterator[Metric]:
    yield _total("snapshots", "Snapshots of the ledger that were kept.", stats.made)
    failures = "Times that a snapshot, a purge or an export to the archive failed."
    yield _total("snapshot_failures", failures, stats.failures)
    yield _total("log_purges", "Times that the event log's oldest records went.", stats.purges)
    if not leading:
        return
    yield _gauge("snapshot_position", "Records in the newest snapshot.", stats.position)
    yield _gauge("snapshot_bytes", "Bytes of the newest snapshot, packed.", stats.size)
    age = time.monotonic() - stats.at if stats.at else -1.0
    yield _gauge("snapshot_age_seconds", "Since this controller kept one; -1 before.", age)
    yield _gauge("log_first_position", "The oldest record left in the event log.", stats.first)
    yield _gauge("log_bytes", "Bytes of the event log's stream.", stats.log_bytes)
    yield _gauge("archive_position", "The last record in the archive.", stats.archived)


def _of_nodes(ledger: Ledger) -> Iterator[Metric]:
    capacity = ledger.capacity
    shut = capacity.shut(len(ledger.nodes))
    open_still = [ids for state, (_, ids) in shut.items() if state is not NodeState.EXPIRED]
    closed = [ledger.nodes[node_id] for ids in open_still for node_id in ids]
    slots = capacity.registered + sum(node.task_slots for node in closed)
    free = capacity.free + sum(ledger.free_slots(node.node_id) for node in closed)
    held = sum(ledger.held_slots(node_id) for node_id in ledger.nodes)
    yield _gauge("registered_nodes", "Nodes that are not expired.", capacity.present)
    yield _gauge("registered_slots", "Slots of nodes that are not expired.", slots)
    yield _gauge("free_slots", "Free slots of nodes that are not expired.", free)
    yield _gauge("scheduled_slots", "Slots held by workers that are not gone.", held)
    states = Counter({state.value: count for state, (count, _) in shut.items()})
    states[NodeState.READY.value] = len(ledger.nodes) - states.total()
    yield _by_state("nodes", "Nodes, by state.", NodeState, states)


def _of_work(ledger: Ledger) -> Iterator[Metric]:
    workers: Counter[str] = Counter(worker.state for worker in ledger.workers.values())
    jobs: Counter[str] = Counter(job.current.state for job in ledger.jobs.values() if job.runs)
    yield _by_state("workers", "Remembered workers, by state.", WorkerState, workers)
    yield _by_state("jobs", "Remembered jobs, by the state of their run.", RunState, jobs)


def _of_line(ledger: Ledger, rules: Rules) -> Iterator[Metric]:
    missing = "Slots that would let every start that waits begin."
    yield _gauge("missing_slots", missing, missing_slots(ledger, rules))
    waiting = "Starts that wait: for slots, or for the time of their restart."
    yield _gauge("waiting_starts", waiting, len(ledger.waiting))
    restarts = sum(len(job.restarts) for job in ledger.jobs.values())
    told = "Restarts that jobs have behind them since somebody started them."
    yield _gauge("recent_restarts", told, restarts)


def _measures(engine: Leading) -> list[Measure]:
    measures = engine.backend.measures
    return [] if measures is None else measures()


def _numbers(measure: Measure) -> dict[tuple[str, ...], float]:
    return {tuple(each.labels[k] for k in measure.labels): each.number for each in measure.values}


def _of_backend(measure: Measure, before: Counter[tuple[str, ...]]) -> Metric:
    kind = CounterMetricFamily if measure.grows else GaugeMetricFamily
    family = kind(f"slotbus_{measure.name}", measure.text, labels=measure.labels)
    numbers = Counter(before)
    numbers.update(_numbers(measure))
    for key, number in numbers.items():
        family.add_metric(key, number)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"slotbus_{name}", text, value=value)


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"slotbus_{name}", text, value=value)


def _labelled_gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"slotbus_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _by_state(
    name: str,
    text: str,
    states: type[NodeState] | type[WorkerState] | type[RunState],
    counts: Counter[str],
) -> Metric:
    return _labelled_gauge(name, text, "state", {s.value: counts[s.value] for s in states})


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"slotbus_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _errors(errors: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(
        "slotbus_errors",
        "Messages answered with an error, by kind and code.",
        None,
        ["kind", "code"],
    )
    for (kind, code), count in errors.items():
        family.add_metric([kind, code], count)
    return family


class TimedLog:
    """An event log whose appends are timed; otherwise the one it wraps."""

    def __init__(self, log: EventLog, took: Callable[[float], None]) -> None:
        self._log = log
        self._took = took

    def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        return self._log.read(after)

    async def append(
        self, records: Sequence[Record], *, expected: Position, timeout_s: float
    ) -> None:
        began = time.perf_counter()
        await self._log.append(records, expected=expected, timeout_s=timeout_s)
        self._took(time.perf_counter() - began)

    async def close(self) -> None:
        await self._log.close()
