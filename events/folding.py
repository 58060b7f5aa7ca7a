"""Folding: what each fact changes in the ledger's state and in its indexes.

What lives here: one method a fact, checked against the transition tables, and the indexes
that are kept beside the state. What may not: questions about it (``events.ledger``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from events import facts as f
from events.entities import (
    CommandEntry,
    Drain,
    DrainedRun,
    Job,
    Leadership,
    Node,
    Orphan,
    QueueCursor,
    Run,
    Worker,
)
from events.indexes import Indexes
from events.states import (
    NODE_CORDONED,
    NODE_DRAINING,
    NODE_EXPIRED,
    NODE_READY,
    NODE_TABLE,
    RUN_RUNNING,
    RUN_STARTING,
    RUN_STOPPING,
    RUN_TABLE,
    RUN_WAITING,
    WORKER_ASSIGNED,
    WORKER_LOST,
    WORKER_RUNNING,
    WORKER_STOPPING,
    WORKER_TABLE,
    IllegalTransition,
    NodeState,
    RunState,
    WorkerState,
    step,
)

PAST_INCARNATIONS: Final = 8
REMEMBERED_LEADERSHIPS: Final = 1_000
DEFINITION_BYTES: Final = 16 * 1024 * 1024
"""Programs and environments of ended jobs that are kept for a start from what is remembered,
in bytes of all together; the job that ended first loses its own first."""

NO_PROGRAM: Final = Raw(b"{}")

T = TypeVar("T")


class Folding(Indexes):
    """Changes the state by facts, and the indexes with it."""

    # --- folding ------------------------------------------------------------------------

    def apply(self, record: f.Record) -> None:
        """Folds one record. Raises IllegalTransition for a fact that can't be."""
        at, epoch = record.at, record.epoch
        for fact in record.events:
            try:
                _FOLDS[type(fact)](self, fact, at, epoch)
            except KeyError as error:
                happening = type(fact).__struct_config__.tag
                raise IllegalTransition("it", str(error), "unknown", str(happening)) from error
        self.close_record(at)

    def fold(self, fact: f.AnyFact, at: datetime, epoch: int) -> None:
        """Folds one fact of the record that will stand at ``position + 1``."""
        _FOLDS[type(fact)](self, fact, at, epoch)

    def close_record(self, at: datetime) -> None:
        """All facts of a record are folded: it has its position now."""
        self.state.position = self._following
        self._following += 1
        self.state.at = at

    def _leader_started(self, fact: f.LeaderStarted, at: datetime, epoch: int) -> None:
        state = self.state
        if fact.epoch <= state.epoch:
            raise IllegalTransition("leader", str(fact.epoch), f"at {state.epoch}", "start")
        state.epoch, state.cluster, state.scheduler = fact.epoch, fact.cluster, fact.scheduler
        state.leaderships.append(Leadership(epoch=fact.epoch, start=state.position + 1))
        del state.leaderships[:-REMEMBERED_LEADERSHIPS]
        for node in self.nodes.values():
            if node.last_seen is not None:
                self._heard(node)
                node.last_seen = max(node.last_seen, at)
                self._silent(node)

    def _command_taken(self, fact: f.CommandTaken, at: datetime, epoch: int) -> None:
        if fact.command_id in self.commands:
            raise IllegalTransition("command", fact.command_id, "known", "command_taken")
        entry = CommandEntry(
            command_id=fact.command_id,
            kind=fact.kind,
            digest=fact.digest,
            taken_at=at,
            job_id=fact.job_id,
            run_id=fact.run_id,
            node_id=fact.node_id,
            workers=fact.workers,
            deadline=fact.deadline,
        )
        self.commands[fact.command_id] = entry
        self._await(entry)

    def _command_done(self, fact: f.CommandDone, at: datetime, epoch: int) -> None:
        entry = self.pending.pop(fact.command_id, None)
        if entry is None:
            raise IllegalTransition("command", fact.command_id, "not pending", "command_done")
        of_job = self.pending_of[entry.job_id]
        del of_job[entry.command_id]
        if not of_job:
            del self.pending_of[entry.job_id]
        self.unended.pop(fact.command_id, None)
        node = self.nodes.get(entry.node_id)
        if node is not None and node.drain and node.drain.command_id == entry.command_id:
            node.drain = None
            self.draining.pop(node.node_id, None)
        entry.done, entry.ok = True, fact.ok
        entry.reply = Raw(msgspec.json.encode(fact.reply))  # a tenth of what the tree takes

    def _commands_forgotten(self, fact: f.CommandForgotten, at: datetime, epoch: int) -> None:
        for command_id in fact.command_ids:
            self.commands.pop(command_id, None)

    def _queue_moved(self, fact: f.QueueTaken | f.QueueSetAside, at: datetime, epoch: int) -> None:
        cursor = self.state.queue
        if cursor and cursor.stream == fact.stream and cursor.sequence >= fact.sequence:
            who, where = str(fact.sequence), f"at {cursor.sequence}"
            raise IllegalTransition("queue", who, where, "queue_moved")
        self.state.queue = QueueCursor(stream=fact.stream, sequence=fact.sequence)

    def _node_registered(self, fact: f.NodeRegistered, at: datetime, epoch: int) -> None:
        known = self.nodes.get(fact.node_id)
        past = list(known.past) if known else []
        if known is None:
            self._count_all(fact.node_id, -1)
        if known and known.incarnation != fact.incarnation:
            past.append(known.incarnation)
        self.nodes[fact.node_id] = Node(
            node_id=fact.node_id,
            incarnation=fact.incarnation,
            task_slots=fact.task_slots,
            state=known.state if known else NODE_READY,
            since=known.since if known else at,
            machine_id=fact.machine_id,
            addr=fact.addr,
            labels=fact.labels,
            version=fact.version,
            watched=fact.watched,
            cordon=known.cordon if known else NODE_READY,
            past=past[-PAST_INCARNATIONS:],
            last_seen=known.last_seen if known else None,
            dead=known.dead if known else False,
            drain=known.drain if known else None,
        )
        if known is None:
            self._count_all(fact.node_id, 1)
        self.capacity.changed(fact.node_id)

    def _node_moved(self, fact: Any, target: NodeState, happening: str, at: datetime) -> Node:
        node = self.nodes[fact.node_id]
        moved = step(NODE_TABLE, node.node_id, node.state, happening, target)
        turned = NODE_EXPIRED in (node.state, moved) and moved is not node.state
        if turned:
            self._count_all(node.node_id, -1)
        node.state, node.since = moved, at
        if turned:
            self._count_all(node.node_id, 1)
        self.capacity.changed(node.node_id)
        return node

    def _node_expired(self, fact: f.NodeExpired, at: datetime, epoch: int) -> None:
        node = self._node_moved(fact, NODE_EXPIRED, "node_expired", at)
        node.last_seen = fact.last_seen
        self._silent(node)

    def _node_returned(self, fact: f.NodeReturned, at: datetime, epoch: int) -> None:
        node = self._node_moved(fact, self.nodes[fact.node_id].cordon, "node_returned", at)
        self._heard(node)
        node.last_seen, node.dead = None, False

    def _node_confirmed_dead(self, fact: f.NodeConfirmedDead, at: datetime, epoch: int) -> None:
        node = self.nodes[fact.node_id]
        step(NODE_TABLE, node.node_id, node.state, "node_confirmed_dead", node.state)
        node.dead = True

    def _node_draining(self, fact: f.NodeDraining, at: datetime, epoch: int) -> None:
        expired = self.nodes[fact.node_id].expired
        target = NODE_EXPIRED if expired else NODE_DRAINING
        node = self._node_moved(fact, target, "node_draining", at)
        node.cordon = NODE_DRAINING
        node.drain = Drain(command_id=fact.command_id, deadline=fact.deadline, force=fact.force)
        self.draining[node.node_id] = None

    def _node_cordoned(self, fact: f.NodeCordoned, at: datetime, epoch: int) -> None:
        expired = self.nodes[fact.node_id].expired
        target = NODE_EXPIRED if expired else NODE_CORDONED
        self._node_moved(fact, target, "node_cordoned", at).cordon = NODE_CORDONED

    def _node_uncordoned(self, fact: f.NodeUncordoned, at: datetime, epoch: int) -> None:
        expired = self.nodes[fact.node_id].expired
        target = NODE_EXPIRED if expired else NODE_READY
        self._node_moved(fact, target, "node_uncordoned", at).cordon = NODE_READY

    def _node_forgotten(self, fact: f.NodeForgotten, at: datetime, epoch: int) -> None:
        if self.live_by_node.get(fact.node_id):
            raise IllegalTransition("node", fact.node_id, "holding workers", "node_forgotten")
        self.nodes.pop(fact.node_id)
        self.draining.pop(fact.node_id, None)
        self.capacity.changed(fact.node_id)
        for worker_id in [w for w, o in self.state.orphans.items() if o.node_id == fact.node_id]:
            self._forget_orphan(worker_id)

    def _run_created(self, fact: f.RunCreated, at: datetime, epoch: int) -> None:
        if fact.run_id <= self.state.highest_run.get(fact.job_id, 0):
            raise IllegalTransition("run", f"{fact.job_id}/{fact.run_id}", "stale", "run_created")
        self.state.highest_run[fact.job_id] = fact.run_id
        job = self.jobs.get(fact.job_id)
        if job is None:
            job = self.jobs[fact.job_id] = Job(job_id=fact.job_id, name=fact.name)
        else:
            job.name = fact.name
            self._forget_definition(job)
        if fact.restart_of is None:
            job.restarts.clear()
        elif fact.tries:
            job.restarts.append(at)
            del job.restarts[: -fact.policy.restart.limit]
        run = Run(
            job_id=fact.job_id,
            run_id=fact.run_id,
            command_id=fact.command_id,
            state=RUN_WAITING,
            since=at,
            slots=fact.slots,
            name=fact.name,
            hash=fact.hash,
            deadline=fact.deadline,
            program=_kept(fact.program),
            wasm_path=fact.wasm_path,
            env_vars=fact.env_vars,
            scheduler_config=fact.scheduler_config,
            position=self._following,
            priority=fact.priority,
            not_after=fact.not_after,
            policy=fact.policy,
            restart_of=fact.restart_of,
            tries=fact.tries,
        )
        job.runs.append(run)
        self._line_up(run)

    def _run_named(self, fact: Any) -> Run:
        return self.jobs[fact.job_id].run(fact.run_id)

    def _run_moved(self, run: Run, target: RunState, happening: str, at: datetime) -> Run:
        key = (run.job_id, run.run_id)
        state = step(RUN_TABLE, key, run.state, happening, target)
        if run.state is RUN_WAITING:
            if state is not RUN_WAITING:
                self._leave_line(run)
        elif run.state is RUN_STARTING:
            del self.starting[key]
        if state is RUN_STARTING:
            self.starting[key] = None
        run.state, run.since = state, at
        return run

    def _run_waiting(self, fact: f.RunWaiting, at: datetime, epoch: int) -> None:
        run = self._run_moved(self._run_named(fact), RUN_WAITING, "run_waiting", at)
        self._drop_alarms(run)
        run.missing, run.reason, run.not_before = fact.missing, fact.reason, fact.not_before
        self._set_alarms(run)

    def _run_placed(self, fact: f.RunPlaced, at: datetime, epoch: int) -> None:
        run = self.jobs[fact.job_id].run(fact.run_id)
        run.attempt = fact.attempt
        if run.state is RUN_WAITING:
            self._run_moved(run, RUN_STARTING, "run_placed", at)
            run.missing, run.reason, run.not_before = 0, "", None
        run.deadline = fact.deadline or run.deadline
        command = self.pending.get(run.command_id)
        if command is not None and fact.due is not None:
            command.deadline = fact.due

    def _run_running(self, fact: f.RunRunning, at: datetime, epoch: int) -> None:
        self._run_moved(self._run_named(fact), RUN_RUNNING, "run_running", at)

    def _run_stopping(self, fact: f.RunStopping, at: datetime, epoch: int) -> None:
        run = self._run_moved(self._run_named(fact), RUN_STOPPING, "run_stopping", at)
        run.rollback, run.reason = fact.failed, fact.reason
        run.restart, run.next_tries = fact.restart, fact.tries
        if run.moves:
            self.moving[run.job_id, run.run_id] = None
        else:
            self.moving.pop((run.job_id, run.run_id), None)
        if fact.drain:
            self._leaves_drained(run, fact.drain)

    def _leaves_drained(self, run: Run, command_id: str) -> None:
        node = self.nodes[self.commands[command_id].node_id]
        here = self.live_by_node.get(node.node_id, {})
        workers = [worker_id for worker_id in run.workers if worker_id in here]
        if node.drain is not None:
            node.drain.runs.append(
                DrainedRun(job_id=run.job_id, run_id=run.run_id, moved=run.restart, workers=workers)
            )

    def _run_ended(self, fact: f.RunEnded, at: datetime, epoch: int) -> None:
        run = self._run_moved(self._run_named(fact), fact.state, "run_ended", at)
        run.not_before = None
        if self.moving:
            self.moving.pop((run.job_id, run.run_id), None)
        run.reason = fact.reason or run.reason
        job = self.jobs[fact.job_id]
        if job.current is not run:
            _undefine(run)
            return
        kept = self.state.definitions
        kept[job.job_id] = definition_size(run)
        self._defined += kept[job.job_id]
        while self._defined > DEFINITION_BYTES:
            self._forget_definition(self.jobs[next(iter(kept))])

    def _forget_definition(self, job: Job) -> None:
        """An ended job can't be started again from what is remembered."""
        size = self.state.definitions.pop(job.job_id, None)
        if size is not None:
            self._defined -= size
            _undefine(job.current)

    def _run_forgotten(self, fact: f.RunForgotten, at: datetime, epoch: int) -> None:
        job = self.jobs[fact.job_id]
        run = job.run(fact.run_id)
        if job.current is run:
            self._forget_definition(job)
        self._forget_run(run)
        job.runs.remove(run)

    def _job_forgotten(self, fact: f.JobForgotten, at: datetime, epoch: int) -> None:
        self._defined -= self.state.definitions.pop(fact.job_id, 0)
        for run in self.jobs.pop(fact.job_id).runs:
            self._forget_run(run)

    def _forget_run(self, run: Run) -> None:
        self._tallies.pop((run.job_id, run.run_id), None)
        for worker_id in run.workers:
            if not self.workers.pop(worker_id).gone:
                raise IllegalTransition("worker", worker_id, "live", "forgotten")

    def _worker_assigned(self, fact: f.WorkerAssigned, at: datetime, epoch: int) -> None:
        worker_id = fact.worker_id
        if worker_id in self.workers:
            raise IllegalTransition("worker", worker_id, "known", "worker_assigned")
        run = self.jobs[fact.job_id].run(fact.run_id)
        node = self.nodes.get(fact.node_id)
        # What many workers have in common is held once.
        worker = Worker(
            worker_id=worker_id,
            job_id=run.job_id,
            run_id=run.run_id,
            node_id=node.node_id if node else fact.node_id,
            incarnation=_same(fact.incarnation, node.incarnation if node else ""),
            slots=fact.slots,
            state=WORKER_ASSIGNED,
            since=at,
            epoch=_same(epoch, self.state.epoch),
            position=self._following,
        )
        self.workers[worker_id] = worker
        run.workers.append(worker_id)
        self._count_new(worker)
        self._hold(worker)

    def _worker_moved(self, fact: Any, target: WorkerState, happening: str, at: datetime) -> Worker:
        worker = self.workers[fact.worker_id]
        if worker.gone:
            raise IllegalTransition("worker", worker.worker_id, "gone", happening)
        if worker.state is not target:
            worker.since = at
        worker.state = step(WORKER_TABLE, worker.worker_id, worker.state, happening, target)
        self._digests.pop(worker.node_id, None)
        return worker

    def _worker_launched(self, fact: f.WorkerLaunched, at: datetime, epoch: int) -> None:
        stopping = self.workers[fact.worker_id].state is WORKER_STOPPING
        target = WORKER_STOPPING if stopping else WORKER_RUNNING
        worker = self._worker_moved(fact, target, "worker_launched", at)
        self._heard_of(worker, fact, epoch)

    def _worker_hosted(self, fact: f.WorkerHosted, at: datetime, epoch: int) -> None:
        self.workers[fact.worker_id].host = fact.host

    def _worker_stopping(self, fact: f.WorkerStopping, at: datetime, epoch: int) -> None:
        worker = self._worker_moved(fact, WORKER_STOPPING, "worker_stopping", at)
        if not worker.unwanted:
            self._count_unwanted(worker)
        worker.unwanted, worker.force = True, worker.force or fact.force
        worker.grace_s, worker.reason = float(fact.grace_s), fact.reason
        self._note_failure(worker, fact.reason)

    def _worker_lost(self, fact: f.WorkerLost, at: datetime, epoch: int) -> None:
        worker = self._worker_moved(fact, WORKER_LOST, "worker_lost", at)
        worker.reason = fact.reason
        self._note_failure(worker, fact.reason)

    def _worker_returned(self, fact: f.WorkerReturned, at: datetime, epoch: int) -> None:
        worker = self._worker_moved(fact, WORKER_RUNNING, "worker_returned", at)
        worker.reason = ""
        self._heard_of(worker, fact, epoch)

    def _heard_of(
        self, worker: Worker, fact: f.WorkerLaunched | f.WorkerReturned, epoch: int
    ) -> None:
        if not worker.launched:
            self._count_launched(worker)
        worker.launched, worker.acked = True, _same(epoch, worker.epoch)
        worker.incarnation = _same(fact.incarnation, worker.incarnation)
        worker.pid, worker.seq = fact.pid or worker.pid, fact.seq

    def _worker_ended(self, fact: f.WorkerEnded, at: datetime, epoch: int) -> None:
        worker = self._worker_moved(fact, fact.state, "worker_ended", at)
        self._unlease(worker)
        self._count_gone(worker, fact.launched)
        worker.gone, worker.since, worker.launched = True, at, fact.launched
        for command_id in self.pending_of.get(worker.job_id, ()):
            if command_id in self.unended:
                self.unended[command_id].pop(worker.worker_id, None)
        worker.exit_code, worker.signal = fact.exit_code, fact.signal
        worker.reason = fact.reason or worker.reason
        self._held[worker.node_id] -= worker.slots
        del self.live_by_node[worker.node_id][worker.worker_id]
        self.capacity.changed(worker.node_id)
        if not fact.launched:
            self._note_failure(worker, fact.reason)

    def _worker_orphaned(self, fact: f.WorkerOrphaned, at: datetime, epoch: int) -> None:
        if not fact.stopped:
            self._forget_orphan(fact.worker_id)
            orphan = self.state.orphans[fact.worker_id] = Orphan(
                node_id=fact.node_id,
                incarnation=fact.incarnation,
                job_id=fact.job_id,
                run_id=fact.run_id,
                slots=fact.slots,
                pid=fact.pid,
            )
            self._doubt(fact.worker_id, orphan)

    def _forget_orphan(self, worker_id: str) -> None:
        orphan = self.state.orphans.pop(worker_id, None)
        if orphan is not None:
            self._doubt_no_more(worker_id, orphan)

    def _orphans_gone(self, fact: f.OrphansGone, at: datetime, epoch: int) -> None:
        for worker_id in fact.worker_ids:
            self._forget_orphan(worker_id)

    def _run_adopted(self, fact: f.RunAdopted, at: datetime, epoch: int) -> None:
        created = f.RunCreated(
            job_id=fact.job_id,
            run_id=fact.run_id,
            command_id=fact.command_id,
            slots=fact.slots,
            name=fact.job_id,
            hash="",
            deadline=at,
        )
        self._run_created(created, at, epoch)
        self.jobs[fact.job_id].run(fact.run_id).adopted = True
        self._run_placed(f.RunPlaced(job_id=fact.job_id, run_id=fact.run_id, attempt=1), at, epoch)
        self._run_running(f.RunRunning(job_id=fact.job_id, run_id=fact.run_id), at, epoch)

    def _worker_adopted(self, fact: f.WorkerAdopted, at: datetime, epoch: int) -> None:
        self._forget_orphan(fact.worker_id)
        assigned = f.WorkerAssigned(
            worker_id=fact.worker_id,
            job_id=fact.job_id,
            run_id=fact.run_id,
            node_id=fact.node_id,
            incarnation=fact.incarnation,
            slots=fact.slots,
        )
        self._worker_assigned(assigned, at, epoch)
        launched = f.WorkerLaunched(
            worker_id=fact.worker_id, incarnation=fact.incarnation, pid=fact.pid
        )
        self._worker_launched(launched, at, epoch)
        run = self.jobs[fact.job_id].run(fact.run_id)
        run.slots = max(run.slots, self.tally(fact.job_id, fact.run_id).serving)

    def _note_failure(self, worker: Worker, reason: str) -> None:
        run = self.run_of(worker)
        if run.state is RUN_STARTING:
            run.failures[worker.node_id] = reason


def definition_size(run: Run) -> int:
    """Bytes of what a run was started with, as it counts for ``DEFINITION_BYTES``."""
    size = len(bytes(run.program))
    for name, value in run.env_vars.items():
        size += len(name) + len(value)
    return size


def _same(value: T, known: T) -> T:
    """``value``, as the object that is known already where they are equal."""
    return known if value == known else value


def _kept(program: Raw) -> Raw:
    """A copy, since what is decoded is a view that would keep the whole record."""
    copy = bytes(program)
    return NO_PROGRAM if copy == b"{}" else Raw(copy)


def _undefine(run: Run) -> None:
    run.program, run.env_vars = NO_PROGRAM, {}


_FOLDS: Final[dict[type, Callable[[Folding, Any, datetime, int], None]]] = {
    f.LeaderStarted: Folding._leader_started,
    f.CommandTaken: Folding._command_taken,
    f.CommandDone: Folding._command_done,
    f.CommandForgotten: Folding._commands_forgotten,
    f.QueueTaken: Folding._queue_moved,
    f.QueueSetAside: Folding._queue_moved,
    f.NodeRegistered: Folding._node_registered,
    f.NodeExpired: Folding._node_expired,
    f.NodeReturned: Folding._node_returned,
    f.NodeCordoned: Folding._node_cordoned,
    f.NodeDraining: Folding._node_draining,
    f.NodeConfirmedDead: Folding._node_confirmed_dead,
    f.NodeUncordoned: Folding._node_uncordoned,
    f.NodeForgotten: Folding._node_forgotten,
    f.RunCreated: Folding._run_created,
    f.RunWaiting: Folding._run_waiting,
    f.RunPlaced: Folding._run_placed,
    f.RunRunning: Folding._run_running,
    f.RunStopping: Folding._run_stopping,
    f.RunEnded: Folding._run_ended,
    f.RunForgotten: Folding._run_forgotten,
    f.JobForgotten: Folding._job_forgotten,
    f.WorkerAssigned: Folding._worker_assigned,
    f.WorkerLaunched: Folding._worker_launched,
    f.WorkerHosted: Folding._worker_hosted,
    f.WorkerStopping: Folding._worker_stopping,
    f.WorkerLost: Folding._worker_lost,
    f.WorkerReturned: Folding._worker_returned,
    f.WorkerEnded: Folding._worker_ended,
    f.WorkerOrphaned: Folding._worker_orphaned,
    f.OrphansGone: Folding._orphans_gone,
    f.RunAdopted: Folding._run_adopted,
    f.WorkerAdopted: Folding._worker_adopted,
}
