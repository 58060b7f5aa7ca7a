"""The auditor's own accounts: who lives where with how many slots, from facts alone.

What lives here: plain bookkeeping, deliberately not the ledger's. What may not: judging
(``events.audit``), and any use of ``events.ledger`` or its entities.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field

from events import facts as f


class Account(Struct, kw_only=True, gc=False):
    """One worker as the facts tell of it. ``serving``: neither lost, nor on its way out, nor
    gone. ``ran``: it was launched, or ended after it ran."""

    worker_id: str
    job_id: str
    run_id: int
    node_id: str
    slots: int
    serving: bool = True
    gone: bool = False
    ran: bool = False
    unwanted: bool = False


class RunAccount(Struct, kw_only=True, gc=False):
    """One run. ``slots``: as asked; ``launched``: those of the workers that came to run and that
    nobody stopped; ``alive``: how many workers are not gone."""

    slots: int = 0
    command_id: str = ""
    launched: int = 0
    alive: int = 0
    workers: list[Account] = field(default_factory=list)

    def live(self) -> list[Account]:
        return [worker for worker in self.workers if not worker.gone]


class Accounts:
    """Takes fact after fact (``TAKES``). ``touched_nodes``: those whose slots facts were about
    since somebody cleared it; ``touched_jobs``: those of which they may have put two runs side
    by side. Both in the order of the facts."""

    def __init__(self) -> None:
        self.epoch = 0
        self.workers: dict[str, Account] = {}
        self.pending: dict[str, datetime | None] = {}
        """Commands without an outcome, and when it is due."""
        self.done: set[str] = set()
        self.run_by_command: dict[str, tuple[str, int]] = {}
        self.followers: set[tuple[str, int]] = set()
        """Runs that began by themselves."""
        self.touched_nodes: dict[str, None] = {}
        self.touched_jobs: dict[str, None] = {}
        self._registered: dict[str, int] = {}
        self._expired: set[str] = set()
        self._held: dict[str, int] = {}
        """Slots of the live workers of each node."""
        self._by_node: dict[str, dict[str, Account]] = {}
        """The live workers of each node."""
        self._runs: dict[str, dict[int, RunAccount]] = {}
        self._forgotten: set[str] = set()
        """Workers of runs that were forgotten."""

    # --- reading ------------------------------------------------------------------------

    def free(self, node_id: str) -> int:
        """Registered slots minus those of live workers; never below 0."""
        free = self._registered.get(node_id, 0) - self._held.get(node_id, 0)
        return free if free > 0 else 0

    def knew(self, worker_id: str) -> bool:
        """Whether it was assigned before, perhaps long ago."""
        return worker_id in self.workers or worker_id in self._forgotten

    def answers(self, node_id: str) -> bool:
        return node_id in self._registered and node_id not in self._expired

    def run(self, job_id: str, run_id: int) -> RunAccount:
        """An empty one where nobody spoke of it."""
        return self._runs.get(job_id, {}).get(run_id) or RunAccount()

    def side_by_side(self, job_id: str) -> list[int]:
        """Runs with workers on nodes that answer, those on their way out left aside; empty
        where no more than one run has live workers."""
        runs = self._runs.get(job_id, {})
        if len(runs) < 2 or sum(run.alive > 0 for run in runs.values()) < 2:
            return []
        return sorted(run_id for run_id, run in runs.items() if self._serves(run))

    def _serves(self, run: RunAccount) -> bool:
        return any(worker.serving and self.answers(worker.node_id) for worker in run.workers)

    def beside(self, job_id: str, run_id: int) -> list[Account]:
        """Workers of other runs of a job that are not gone."""
        runs = self._runs.get(job_id, {})
        return [w for other, run in runs.items() if other != run_id for w in run.live()]

    # --- taking facts -------------------------------------------------------------------

    def _leader_started(self, fact: f.LeaderStarted) -> None:
        self.epoch = max(fact.epoch, self.epoch)

    def _command_taken(self, fact: f.CommandTaken) -> None:
        self.pending[fact.command_id] = fact.deadline

    def _command_done(self, fact: f.CommandDone) -> None:
        self.pending.pop(fact.command_id, None)
        self.done.add(fact.command_id)
        self.run_by_command.pop(fact.command_id, None)

    def _commands_forgotten(self, fact: f.CommandForgotten) -> None:
        self.done.difference_update(fact.command_ids)

    def _node_registered(self, fact: f.NodeRegistered) -> None:
        self._registered[fact.node_id] = fact.task_slots
        self._touch_node(fact.node_id)

    def _node_expired(self, fact: f.NodeExpired) -> None:
        self._expired.add(fact.node_id)
        self.touched_nodes[fact.node_id] = None

    def _node_returned(self, fact: f.NodeReturned) -> None:
        self._expired.discard(fact.node_id)
        self._touch_node(fact.node_id)

    def _node_forgotten(self, fact: f.NodeForgotten) -> None:
        self._registered.pop(fact.node_id, None)
        self._expired.discard(fact.node_id)
        self.touched_nodes[fact.node_id] = None

    def _touch_node(self, node_id: str) -> None:
        self.touched_nodes[node_id] = None
        for worker in self._by_node.get(node_id, {}).values():
            self.touched_jobs[worker.job_id] = None

    def _run_created(self, fact: f.RunCreated) -> None:
        if fact.restart_of is not None:
            self.followers.add((fact.job_id, fact.run_id))
        if fact.command_id:
            self.run_by_command[fact.command_id] = (fact.job_id, fact.run_id)
        runs = self._runs.setdefault(fact.job_id, {})
        runs[fact.run_id] = RunAccount(slots=fact.slots, command_id=fact.command_id)

    def _run_placed(self, fact: f.RunPlaced) -> None:
        if fact.due is None:
            return
        command_id = self.run(fact.job_id, fact.run_id).command_id
        if command_id in self.pending:
            self.pending[command_id] = fact.due

    def _run_forgotten(self, fact: f.RunForgotten) -> None:
        run = self._runs.get(fact.job_id, {}).pop(fact.run_id, None)
        if run is not None:
            self._forget(fact.job_id, fact.run_id, run)

    def _job_forgotten(self, fact: f.JobForgotten) -> None:
        for run_id, run in self._runs.pop(fact.job_id, {}).items():
            self._forget(fact.job_id, run_id, run)

    def _forget(self, job_id: str, run_id: int, run: RunAccount) -> None:
        self.followers.discard((job_id, run_id))
        for worker in run.workers:
            self.workers.pop(worker.worker_id, None)
            self._forgotten.add(worker.worker_id)

    def _worker_assigned(self, fact: f.WorkerAssigned | f.WorkerAdopted) -> None:
        worker_id, job_id, run_id, node_id = fact.worker_id, fact.job_id, fact.run_id, fact.node_id
        worker = Account(
            worker_id=worker_id, job_id=job_id, run_id=run_id, node_id=node_id, slots=fact.slots
        )
        self.workers[worker_id] = worker
        runs = self._runs.setdefault(job_id, {})
        run = runs.get(run_id)
        if run is None:  # nobody created it, which folding notices
            run = runs[run_id] = RunAccount()
        run.workers.append(worker)
        run.alive += 1
        self._by_node.setdefault(node_id, {})[worker_id] = worker
        self._held[node_id] = self._held.get(node_id, 0) + worker.slots
        self.touched_nodes[node_id] = None
        if len(runs) > 1:
            self.touched_jobs[job_id] = None

    def _run_adopted(self, fact: f.RunAdopted) -> None:
        self._runs.setdefault(fact.job_id, {})[fact.run_id] = RunAccount(slots=fact.slots)

    def _worker_adopted(self, fact: f.WorkerAdopted) -> None:
        self._worker_assigned(fact)
        self.workers[fact.worker_id].ran = True

    def _worker(self, worker_id: str) -> Account | None:
        """What is gone, or was never there, does not come to life by being spoken of."""
        worker = self.workers.get(worker_id)
        return None if worker is None or worker.gone else worker

    def _count(self, worker: Account, *, ran: bool, unwanted: bool) -> None:
        """Notes whether it counts among its run's launched."""
        counts, counted = ran and not unwanted, worker.ran and not worker.unwanted
        worker.ran, worker.unwanted = ran, unwanted
        if counts is not counted:
            run = self.run(worker.job_id, worker.run_id)
            run.launched += worker.slots if counts else -worker.slots

    def _worker_launched(self, fact: f.WorkerLaunched) -> None:
        if worker := self._worker(fact.worker_id):
            self._count(worker, ran=True, unwanted=worker.unwanted)

    def _worker_stopping(self, fact: f.WorkerStopping) -> None:
        if worker := self._worker(fact.worker_id):
            self._count(worker, ran=worker.ran, unwanted=True)
            worker.serving = False
            self.touched_nodes[worker.node_id] = None

    def _worker_lost(self, fact: f.WorkerLost) -> None:
        if worker := self._worker(fact.worker_id):
            worker.serving = False
            self.touched_nodes[worker.node_id] = None

    def _worker_returned(self, fact: f.WorkerReturned) -> None:
        if worker := self._worker(fact.worker_id):
            self._count(worker, ran=True, unwanted=worker.unwanted)
            worker.serving = True
            self.touched_nodes[worker.node_id] = None
            self.touched_jobs[worker.job_id] = None

    def _worker_ended(self, fact: f.WorkerEnded) -> None:
        if worker := self._worker(fact.worker_id):
            self._count(worker, ran=fact.launched, unwanted=worker.unwanted)
            worker.serving, worker.gone = False, True
            del self._by_node[worker.node_id][worker.worker_id]
            self._held[worker.node_id] -= worker.slots
            self.touched_nodes[worker.node_id] = None
            self.run(worker.job_id, worker.run_id).alive -= 1


TAKES: Final[dict[type, Callable[[Accounts, Any], None]]] = {
    f.LeaderStarted: Accounts._leader_started,
    f.CommandTaken: Accounts._command_taken,
    f.CommandDone: Accounts._command_done,
    f.CommandForgotten: Accounts._commands_forgotten,
    f.NodeRegistered: Accounts._node_registered,
    f.NodeExpired: Accounts._node_expired,
    f.NodeReturned: Accounts._node_returned,
    f.NodeForgotten: Accounts._node_forgotten,
    f.RunCreated: Accounts._run_created,
    f.RunPlaced: Accounts._run_placed,
    f.RunAdopted: Accounts._run_adopted,
    f.WorkerAdopted: Accounts._worker_adopted,
    f.RunForgotten: Accounts._run_forgotten,
    f.JobForgotten: Accounts._job_forgotten,
    f.WorkerAssigned: Accounts._worker_assigned,
    f.WorkerLaunched: Accounts._worker_launched,
    f.WorkerStopping: Accounts._worker_stopping,
    f.WorkerLost: Accounts._worker_lost,
    f.WorkerReturned: Accounts._worker_returned,
    f.WorkerEnded: Accounts._worker_ended,
}
"""Facts that change no account are not in it."""
