"""Folding: what each fact changes in the ledger's state and in its indexes.

What lives here: the table of all facts, and the methods for those of leaders, commands, the
queue and nodes. Workers and runs have ``events.folding_workers`` and ``events.folding_runs``.
All are checked against the transition tables. What may not: questions about the state
(``events.ledger``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Raw

from events import facts as f
from events.entities import (
    CommandEntry,
    Drain,
    Leadership,
    Node,
    QueueCursor,
)
from events.folding_runs import RunFolds
from events.states import (
    NODE_CORDONED,
    NODE_DRAINING,
    NODE_EXPIRED,
    NODE_READY,
    NODE_TABLE,
    IllegalTransition,
    NodeState,
    step,
)

PAST_INCARNATIONS: Final = 8
REMEMBERED_LEADERSHIPS: Final = 1_000


class Folding(RunFolds):
    """Changes the state by facts, and the indexes with it."""

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
        self.state.queue = QueueCursor(
            stream=fact.stream, sequence=fact.sequence, stored=fact.stored
        )

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
