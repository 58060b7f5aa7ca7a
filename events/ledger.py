"""The ledger: what is true, folded from the event log and from nothing else.

What lives here: the questions that decisions ask of it, such as "how many slots are free",
and snapshots. What may not: clocks, decisions, what was merely heard (``events.pulse``), and
what each fact changes (``events.folding``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from events.entities import LedgerState, Run, Worker
from events.folding import Folding
from events.states import WorkerState


def live_digest(worker_ids: list[str]) -> str:
    """What a heartbeat carries about the workers that run or are being stopped: the hex
    of the first 8 bytes of SHA-256 over their sorted ids, joined by line feeds."""
    return hashlib.sha256("\n".join(sorted(worker_ids)).encode()).hexdigest()[:16]


class Ledger(Folding):
    """Folds records. The same records give the same ``snapshot()``, byte for byte."""

    def live_on(self, node_id: str) -> list[Worker]:
        """Live workers of a node, in the order of their assignment."""
        return list(self.live_by_node.get(node_id, {}).values())

    def live_of(self, job_id: str, run_id: int | None = None) -> list[Worker]:
        """Live workers of a job, of one run or of all, in the order of assignment."""
        return [
            self.workers[worker_id]
            for run in self.runs_of(job_id, run_id)
            for worker_id in run.workers
            if not self.workers[worker_id].gone
        ]

    def live_count(self, job_id: str) -> int:
        """How many live workers a job has, in all its runs."""
        return sum(self.tally(job_id, run.run_id).live for run in self.runs_of(job_id))

    def runs_of(self, job_id: str, run_id: int | None = None) -> Iterator[Run]:
        """The remembered runs of a job, or the one asked for, oldest first."""
        job = self.jobs.get(job_id)
        if job is None:
            return iter(())
        if run_id is None:
            return iter(list(job.runs))
        return iter([run for run in job.runs if run.run_id == run_id])

    def digest_of(self, node_id: str) -> str:
        """``live_digest`` as the node should report it."""
        digest = self._digests.get(node_id)
        if digest is None:
            digest = live_digest(
                [
                    w.worker_id
                    for w in self.live_by_node.get(node_id, {}).values()
                    if w.state is not WorkerState.ASSIGNED
                ]
                + list(self.doubted.get(node_id, ()))
            )
            self._digests[node_id] = digest
        return digest

    def defines(self, run: Run) -> bool:
        """Whether the run's program and environment are still those it was started with."""
        if run.adopted:
            return False
        newest = self.jobs[run.job_id].current is run
        return not run.ended or (newest and run.job_id in self.state.definitions)

    def wrote(self, epoch: int, position: int) -> bool:
        """Whether the log confirms that the leader of ``epoch`` wrote at ``position``."""
        leaderships = self.state.leaderships
        for index, leadership in enumerate(leaderships):
            if leadership.epoch == epoch:
                last = (
                    leaderships[index + 1].start - 1
                    if index + 1 < len(leaderships)
                    else self.position
                )
                return leadership.start <= position <= last
        return False

    def snapshot(self) -> bytes:
        """JSON in the order of happening, which is the log's: the same records give the
        same bytes, and what is restored goes through things in the same order."""
        return msgspec.json.encode(self.state)

    @classmethod
    def restore(cls, snapshot: bytes) -> Ledger:
        """Reads ``snapshot()``. Raises msgspec.ValidationError."""
        return cls(msgspec.json.decode(snapshot, type=LedgerState))

    def become(self, other: Ledger) -> None:
        """Takes over what another one holds, for all who hold this one; the other is done
        with."""
        self.__dict__ = other.__dict__
