"""What a launcher without a supervisor remembers of its workers, in memory.

What lives here: fences (epoch, incarnation, tombstones), the growing ``seq``, and ends until
they are acknowledged. What may not: how a worker is started or stopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from msgspec import Struct

from events.states import WorkerState
from events.traffic import AgentStopReply, InventoryReply, InventoryRow, WorkerFinishedReq
from schedulers.launcher import Assignment, Fenced, LaunchAck, LaunchRefused, report_of

TOMBSTONES: Final = 100_000
"""How many ids that may never start (again) are kept; an order that is older than so many
ends is no longer under way."""


class _Tracked(Struct):
    node_id: str
    row: InventoryRow
    seq: int


class Tracking:
    """The workers of one launcher. Every call is safe to repeat."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._epoch = 0
        self._seq = 0
        self._workers: dict[str, _Tracked] = {}
        self._tombstones: dict[str, bool] = {}
        """Of each id that may never start (again), whether it ran."""
        self._ends: deque[WorkerFinishedReq] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def fence(self, incarnation: str, epoch: int) -> None:
        """Raises Fenced for another incarnation or a lower epoch than seen; remembers the
        highest."""
        if incarnation != self.incarnation:
            raise Fenced(
                f"this node is {self.incarnation}, not {incarnation}",
                incarnation=self.incarnation,
            )
        if epoch < self._epoch:
            raise Fenced(f"epoch {epoch} is over: {self._epoch} was seen", epoch_seen=self._epoch)
        self._epoch = epoch

    def launched(self, worker_id: str) -> LaunchAck | None:
        """The answer to a launch that was carried out already, or None for a new one.

        Raises LaunchRefused for a worker that ended, or was stopped before it began.
        """
        known = self._workers.get(worker_id)
        told = self._tombstones.get(worker_id)
        if told is not None or (known and not self.is_live(worker_id)):
            text = f"worker {worker_id} was stopped or has ended"
            raise LaunchRefused(text, ran=bool(known or told), told=bool(told))
        return LaunchAck(seq=known.seq) if known else None

    def begin(self, assignment: Assignment) -> LaunchAck:
        """A worker runs from here on."""
        self._seq += 1
        row = InventoryRow(
            worker_id=assignment.worker_id,
            job_id=assignment.job_id,
            run_id=assignment.run_id,
            slots=assignment.slots,
            state=WorkerState.RUNNING,
            stamp=assignment.stamp,
        )
        self._workers[assignment.worker_id] = _Tracked(assignment.node_id, row, self._seq)
        return LaunchAck(seq=self._seq)

    def bury(self, worker_id: str, *, ran: bool = False) -> None:
        """This worker never starts (again); ``ran``: it did, and its end was acknowledged."""
        self._tombstones[worker_id] = ran or self._tombstones.get(worker_id, False)
        while len(self._tombstones) > TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def stop(self, worker_id: str) -> AgentStopReply:
        """A worker is asked to end; one that nobody knows never begins."""
        self._seq += 1
        known = self._workers.get(worker_id)
        if known is None:
            self.bury(worker_id)
            told = self._tombstones[worker_id]
            return AgentStopReply(state="ended" if told else "unknown", told=told, seq=self._seq)
        if not self.is_live(worker_id):
            return AgentStopReply(state="ended", seq=self._seq)
        known.row = msgspec.structs.replace(known.row, state=WorkerState.STOPPING)
        return AgentStopReply(state="stopping", seq=self._seq)

    def end(
        self,
        worker_id: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        reason: str,
    ) -> None:
        """A worker has ended: reported until it is acknowledged. Only the first end counts."""
        known = self._workers.get(worker_id)
        if known is None or not self.is_live(worker_id):
            return
        self._seq += 1
        good = exit_code == 0 or known.row.state is WorkerState.STOPPING
        known.row = msgspec.structs.replace(
            known.row,
            state=WorkerState.FINISHED if good else WorkerState.FAILED,
            exit_code=exit_code,
            signal=signal,
            reason=reason,
        )
        self._ends.append(report_of(known.row, known.node_id))
        self._news.set()

    def is_live(self, worker_id: str) -> bool:
        """Whether it was begun and has not ended."""
        known = self._workers.get(worker_id)
        return known is not None and known.row.state in (WorkerState.RUNNING, WorkerState.STOPPING)

    def forget(self, node_id: str, worker_id: str) -> None:
        """The end of a worker on this node is in the log: a tombstone is all that stays."""
        known = self._workers.get(worker_id)
        if known is None or known.node_id == node_id:
            self._workers.pop(worker_id, None)
            self.bury(worker_id, ran=True)

    def inventory(self) -> InventoryReply:
        """All that are live, and ends not acknowledged yet."""
        self._seq += 1
        return InventoryReply(
            incarnation=self.incarnation,
            seq=self._seq,
            epoch=self._epoch,
            workers=[known.row for known in self._workers.values()],
        )

    async def reports(self) -> AsyncIterator[WorkerFinishedReq]:
        """Ends as they come, until ``close``."""
        while not self._closed:
            while self._ends:
                yield self._ends.popleft()
            self._news.clear()
            if not self._closed:
                await self._news.wait()

    def close(self) -> None:
        """No more reports."""
        self._closed = True
        self._news.set()
