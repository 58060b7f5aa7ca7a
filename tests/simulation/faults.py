"""Deliberate faults: what the simulation must be able to find, put into the real code.

What lives here: one small change of the real code for each fault, as a context. What may not:
looking for them (``finding``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC
from importlib import import_module
from types import ModuleType
from typing import Final, TypeAlias
from unittest.mock import patch

from controller import leader
from events.capacity import Capacity
from events.jetstream import JetStreamLog
from events.traffic import InventoryRow
from schedulers.clock import MonotonicClock
from schedulers.decide.messages import (
    LaunchFailed,
    LaunchUncertain,
    Outcome,
    StopAnswered,
)
from schedulers.dispatch import Dispatcher
from schedulers.leading import Leading
from schedulers.loop import EngineLoop
from schedulers.node.ends import EndReporter
from schedulers.node.orders import Orders
from schedulers.supervisor import adopt
from schedulers.supervisor.api import Spawned, WorkerSpec
from schedulers.supervisor.core import LocalSupervisor
from schedulers.supervisor.journal import EpochSeen
from schedulers.supervisor.process_tree import ProcessId, Table
from schedulers.supervisor.state import State, Worker
from tests.simulation.seams import SimDatetime

Fault: TypeAlias = Callable[[], AbstractContextManager[None]]


def _module(name: str) -> ModuleType:
    """A module of the decisions; some have functions of their own name beside them."""
    return import_module(f"schedulers.decide.{name}")


@contextmanager
def effect_before_append() -> Iterator[None]:
    """Orders go out beside the append instead of after it."""
    plain = EngineLoop._append

    async def append(self: EngineLoop) -> None:
        for decision in self._unreleased:
            for effect in decision.draft.effects:
                self.dispatcher.start(effect)
        await plain(self)

    with patch.object(EngineLoop, "_append", append):
        yield


@contextmanager
def reply_before_acknowledgement() -> Iterator[None]:
    """Everybody is answered when it is decided."""
    plain = EngineLoop._append

    async def append(self: EngineLoop) -> None:
        with patch.object(self.dispatcher, "start", lambda _effect: None):
            for decision in self._unreleased:
                self._release(decision)
        await plain(self)

    with patch.object(EngineLoop, "_append", append):
        yield


@contextmanager
def no_epoch_check() -> Iterator[None]:
    """Agents and supervisors take orders of any leader."""

    def fence(self: LocalSupervisor, epoch: int) -> None:
        if epoch > self._state.epoch:
            self._memory.record(EpochSeen(epoch=epoch))

    with (
        patch.object(Orders, "_fence", lambda *_: None),
        patch.object(LocalSupervisor, "_fence", fence),
    ):
        yield


@contextmanager
def expiry_by_wall_clock() -> Iterator[None]:
    """A controller's time is what the machine's clock says."""

    def now(_self: MonotonicClock) -> object:
        return SimDatetime.now(UTC)

    with patch.object(MonotonicClock, "now", now):
        yield


@contextmanager
def no_roll_back() -> Iterator[None]:
    """A start that can't be completed leaves running what was started."""
    with patch.object(_module("settle"), "stop_worker", lambda *_, **__: None):
        yield


@contextmanager
def old_inventories() -> Iterator[None]:
    """A worker that a list lacks is gone, whenever and under whomever the list was taken."""
    with (
        patch.object(_module("reconcile"), "_is_later", lambda *_: True),
        patch.object(_module("nodes"), "_is_ours", lambda *_: True),
    ):
        yield


@contextmanager
def tombstones_forgotten() -> Iterator[None]:
    """A supervisor forgets who may never run (again)."""
    with patch.object(State, "_bury", lambda *_: None):
        yield


@contextmanager
def lease_relied_on_too_long() -> Iterator[None]:
    """The holder believes in its lease for three times its length."""
    with patch.object(leader, "MARGIN", -2.0):
        yield


@contextmanager
def append_without_expectation() -> Iterator[None]:
    """The log takes what comes, whoever else wrote."""
    plain = JetStreamLog._publish

    async def publish(self: JetStreamLog, body: bytes, headers: dict[str, str], deadline: object):  # type: ignore[no-untyped-def]
        kept = {k: v for k, v in headers.items() if k != "Nats-Expected-Last-Sequence"}
        return await plain(self, body, kept, deadline)  # type: ignore[arg-type]

    with patch.object(JetStreamLog, "_publish", publish):
        yield


@contextmanager
def unsettled_taken_for_stored() -> Iterator[None]:
    """No answer from the log is good news."""

    async def stored(*_: object) -> bool:
        return True

    with patch.object(JetStreamLog, "_stored", stored):
        yield


def _outcomes(change: Callable[[Outcome], Outcome]) -> AbstractContextManager[object]:
    """What effects come to is told otherwise."""
    plain = Dispatcher.__init__

    def init(self: Dispatcher, *given: object, **named: object) -> None:
        tell: Callable[[Outcome], None] = named.pop("tell")  # type: ignore[assignment]
        plain(self, *given, tell=lambda outcome: tell(change(outcome)), **named)  # type: ignore[arg-type]

    return patch.object(Dispatcher, "__init__", init)


@contextmanager
def stopping_taken_for_gone() -> Iterator[None]:
    """A worker that is being stopped counts as gone."""

    def change(outcome: Outcome) -> Outcome:
        if isinstance(outcome, StopAnswered):
            return StopAnswered(outcome.worker_id, "unknown", outcome.node_id)
        return outcome

    with _outcomes(change):
        yield


@contextmanager
def uncertain_taken_for_failed() -> Iterator[None]:
    """A launch that nobody answered for did not happen."""

    def change(outcome: Outcome) -> Outcome:
        if isinstance(outcome, LaunchUncertain):
            return LaunchFailed(outcome.worker_id, outcome.reason)
        return outcome

    with _outcomes(change):
        yield


@contextmanager
def launched_twice() -> Iterator[None]:
    """An order to start is carried out as often as it comes."""

    async def launch(self: LocalSupervisor, spec: WorkerSpec, epoch: int) -> Spawned:
        workers = self.open()
        self._fence(epoch)
        return workers.spawn(spec)

    with patch.object(LocalSupervisor, "launch", launch):
        yield


@contextmanager
def epoch_of_the_clock() -> Iterator[None]:
    """An epoch is the wall clock's milliseconds, whatever the log has seen."""
    plain = Leading._read_log

    async def read_log(self: Leading) -> None:
        await plain(self)
        self.epoch = int(SimDatetime.now(UTC).timestamp() * 1000)

    with patch.object(Leading, "_read_log", read_log):
        yield


@contextmanager
def recycled_pids() -> Iterator[None]:
    """Whoever has the number of a worker that was known is that worker."""

    def main(worker: Worker, table: Table, boot: str, owner_of: object) -> ProcessId | None:
        row = table.get(worker.process.pid) if worker.process is not None else None
        return row.id if row is not None and row.alive else None

    with patch.object(adopt, "_main", main):
        yield


@contextmanager
def ends_acknowledged_early() -> Iterator[None]:
    """An agent forgets an end before a leader has it."""

    async def report(_self: EndReporter, _row: InventoryRow) -> None:
        return None

    with patch.object(EndReporter, "_report", report):
        yield


@contextmanager
def a_slot_too_many() -> Iterator[None]:
    """Each node has one more slot free than it has."""
    plain = Capacity.free_of
    with patch.object(Capacity, "free_of", lambda self, node_id: plain(self, node_id) + 1):
        yield


FAULTS: Final[dict[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        effect_before_append,
        reply_before_acknowledgement,
        no_epoch_check,
        expiry_by_wall_clock,
        no_roll_back,
        old_inventories,
        tombstones_forgotten,
        lease_relied_on_too_long,
        append_without_expectation,
        unsettled_taken_for_stored,
        stopping_taken_for_gone,
        uncertain_taken_for_failed,
        launched_twice,
        epoch_of_the_clock,
        recycled_pids,
        ends_acknowledged_early,
        a_slot_too_many,
    )
}
