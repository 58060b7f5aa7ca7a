"""The auditor: an independent check of the six laws over the records of an event log.

What lives here: its own accounts, kept from the facts alone and compared with the ledger,
and a sentence for every law that is broken. What may not: the ledger's indexes (they are
what is checked), clocks, I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from events import facts as f
from events.accounts import Accounts, Phase
from events.ids import START, Position
from events.ledger import Ledger
from events.states import IllegalTransition

SNAPSHOT_EVERY: Final = 50
"""Records between two comparisons of whole snapshots."""

OVERDUE_SLACK: Final = timedelta(seconds=5)
"""A deadline is looked at by a timer, which may be a little late."""


class Violation(Struct, frozen=True):
    """A law that does not hold at a position of the log, in one sentence; ``facts`` name
    the things involved."""

    law: int
    position: int
    sentence: str
    facts: dict[str, str]


class Auditor:
    """Reads a log from its beginning, record by record. It remembers every worker id."""

    def __init__(self, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self.ledger = Ledger()
        """The plain fold of what was seen."""
        self.position = START
        self._every = snapshot_every
        self._twin = Ledger()
        self._foldable = True
        self._accounts = Accounts()
        self._at = datetime.min.replace(tzinfo=UTC)
        self._found: list[Violation] = []

    def observe(self, position: Position, record: f.Record) -> list[Violation]:
        """The laws that this record, which stands at ``position``, breaks."""
        self._found, self._at = [], record.at
        before, self.position = self.position, position
        if position != before + 1:
            self._broken(4, f"record {position} follows record {before}: some are missing")
        self._check_epoch(record)
        self._accounts.begin_record()
        for fact in record.events:
            self._check_fact(fact)
            self._accounts.take(fact)
        self._fold(record)
        self._check_free()
        self._check_runs()
        return self._found

    def finish(self, now: datetime | None = None) -> list[Violation]:
        """What can only be seen at the end: snapshots, and outcomes overdue at ``now``."""
        self._found = []
        self._compare_folds()
        for command_id, deadline in self._accounts.pending.items():
            if now is not None and deadline is not None and deadline + OVERDUE_SLACK < now:
                text = f"command {command_id} has no outcome, which was due at {deadline}"
                self._broken(3, text, command_id=command_id)
        return self._found

    def _broken(self, law: int, sentence: str, **facts: str) -> None:
        self._found.append(Violation(law, self.position, sentence, facts))

    # --- law by law ---------------------------------------------------------------------

    def _check_epoch(self, record: f.Record) -> None:
        for fact in record.events:
            if isinstance(fact, f.LeaderStarted):
                if fact.epoch <= self._accounts.epoch:
                    text = f"epoch {fact.epoch} follows epoch {self._accounts.epoch}"
                    self._broken(5, text, epoch=str(fact.epoch))
                self._accounts.epoch = max(fact.epoch, self._accounts.epoch)
        if record.epoch != self._accounts.epoch:
            text = f"written under epoch {record.epoch} while {self._accounts.epoch} leads"
            self._broken(5, text, epoch=str(record.epoch))

    def _check_fact(self, fact: f.AnyFact) -> None:
        match fact:
            case f.WorkerAssigned():
                self._check_assigned(fact)
            case (
                f.WorkerLaunched()
                | f.WorkerStopping()
                | f.WorkerLost()
                | f.WorkerReturned()
                | f.WorkerEnded()
            ):
                self._check_decided(fact.worker_id, str(type(fact).__struct_config__.tag))
            case f.CommandTaken() | f.CommandDone() | f.CommandForgotten():
                self._check_command(fact)
            case f.RunRunning():
                self._check_complete(fact.job_id, fact.run_id)
            case _:
                pass

    def _check_assigned(self, fact: f.WorkerAssigned) -> None:
        free = self._accounts.free(fact.node_id)
        who = {"worker_id": fact.worker_id, "node_id": fact.node_id}
        if fact.slots > free:
            text = f"worker {fact.worker_id} takes {fact.slots} slots of node {fact.node_id}"
            self._broken(1, f"{text}, which has {free} free", **who)
        if fact.worker_id in self._accounts.seen:
            self._broken(2, f"worker id {fact.worker_id} is assigned a second time", **who)

    def _check_decided(self, worker_id: str, happening: str) -> None:
        worker = self._accounts.workers.get(worker_id)
        if worker is None:
            text = f"{happening} for worker {worker_id}, which nobody decided"
            self._broken(5, text, worker_id=worker_id)
        elif worker.phase is Phase.GONE:
            text = f"{happening} for worker {worker_id} after its end"
            self._broken(5, text, worker_id=worker_id)

    def _check_command(self, fact: f.CommandTaken | f.CommandDone | f.CommandForgotten) -> None:
        accounts = self._accounts
        match fact:
            case f.CommandTaken(command_id=command_id):
                if command_id in accounts.pending or command_id in accounts.done:
                    text = f"command {command_id} was taken a second time"
                    self._broken(3, text, command_id=command_id)
            case f.CommandForgotten(command_ids=command_ids):
                for command_id in set(command_ids) & set(accounts.pending):
                    text = f"command {command_id} was forgotten without an outcome"
                    self._broken(3, text, command_id=command_id)
            case f.CommandDone(command_id=command_id):
                if command_id not in accounts.pending:
                    what = "has a second outcome" if command_id in accounts.done else "is unknown"
                    self._broken(3, f"command {command_id} {what}", command_id=command_id)
                self._check_start(fact)

    def _check_start(self, fact: f.CommandDone) -> None:
        """Law 6, at the outcome of a start that made a run. Workers on nodes that answer may
        be left unconfirmed only when the outcome could not wait any longer."""
        run = self._accounts.run_by_command.get(fact.command_id)
        if run is None:
            return
        job_id, run_id = run
        if fact.ok:
            self._check_complete(job_id, run_id)
            return
        deadline = self._accounts.pending.get(fact.command_id)
        overdue = deadline is not None and self._at >= deadline
        unconfirmed = _unconfirmed(fact.reply) if overdue else set()
        for worker in self._accounts.live_of(job_id, run_id):
            if self._accounts.answers(worker.node_id) and worker.worker_id not in unconfirmed:
                text = (
                    f"start {fact.command_id} failed while its worker {worker.worker_id} lives "
                    f"on node {worker.node_id}, which answers"
                )
                self._broken(6, text, command_id=fact.command_id, worker_id=worker.worker_id)

    def _check_complete(self, job_id: str, run_id: int) -> None:
        asked = self._accounts.run_slots.get((job_id, run_id), 0)
        launched = self._accounts.launched_slots(job_id, run_id)
        if launched != asked:
            text = f"run {run_id} of job {job_id} is said to run with {launched} of {asked} slots"
            self._broken(6, text, job_id=job_id, run_id=str(run_id))

    def _check_free(self) -> None:
        if not self._foldable:
            return
        for node_id in sorted(self._accounts.touched_nodes):
            ours, theirs = self._accounts.free(node_id), self.ledger.free_slots(node_id)
            if ours != theirs:
                text = f"node {node_id} has {ours} free slots, the ledger says {theirs}"
                self._broken(1, text, node_id=node_id)

    def _check_runs(self) -> None:
        for job_id in sorted(self._accounts.touched_jobs):
            runs = sorted(self._accounts.runs_alive(job_id))
            if len(runs) > 1:
                text = f"job {job_id} has live workers of runs {runs} on nodes that answer"
                self._broken(2, text, job_id=job_id)

    # --- law 4 --------------------------------------------------------------------------

    def _fold(self, record: f.Record) -> None:
        """Folds the record, and what its bytes say into the twin, which is restored from a
        snapshot now and then: both must stay the same."""
        if not self._foldable:
            return
        copy = msgspec.json.decode(msgspec.json.encode(record), type=f.Record)
        try:
            self.ledger.apply(record)
            self._twin.apply(copy)
        except IllegalTransition as error:
            self._foldable = False
            self._broken(4, f"the record can't be folded: {error}")
            return
        if self.position % self._every == 0:
            self._compare_folds()
            self._twin = Ledger.restore(self.ledger.snapshot())

    def _compare_folds(self) -> None:
        if self._foldable and self.ledger.snapshot() != self._twin.snapshot():
            self._broken(4, "a snapshot and its tail do not equal the whole log")


def audit(records: Iterable[f.Record], now: datetime | None = None) -> list[Violation]:
    """The laws that a whole log breaks; ``now``: whether outcomes are overdue, too."""
    auditor, found = Auditor(), []
    for position, record in enumerate(records, start=1):
        found += auditor.observe(Position(position), record)
    return found + auditor.finish(now)


def _unconfirmed(reply: object) -> set[str]:
    error = reply.get("error") if isinstance(reply, dict) else None
    named = error.get("unconfirmed") if isinstance(error, dict) else None
    return set(named) if isinstance(named, list) else set()
