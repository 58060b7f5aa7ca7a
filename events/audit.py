"""The auditor: an independent check of the six laws over the records of an event log.

What lives here: its own accounts, kept from the facts alone and compared with the ledger,
and a sentence for every law that is broken. What may not: the ledger's indexes (they are
what is checked), clocks, I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, get_args

import msgspec
from msgspec import Struct

from events import facts as f
from events.accounts import TAKES, Accounts
from events.ids import START, Position
from events.ledger import Ledger
from events.states import IllegalTransition

SNAPSHOT_EVERY: Final = 50
"""Records between two comparisons of whole snapshots."""

LONG: Final = 300
"""Records from which on a log is long."""

REST: Final = 8
"""How many times as far the next twin begins as the last one was compared: a snapshot, what is
restored from it and a comparison take two fifths of the time that all before them took."""

NEVER: Final = 2**63

OVERDUE_SLACK: Final = timedelta(seconds=5)
"""A deadline is looked at by a timer, which may be a little late."""


class Violation(Struct, frozen=True):
    """A law that does not hold at a position of the log, in one sentence; ``facts`` name
    the things involved."""

    law: int
    position: int
    sentence: str
    facts: dict[str, str]


_OfWorker: TypeAlias = (
    f.WorkerLaunched | f.WorkerStopping | f.WorkerLost | f.WorkerReturned | f.WorkerEnded
)


class Auditor:
    """Reads a log from its beginning, record by record. It remembers every worker id.

    A twin folds the same and is compared every ``snapshot_every`` records; 0: never. Else it
    follows a short log all the time, and a long one at ever greater distances, since a snapshot
    takes the longer the more there is in it.
    """

    def __init__(self, snapshot_every: int | None = None) -> None:
        self.ledger = Ledger()
        """The plain fold of what was seen."""
        self.position = START
        self._every = snapshot_every
        self._twin: Ledger | None = None if snapshot_every == 0 else Ledger()
        self._turn = NEVER if snapshot_every == 0 else snapshot_every or SNAPSHOT_EVERY
        """Where the twin is compared, or the next one begins."""
        self._foldable = True
        self.accounts = Accounts()
        """Its own, from the facts alone."""
        self._at = self._led_at = datetime.min.replace(tzinfo=UTC)
        self._found: list[Violation] = []

    def begin_with(self, ledger: Ledger) -> None:
        """Goes on from a ledger, before the first record (``events.auditing``)."""
        self.ledger, self.position = ledger, Position(ledger.position)
        if self._twin is not None:
            self._twin = Ledger.restore(ledger.snapshot())
            self._turn = self.position + (self._every or SNAPSHOT_EVERY)

    def observe(self, position: Position, record: f.Record) -> list[Violation]:
        """The laws that this record, which stands at ``position``, breaks."""
        self._found, self._at = [], record.at
        before, self.position = self.position, position
        if position != before + 1:
            self._broken(4, f"record {position} follows record {before}: some are missing")
        accounts = self.accounts
        for fact in record.events:
            check, take = _STEPS[type(fact)]
            if check is not None:
                check(self, fact)
            if take is not None:
                take(accounts, fact)
        if record.epoch != accounts.epoch:
            text = f"written under epoch {record.epoch} while {accounts.epoch} leads"
            self._broken(5, text, epoch=str(record.epoch))
        self._fold(record)
        if accounts.touched_nodes:
            self._check_free()
        if accounts.touched_jobs:
            self._check_runs()
        return self._found

    def finish(self, now: datetime | None = None) -> list[Violation]:
        """What can only be seen at the end: snapshots, and outcomes overdue at ``now``. While
        nobody led none was due."""
        self._found = []
        self._compare_folds()
        for command_id, deadline in self.accounts.pending.items():
            due = deadline and max(deadline, self._led_at)
            if now is not None and due is not None and due + OVERDUE_SLACK < now:
                text = f"command {command_id} has no outcome, which was due at {deadline}"
                self._broken(3, text, command_id=command_id)
        return self._found

    def _broken(self, law: int, sentence: str, **facts: str) -> None:
        self._found.append(Violation(law, self.position, sentence, facts))

    # --- law by law ---------------------------------------------------------------------

    def _check_leader(self, fact: f.LeaderStarted) -> None:
        self._led_at = self._at
        if fact.epoch <= self.accounts.epoch:
            text = f"epoch {fact.epoch} follows epoch {self.accounts.epoch}"
            self._broken(5, text, epoch=str(fact.epoch))

    def _check_assigned(self, fact: f.WorkerAssigned) -> None:
        free = self.accounts.free(fact.node_id)
        again = self.accounts.knew(fact.worker_id)
        if fact.slots <= free and not again:
            return
        who = {"worker_id": fact.worker_id, "node_id": fact.node_id}
        if fact.slots > free:
            text = f"worker {fact.worker_id} takes {fact.slots} slots of node {fact.node_id}"
            self._broken(1, f"{text}, which has {free} free", **who)
        if again:
            self._broken(2, f"worker id {fact.worker_id} is assigned a second time", **who)

    def _check_alone(self, fact: f.RunPlaced) -> None:
        """What begins by itself begins when every older copy is gone."""
        if (fact.job_id, fact.run_id) not in self.accounts.followers:
            return
        for worker in self.accounts.beside(fact.job_id, fact.run_id):
            text = (
                f"run {fact.run_id} of job {fact.job_id} began by itself while worker "
                f"{worker.worker_id} of run {worker.run_id} may live on node {worker.node_id}"
            )
            self._broken(2, text, job_id=fact.job_id, worker_id=worker.worker_id)

    def _check_decided(self, fact: _OfWorker) -> None:
        worker = self.accounts.workers.get(fact.worker_id)
        if worker is not None and not worker.gone:
            return
        text = f"{fact.__struct_config__.tag} for worker {fact.worker_id}"
        text += ", which nobody decided" if worker is None else " after its end"
        self._broken(5, text, worker_id=fact.worker_id)

    def _check_taken(self, fact: f.CommandTaken) -> None:
        if fact.command_id in self.accounts.pending or fact.command_id in self.accounts.done:
            text = f"command {fact.command_id} was taken a second time"
            self._broken(3, text, command_id=fact.command_id)

    def _check_done(self, fact: f.CommandDone) -> None:
        command_id = fact.command_id
        if command_id not in self.accounts.pending:
            known = command_id in self.accounts.done
            what = "has a second outcome" if known else "is unknown"
            self._broken(3, f"command {command_id} {what}", command_id=command_id)
        self._check_start(fact)

    def _check_forgotten(self, fact: f.CommandForgotten) -> None:
        for command_id in set(fact.command_ids) & set(self.accounts.pending):
            text = f"command {command_id} was forgotten without an outcome"
            self._broken(3, text, command_id=command_id)

    def _check_start(self, fact: f.CommandDone) -> None:
        """Law 6, at the outcome of a start that made a run. Workers on nodes that answer may
        be left unconfirmed only when the outcome could not wait any longer."""
        run = self.accounts.run_by_command.get(fact.command_id)
        if run is None:
            return
        job_id, run_id = run
        if fact.ok:
            self._check_complete(job_id, run_id)
            return
        deadline = self.accounts.pending.get(fact.command_id)
        overdue = deadline is not None and self._at >= deadline
        unconfirmed = _unconfirmed(fact.reply) if overdue else set()
        for worker in self.accounts.run(job_id, run_id).live():
            if self.accounts.answers(worker.node_id) and worker.worker_id not in unconfirmed:
                text = (
                    f"start {fact.command_id} failed while its worker {worker.worker_id} lives "
                    f"on node {worker.node_id}, which answers"
                )
                self._broken(6, text, command_id=fact.command_id, worker_id=worker.worker_id)

    def _check_running(self, fact: f.RunRunning) -> None:
        self._check_complete(fact.job_id, fact.run_id)

    def _check_complete(self, job_id: str, run_id: int) -> None:
        run = self.accounts.run(job_id, run_id)
        if run.launched != run.slots:
            slots = f"{run.launched} of {run.slots} slots"
            text = f"run {run_id} of job {job_id} is said to run with {slots}"
            self._broken(6, text, job_id=job_id, run_id=str(run_id))

    def _check_free(self) -> None:
        touched = self.accounts.touched_nodes
        for node_id in touched if self._foldable else ():
            ours, theirs = self.accounts.free(node_id), self.ledger.free_slots(node_id)
            if ours != theirs:
                text = f"node {node_id} has {ours} free slots, the ledger says {theirs}"
                self._broken(1, text, node_id=node_id)
        touched.clear()

    def _check_runs(self) -> None:
        touched = self.accounts.touched_jobs
        for job_id in touched:
            runs = self.accounts.side_by_side(job_id)
            if len(runs) > 1:
                text = f"job {job_id} has live workers of runs {runs} on nodes that answer"
                self._broken(2, text, job_id=job_id)
        touched.clear()

    # --- law 4 --------------------------------------------------------------------------

    def _fold(self, record: f.Record) -> None:
        """Folds the record, and what its bytes say into a twin, while there is one."""
        if not self._foldable:
            return
        try:
            self.ledger.apply(record)
            if self._twin is not None:
                self._twin.apply(msgspec.json.decode(msgspec.json.encode(record), type=f.Record))
        except IllegalTransition as error:
            self._foldable = False
            self._broken(4, f"the record can't be folded: {error}")
            return
        if self.position >= self._turn:
            self._turn_twin()

    def _turn_twin(self) -> None:
        """Compares the twin, and goes on with one that is restored from a snapshot: at once,
        or in a long log after a rest."""
        self._compare_folds()
        rests = self._twin is not None and self._every is None and self.position >= LONG
        if rests:
            self._twin, self._turn = None, self.position * REST
        else:
            self._twin = Ledger.restore(self.ledger.snapshot())
            self._turn = self.position + (self._every or SNAPSHOT_EVERY)

    def _compare_folds(self) -> None:
        if self._twin is None or not self._foldable:
            return
        if self.ledger.snapshot() != self._twin.snapshot():
            self._broken(4, "a snapshot and its tail do not equal the whole log")


_CHECKS: Final[dict[type, Callable[[Auditor, Any], None]]] = {
    f.LeaderStarted: Auditor._check_leader,
    f.CommandTaken: Auditor._check_taken,
    f.CommandDone: Auditor._check_done,
    f.CommandForgotten: Auditor._check_forgotten,
    f.RunPlaced: Auditor._check_alone,
    f.RunRunning: Auditor._check_running,
    f.WorkerAssigned: Auditor._check_assigned,
    f.WorkerLaunched: Auditor._check_decided,
    f.WorkerStopping: Auditor._check_decided,
    f.WorkerLost: Auditor._check_decided,
    f.WorkerReturned: Auditor._check_decided,
    f.WorkerEnded: Auditor._check_decided,
}
"""Facts that can break no law by themselves are not in it."""

_STEPS: Final = {kind: (_CHECKS.get(kind), TAKES.get(kind)) for kind in get_args(f.AnyFact)}
"""For each fact: what is checked, and what it does to the accounts."""


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
