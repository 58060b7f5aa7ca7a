"""The auditor's own accounts: who lives where with how many slots, from facts alone.

What lives here: plain bookkeeping, deliberately not the ledger's. What may not: judging
(``events.audit``), and any use of ``events.ledger`` or its entities.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from events import facts as f


class Phase(StrEnum):
    """``leaving``: it was decided to stop it."""

    SERVING = "serving"
    LOST = "lost"
    LEAVING = "leaving"
    GONE = "gone"


class Account(Struct, kw_only=True):
    """One worker as the facts tell of it. ``ran``: it was launched, or ended after it ran."""

    worker_id: str
    job_id: str
    run_id: int
    node_id: str
    slots: int
    phase: Phase = Phase.SERVING
    ran: bool = False
    unwanted: bool = False


class Accounts:
    """Takes fact after fact. ``touched_*``: what the record in hand was about."""

    def __init__(self) -> None:
        self.epoch = 0
        self.workers: dict[str, Account] = {}
        self.seen: set[str] = set()
        self.pending: dict[str, datetime | None] = {}
        """Commands without an outcome, and when it is due."""
        self.done: set[str] = set()
        self.run_by_command: dict[str, tuple[str, int]] = {}
        self.run_slots: dict[tuple[str, int], int] = {}
        self._command_of: dict[tuple[str, int], str] = {}
        self.touched_nodes: set[str] = set()
        self.touched_jobs: set[str] = set()
        self._registered: dict[str, int] = {}
        self._expired: set[str] = set()
        self._by_job: dict[str, dict[str, Account]] = {}
        self._by_node: dict[str, dict[str, Account]] = {}

    def begin_record(self) -> None:
        self.touched_nodes.clear()
        self.touched_jobs.clear()

    # --- reading ------------------------------------------------------------------------

    def free(self, node_id: str) -> int:
        """Registered slots minus those of live workers, counted anew; never below 0."""
        held = sum(worker.slots for worker in self._by_node.get(node_id, {}).values())
        return max(0, self._registered.get(node_id, 0) - held)

    def answers(self, node_id: str) -> bool:
        return node_id in self._registered and node_id not in self._expired

    def live_of(self, job_id: str, run_id: int) -> list[Account]:
        return [
            worker
            for worker in self._by_job.get(job_id, {}).values()
            if worker.run_id == run_id and worker.phase is not Phase.GONE
        ]

    def runs_alive(self, job_id: str) -> set[int]:
        """Runs with workers on nodes that answer, those on their way out left aside."""
        return {
            worker.run_id
            for worker in self._by_job.get(job_id, {}).values()
            if worker.phase is Phase.SERVING and self.answers(worker.node_id)
        }

    def launched_slots(self, job_id: str, run_id: int) -> int:
        """Slots of a run's workers that came to run and that nobody stopped."""
        return sum(
            worker.slots
            for worker in self._by_job.get(job_id, {}).values()
            if worker.run_id == run_id and worker.ran and not worker.unwanted
        )

    # --- taking facts -------------------------------------------------------------------

    def take(self, fact: f.AnyFact) -> None:
        match fact:
            case f.CommandTaken() | f.CommandDone() | f.CommandForgotten():
                self._take_command(fact)
            case f.NodeRegistered() | f.NodeExpired() | f.NodeReturned() | f.NodeForgotten():
                self._take_node(fact)
            case f.WorkerAssigned():
                self._assign(fact)
            case f.RunCreated():
                self.run_by_command[fact.command_id] = (fact.job_id, fact.run_id)
                self.run_slots[fact.job_id, fact.run_id] = fact.slots
                self._command_of[fact.job_id, fact.run_id] = fact.command_id
            case f.RunPlaced():
                command_id = self._command_of.pop((fact.job_id, fact.run_id), "")
                if fact.due is not None and command_id in self.pending:
                    self.pending[command_id] = fact.due
            case f.RunForgotten():
                self._forget(fact.job_id, fact.run_id)
            case f.JobForgotten():
                for run_id in {w.run_id for w in self._by_job.get(fact.job_id, {}).values()}:
                    self._forget(fact.job_id, run_id)
            case (
                f.WorkerLaunched()
                | f.WorkerStopping()
                | f.WorkerLost()
                | f.WorkerReturned()
                | f.WorkerEnded()
            ):
                worker = self.workers.get(fact.worker_id)
                if worker is not None:
                    self._move(worker, fact)
            case _:
                pass

    def _take_command(self, fact: f.CommandTaken | f.CommandDone | f.CommandForgotten) -> None:
        match fact:
            case f.CommandTaken():
                self.pending[fact.command_id] = fact.deadline
            case f.CommandDone():
                self.pending.pop(fact.command_id, None)
                self.done.add(fact.command_id)
                self.run_by_command.pop(fact.command_id, None)
            case f.CommandForgotten():
                self.done.difference_update(fact.command_ids)

    def _take_node(
        self, fact: f.NodeRegistered | f.NodeExpired | f.NodeReturned | f.NodeForgotten
    ) -> None:
        match fact:
            case f.NodeRegistered():
                self._registered[fact.node_id] = fact.task_slots
            case f.NodeExpired():
                self._expired.add(fact.node_id)
            case f.NodeReturned():
                self._expired.discard(fact.node_id)
            case f.NodeForgotten():
                self._registered.pop(fact.node_id, None)
                self._expired.discard(fact.node_id)
        self.touched_nodes.add(fact.node_id)
        self.touched_jobs |= {w.job_id for w in self._by_node.get(fact.node_id, {}).values()}

    def _assign(self, fact: f.WorkerAssigned) -> None:
        worker = Account(
            worker_id=fact.worker_id,
            job_id=fact.job_id,
            run_id=fact.run_id,
            node_id=fact.node_id,
            slots=fact.slots,
        )
        self.seen.add(worker.worker_id)
        self.workers[worker.worker_id] = worker
        self._by_job.setdefault(worker.job_id, {})[worker.worker_id] = worker
        self._by_node.setdefault(worker.node_id, {})[worker.worker_id] = worker
        self._touch(worker)

    def _move(
        self,
        worker: Account,
        fact: f.WorkerLaunched | f.WorkerStopping | f.WorkerLost | f.WorkerReturned | f.WorkerEnded,
    ) -> None:
        match fact:
            case f.WorkerLaunched():
                worker.ran = True
            case f.WorkerReturned():
                worker.ran, worker.phase = True, Phase.SERVING
            case f.WorkerStopping():
                worker.unwanted, worker.phase = True, Phase.LEAVING
            case f.WorkerLost():
                worker.phase = Phase.LOST
            case f.WorkerEnded():
                worker.ran, worker.phase = fact.launched, Phase.GONE
                self._by_node.get(worker.node_id, {}).pop(worker.worker_id, None)
        self._touch(worker)

    def _touch(self, worker: Account) -> None:
        self.touched_nodes.add(worker.node_id)
        self.touched_jobs.add(worker.job_id)

    def _forget(self, job_id: str, run_id: int) -> None:
        self.run_slots.pop((job_id, run_id), None)
        self._command_of.pop((job_id, run_id), None)
        workers = self._by_job.get(job_id, {})
        for worker in [w for w in workers.values() if w.run_id == run_id]:
            del workers[worker.worker_id], self.workers[worker.worker_id]
