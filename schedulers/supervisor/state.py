"""The supervisor's memory: workers, ends nobody acknowledged, tombstones, epoch and seq.

What lives here: the fold of the journal's entries, pure, and the entries that rebuild it.
What may not: files, processes and clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from events.states import WorkerState
from events.traffic import InventoryRow
from schedulers.supervisor.journal import (
    Acknowledged,
    Ended,
    Entry,
    EpochSeen,
    Launching,
    Opened,
    Renewed,
    Running,
    SeqReserved,
    Stopping,
    Tombstone,
)

MAX_TOMBSTONES: Final = 10_000
"""Worker ids remembered as never to run (again); the oldest leave first."""

MAX_WORKERS: Final = 10_000
"""Workers alive, and ends not acknowledged, together: above it launches are refused."""

SEQ_BLOCK: Final = 10_000
"""Numbers reserved by one journal entry; so many may be skipped by a restart."""


@dataclass(slots=True)
class Worker:
    """One worker alive (``ended`` None), or ended and not acknowledged."""

    born: Launching
    process: Running | None = None
    stopping: Stopping | None = None
    ended: Ended | None = None
    order: int = 0
    """Its end's place among all ends since this supervisor opened."""

    def row(self) -> InventoryRow:
        """This worker as inventories and reports show it."""
        live = WorkerState.STOPPING if self.stopping else WorkerState.RUNNING
        end = self.ended
        return InventoryRow(
            worker_id=self.born.worker_id,
            job_id=self.born.job_id,
            run_id=self.born.run_id,
            slots=self.born.slots,
            state=end.state if end else live,
            pid=self.process.pid if self.process else None,
            exit_code=end.exit_code if end else None,
            signal=end.signal if end else None,
            reason=end.reason if end else (self.stopping.reason if self.stopping else ""),
            stamp=self.born.stamp,
        )


class State:
    """Folds entries; a fold of ``entries()`` gives the same state."""

    def __init__(self) -> None:
        self.supervisor_id = ""
        self.workers: dict[str, Worker] = {}
        self.tombstones: dict[str, Tombstone] = {}
        self.renewed: Renewed | None = None
        self.epoch = 0
        self.seq = 0
        self.seq_reserved = 0
        self.ends = 0
        self.alive = 0

    def living(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.ended is None]

    def ended_after(self, order: int) -> list[Worker]:
        """Ends not acknowledged that came after the given one, oldest first."""
        late = [w for w in self.workers.values() if w.ended is not None and w.order > order]
        late.sort(key=lambda worker: worker.order)
        return late

    def apply(self, entry: Entry) -> None:
        """An entry about a worker nobody knows (its line was torn) changes nothing."""
        match entry:
            case Opened():
                self.supervisor_id = entry.supervisor_id
            case Launching():
                self.workers[entry.worker_id] = Worker(entry)
                self.alive += 1
            case Running() | Stopping() | Ended():
                worker = self.workers.get(entry.worker_id)
                if worker is not None:
                    self._change(worker, entry)
            case Renewed():
                self.renewed = entry
            case Acknowledged():
                for worker_id in entry.worker_ids:
                    self._acknowledge(worker_id)
            case Tombstone():
                self._forget(entry.worker_id)
                self._bury(entry)
            case EpochSeen():
                self.epoch = max(self.epoch, entry.epoch)
            case SeqReserved():
                self.seq_reserved = max(self.seq_reserved, entry.upto)

    def entries(self) -> Iterator[Entry]:
        """The shortest journal that folds to this state."""
        yield Opened(supervisor_id=self.supervisor_id)
        yield EpochSeen(epoch=self.epoch)
        yield SeqReserved(upto=self.seq_reserved)
        if self.renewed is not None:
            yield self.renewed
        yield from self.tombstones.values()
        yield from (worker.born for worker in self.workers.values())
        for worker in self.workers.values():
            if worker.process is not None:
                yield worker.process
            if worker.stopping is not None:
                yield worker.stopping
        for worker in self.ended_after(0):
            if worker.ended is not None:
                yield worker.ended

    def _change(self, worker: Worker, entry: Running | Stopping | Ended) -> None:
        match entry:
            case Running():
                worker.process = entry
            case Stopping():
                worker.stopping = entry
            case Ended():
                self.alive -= worker.ended is None
                self.ends += 1
                worker.ended, worker.order = entry, self.ends

    def _acknowledge(self, worker_id: str) -> None:
        worker = self.workers.get(worker_id)
        if worker is None or worker.ended is None:
            return
        self._forget(worker_id)
        self._bury(Tombstone(worker_id=worker_id, reason="it already ran and ended", ran=True))

    def _forget(self, worker_id: str) -> None:
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            self.alive -= worker.ended is None

    def _bury(self, stone: Tombstone) -> None:
        self.tombstones.pop(stone.worker_id, None)
        self.tombstones[stone.worker_id] = stone
        while len(self.tombstones) > MAX_TOMBSTONES:
            del self.tombstones[next(iter(self.tombstones))]
