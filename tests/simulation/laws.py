"""The laws, checked after every step: over the log as the server stores it, and against the
process tables of all machines.

What lives here: what must hold at every moment. What may not: what must hold when all is
quiet (``quiet``), and what happens (``world``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from events.audit import Auditor
from events.codec import error_from_body
from events.facts import (
    CommandDone,
    CommandTaken,
    LeaderStarted,
    NodeExpired,
    Record,
    WorkerEnded,
)
from events.ids import Position
from events.ledger import Ledger
from events.log import decode_record
from events.states import WorkerState
from tests.simulation.loop import Proc
from tests.simulation.losing import Doubts
from tests.simulation.machine import Machine, Running
from tests.simulation.streams import Stored
from tests.simulation.wire import Pub

TIME_SLACK_S: Final = 15.0
"""A first record may be long on its way; steps of a clock are larger than this."""

HEARD_SLACK_S: Final = 2.0
HEARD_KEPT: Final = 50
UNDECIDED: Final = frozenset({"not_leader", "invalid", "too_large", "overloaded", "log_full"})
"""Codes of answers that say that a command was not accepted, or not by this controller."""


class Broken(Exception):
    """A law does not hold."""


class _Beat(Struct):
    incarnation: str = ""


class _Order(Struct):
    epoch: int = 0
    worker_id: str = ""


class _Asked(Struct, frozen=True):
    command_id: str
    wait_s: float


class _Question(Struct):
    command_id: str = ""
    wait_s: float = 30.0


class Clock(Struct, frozen=True):
    """When a leader's first record was written: by its own time, and in truth."""

    epoch: int
    at: datetime
    now: float


class Laws:
    """``steps`` counts what was checked; the first broken law is kept in ``broken``."""

    def __init__(self, now: Callable[[], float], root: str, expiry_s: float) -> None:
        self.steps = 0
        self.broken = ""
        self.auditor = Auditor(snapshot_every=200)
        self.records: list[Record] = []
        self.taken: set[str] = set()
        self.outcomes: dict[str, CommandDone] = {}
        self.doubts = Doubts()
        self.unwatched: set[str] = set()
        """Nodes whose supervisor was frozen or killed in this story."""
        self.machines: Iterable[Machine] = ()
        self.exits: dict[str, int] = {}
        """Codes of workers that ended by themselves, where a supervisor could take them."""
        self._now = now
        self._expiry_s = expiry_s
        self._root = root
        self._log = f"{root}.eventlog"
        self._asked: dict[str, _Asked] = {}
        self._spawned: dict[str, str] = {}
        self._epoch_of: dict[str, int] = {}
        self._clock_of: dict[str, Clock] = {}
        self._heard: dict[str, deque[float]] = {}
        self._last_append: dict[str, bytes] = {}

    @property
    def ledger(self) -> Ledger:
        return self.auditor.ledger

    @property
    def epoch(self) -> int:
        """Of the last leader that the log knows."""
        return self.ledger.state.epoch

    def say(self, sentence: str) -> None:
        """A law is broken. The first one is what is told; the story ends there."""
        if not self.broken:
            self.broken = sentence

    # --- the log ------------------------------------------------------------------------

    def logged(self, stored: Stored) -> None:
        """The log's stream has a new message."""
        begin = len(self.records)
        if stored.headers.get("Slotbus-Position") != str(begin + 1):
            self.say(f"message {stored.seq} of the log says it begins elsewhere than {begin + 1}")
        for number, line in enumerate(stored.data.split(b"\n"), begin + 1):
            position = Position(number)
            record = decode_record(line, position)
            self.records.append(record)
            for violation in self.auditor.observe(position, record):
                self.say(f"law {violation.law} at record {position}: {violation.sentence}")
            self._take(record)
        self.check()

    def _check_end(self, fact: WorkerEnded) -> None:
        """What is known of an end is true, and is not lost on the way."""
        code = self.exits.get(fact.worker_id)
        if self.doubts.any or not fact.launched:
            return  # told in what was lost; or an order was repeated after a short life
        if code is not None and fact.exit_code != code:
            self.say(
                f"worker {fact.worker_id} ended with code {code}, and the log says "
                f"{fact.exit_code} ({fact.reason})"
            )

    def _note(self, record: Record) -> None:
        for fact in record.events:
            if isinstance(fact, CommandTaken):
                self.taken.add(fact.command_id)
            if isinstance(fact, CommandDone):
                self.outcomes[fact.command_id] = fact

    def _take(self, record: Record) -> None:
        self._note(record)
        for fact in record.events:
            if isinstance(fact, CommandDone) and not fact.ok:
                self._check_failed(fact)
            if isinstance(fact, WorkerEnded):
                self._check_end(fact)

    def _check_failed(self, fact: CommandDone) -> None:
        """Law 6 in the process tables: what a failed start leaves behind."""
        error = fact.reply.get("error", {}) if isinstance(fact.reply, dict) else {}
        unconfirmed = error.get("unconfirmed", []) if isinstance(error, dict) else []
        for machine, process in self.processes():
            worker = self.ledger.workers.get(process.worker_id)
            if worker is None or worker.worker_id in unconfirmed or self.doubts.any:
                continue
            run = self.ledger.run_of(worker)
            if run.command_id == fact.command_id and self.answers(machine.node_id):
                self.say(
                    f"law 6: start {fact.command_id} failed, and its worker "
                    f"{process.worker_id} lives on {machine.node_id}, which answers"
                )

    def lost(self, kept: int) -> None:
        """The server has lost what the log had after so many records."""
        whole, self.records = self.records, []
        self.doubts.add(whole[kept:])
        self.auditor = Auditor(snapshot_every=200)
        self.taken.clear()
        self.outcomes.clear()
        for position, record in enumerate(whole[:kept], 1):
            self.records.append(record)
            self.auditor.observe(Position(position), record)
            self._note(record)

    # --- what controllers say -----------------------------------------------------------

    def sent(self, proc: Proc, subject: str, data: bytes) -> None:
        """A process writes a message to its connection."""
        self.steps += 1
        if subject == self._log:
            self._appending(proc, data)
        elif subject in self._asked:
            self._answering(proc, self._asked[subject], data)
        elif subject.startswith(f"{self._root}.agent.") and subject.endswith((".start", ".stop")):
            order = msgspec.json.decode(data, type=_Order)
            known = self.ledger.workers.get(order.worker_id)
            sure = order.worker_id not in self.doubts.workers
            if sure and known is None and subject.endswith(".start"):
                self.say(f"law 5: {proc.name} orders {order.worker_id}, which is not in the log")
            if order.epoch < self.epoch:
                self.say(
                    f"law 5: {proc.name} orders {subject} {order.worker_id} under epoch "
                    f"{order.epoch}, and {self.epoch} leads"
                )

    def _appending(self, proc: Proc, data: bytes) -> None:
        if self._last_append.get(proc.name) == data:
            return  # again
        self._last_append[proc.name] = data
        for line in data.split(b"\n"):
            record = decode_record(line, Position(0))
            self._check_time(proc, record)
            for fact in record.events:
                if isinstance(fact, LeaderStarted):
                    self._epoch_of[proc.name] = fact.epoch
                    self._heard.clear()
                if isinstance(fact, NodeExpired):
                    self._check_expired(proc, fact, record.at)

    def _check_time(self, proc: Proc, record: Record) -> None:
        """A controller's time passes as time does, whatever its wall clock says."""
        now, clock = self._now(), self._clock_of.get(proc.name)
        if clock is None or clock.epoch != record.epoch:
            self._clock_of[proc.name] = Clock(record.epoch, record.at, now)
            return
        ahead = (record.at - clock.at).total_seconds() - (now - clock.now)
        if ahead > 0.0:  # the one before was longer on its way
            self._clock_of[proc.name] = Clock(record.epoch, record.at, now)
        if ahead > TIME_SLACK_S:
            self.say(f"time: {proc.name} says {record.at}, {ahead:.1f} s more than have passed")

    def _check_expired(self, proc: Proc, fact: NodeExpired, at: datetime) -> None:
        """Judged by when it was noticed, which may be some time before it can be stored."""
        clock = self._clock_of[proc.name]
        noticed = clock.now + (at - clock.at).total_seconds()
        heard = [time for time in self._heard.get(fact.node_id, ()) if time <= noticed]
        if not heard or self._epoch_of.get(proc.name, 0) < self.epoch:
            return
        silent_s = noticed - heard[-1]
        if silent_s < self._expiry_s - HEARD_SLACK_S:
            self.say(
                f"{proc.name} declares {fact.node_id} expired, which was heard {silent_s:.1f} s ago"
            )

    def _answering(self, proc: Proc, asked: _Asked, data: bytes) -> None:
        """Law 3: no answer before its outcome is in the log, nor from a leader of the past."""
        command_id = asked.command_id
        if self._epoch_of.get(proc.name, 0) < self.epoch:
            self.say(
                f"{proc.name} of epoch {self._epoch_of.get(proc.name)} answers {command_id}, "
                f"and {self.epoch} leads"
            )
        if command_id in self.doubts.commands:
            return
        error = error_from_body(data)
        outcome = self.outcomes.get(command_id)
        if error is None:
            good = outcome is not None and outcome.ok
            accepted = asked.wait_s <= 0 and command_id in self.taken
            if not good and not accepted:
                self.say(f"law 3: {command_id} is answered, and its outcome is not in the log")
        elif error.code == "internal":
            self.say(f"a fault of slotbus: {error.message}")
        elif error.code == "timeout":
            if command_id not in self.taken:
                self.say(f"law 3: {command_id} is said to go on, and the log does not know it")
        elif error.code not in UNDECIDED and (outcome is None or outcome.ok):
            self.say(f"law 3: {command_id} is refused ({error.code}), and the log does not say so")

    # --- what passes the server ---------------------------------------------------------

    def passed(self, pub: Pub, count: int) -> None:
        self.steps += 1
        if pub.reply and count and pub.subject.startswith(f"{self._root}.cmd."):
            question = msgspec.json.decode(pub.data, type=_Question)
            self._asked[pub.reply] = _Asked(question.command_id, question.wait_s)

    def heard(self, proc: Proc, subject: str, data: bytes) -> None:
        """A message arrived at a process."""
        if not subject.startswith(f"{self._root}.node."):
            return
        node_id, _, kind = subject.removeprefix(f"{self._root}.node.").partition(".")
        node = self.ledger.nodes.get(node_id)
        if kind != "heartbeat" or node is None:
            return
        beat = msgspec.json.decode(data, type=_Beat)
        leads = self._epoch_of.get(proc.name, 0) == self.epoch
        if leads and beat.incarnation == node.incarnation:
            self._heard.setdefault(node_id, deque(maxlen=HEARD_KEPT)).append(self._now())

    # --- machines -----------------------------------------------------------------------

    def obeyed(self, machine: Machine, epoch: int, what: str) -> None:
        """A node took an order."""
        self.steps += 1
        if epoch < machine.epoch:
            self.say(
                f"law 5: {machine.node_id} took {what} under epoch {epoch} after {machine.epoch}"
            )
        machine.epoch = max(machine.epoch, epoch)

    def spawned(self, machine: Machine, process: Running) -> None:
        worker_id = process.worker_id
        before = self._spawned.get(worker_id)
        if before is not None:
            self.say(
                f"law 2: worker {worker_id} is started on {machine.node_id}, and was started "
                f"on {before}"
            )
        self._spawned[worker_id] = machine.node_id
        if worker_id in self.doubts.workers:
            return
        worker = self.ledger.workers.get(worker_id)
        if worker is None:
            self.say(f"law 5: worker {worker_id} is started, and the log has no such decision")
        elif worker.node_id != machine.node_id or worker.slots != process.slots:
            self.say(f"law 5: worker {worker_id} is started otherwise than was decided")
        for other_machine, other in self.processes() if self.answers(machine.node_id) else ():
            sure = other.worker_id not in self.doubts.workers
            if sure and other.job_id == process.job_id and other.run_id != process.run_id:
                self._check_two_runs(other_machine, other, process)
        self._check_replaced(process)
        self.check()

    def _check_replaced(self, process: Running) -> None:
        """A run that follows another by itself begins when that one is provably gone, wherever
        it was, and whether or not its node answers."""
        job = self.ledger.jobs.get(process.job_id)
        begun = [run for run in job.runs if run.run_id == process.run_id] if job else []
        before = begun[0].restart_of if begun else None
        for machine, other in self.processes() if before is not None else ():
            # A process that KILL can't end, and one that nobody watches over, are not promised.
            watched = machine.node_id not in self.unwatched and not other.program.stuck_s
            sure = watched and other.worker_id not in self.doubts.workers
            if sure and (other.job_id, other.run_id) == (process.job_id, before):
                self.say(
                    f"{process.worker_id} replaces run {before} of job {process.job_id}, whose "
                    f"worker {other.worker_id} lives on {machine.node_id}"
                )

    def _check_two_runs(self, machine: Machine, other: Running, process: Running) -> None:
        worker = self.ledger.workers.get(other.worker_id)
        lost = worker is not None and worker.state is WorkerState.LOST
        if self.answers(machine.node_id) and not lost:
            self.say(
                f"law 2: {process.worker_id} of run {process.run_id} of job {process.job_id} is "
                f"started, and {other.worker_id} of run {other.run_id} lives on "
                f"{machine.node_id}, which answers"
            )

    def signalled(self, machine: Machine, process: Running, number: int, asked: bool) -> None:
        """``asked``: somebody wanted the worker stopped, rather than its lease being over."""
        self.steps += 1
        if not process.worker_id:
            self.say(f"law 2: {machine.node_id} sends signal {number} to somebody else's process")
            return
        worker = self.ledger.workers.get(process.worker_id)
        if process.worker_id in self.doubts.workers:
            stopped = process.worker_id in self.doubts.stopping
            if asked and not stopped and (worker is None or not worker.unwanted):
                self.say(f"worker {process.worker_id} is stopped because the log was lost")
            return
        if asked and worker is not None and not worker.gone and not worker.unwanted:
            self.say(
                f"law 5: worker {process.worker_id} is signalled on {machine.node_id}, and "
                "nobody decided that"
            )

    def home(self, worker_id: str) -> str:
        """Where a worker was started."""
        return self._spawned.get(worker_id, "")

    def answers(self, node_id: str) -> bool:
        node = self.ledger.nodes.get(node_id)
        return node is not None and not node.expired

    def processes(self) -> Iterable[tuple[Machine, Running]]:
        for machine in self.machines:
            for process in machine.alive():
                yield machine, process

    def check(self) -> None:
        """The process tables against what the log says."""
        self.steps += 1
        workers = self.ledger.workers
        for machine, process in self.processes():
            worker = workers.get(process.worker_id)
            if process.worker_id in self.doubts.workers:
                continue
            if worker is None:
                self.say(f"{process.worker_id} lives on {machine.node_id}; the log forgot it")
            elif worker.gone:
                self.say(
                    f"law 2: {process.worker_id} lives on {machine.node_id}, and its end is in "
                    "the log"
                )
