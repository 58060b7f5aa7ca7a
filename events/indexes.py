"""What is kept beside the ledger's state, so that nothing has to be searched.

What lives here: live workers and held slots of each node, free slots in order, commands
without an outcome. What may not: what a fact changes (``events.folding``).
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from sortedcontainers import SortedList

from events.capacity import Capacity, Pair
from events.entities import CommandEntry, Job, LedgerState, Node, Orphan, Run, Worker
from events.line import Line
from events.policies import gone_at
from events.states import RUN_STARTING, RUN_STOPPING, RUN_WAITING, WORKER_FAILED, WORKER_LOST


class Tally(Struct, gc=False):
    """A run's workers, counted. ``live``: not gone; ``silent``: of these, on nodes that do
    not answer; ``waiting``: those that count for the run and were not launched yet;
    ``serving`` and ``leaving``: slots of those that count, and of those that were stopped
    and are not gone; ``failed`` and ``vanished``: those that count, ran, and ended failed,
    or lost."""

    live: int = 0
    silent: int = 0
    waiting: int = 0
    serving: int = 0
    leaving: int = 0
    failed: int = 0
    vanished: int = 0


RunKey = tuple[str, int]
"""job_id and run_id."""

Lease = tuple[datetime, str]
"""When a worker is gone for sure, and its id."""


Alarm = tuple[datetime, str, int]
"""A time, and the job_id and run_id that it concerns."""


class Indexes:
    """The state, and what follows from it: live workers and held slots of each node,
    commands without an outcome."""

    def __init__(self, state: LedgerState | None = None) -> None:
        self.state = state or LedgerState()
        self.nodes: dict[str, Node] = self.state.nodes
        self.workers: dict[str, Worker] = self.state.workers
        self.jobs: dict[str, Job] = self.state.jobs
        self.commands: dict[str, CommandEntry] = self.state.commands
        self.live_by_node: dict[str, dict[str, Worker]] = {}
        self.pending: dict[str, CommandEntry] = {}
        """Commands taken and without an outcome yet."""
        self.pending_of: dict[str, dict[str, CommandEntry]] = {}
        """The same, by job; "" for those that concern none."""
        self._following = self.state.position + 1
        """Where the record that is being folded will stand."""
        self.unended: dict[str, dict[str, None]] = {}
        """Of each pending stop, the workers whose end it waits for."""
        self.waiting = Line()
        """The runs that wait to be placed, in the order in which they are."""
        self.alarms: SortedList[Alarm] = SortedList()
        """When a run that waits is to be given up, or may be placed."""
        self.starting: dict[RunKey, None] = {}
        """The runs whose workers are being launched."""
        self.moving: dict[RunKey, None] = {}
        """The runs that are stopped in order to go on elsewhere."""
        self.stuck: dict[str, dict[tuple[Pair, ...], int]] = {}
        """What was found out of nodes whose runs can't leave, by who looked: of each selector
        that these have, the fewest slots that are wanted. Forgotten when another comes."""
        self.draining: dict[str, None] = {}
        """The nodes that are being emptied."""
        self.leases: SortedList[Lease] = SortedList()
        """Of live workers on nodes that are silent: from when on they are gone for sure."""
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._held: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._defined = sum(self.state.definitions.values())
        """Bytes of the definitions that are kept."""
        self.capacity = Capacity(self.state.nodes, self._held)
        """The nodes in the order in which they are filled."""
        for worker in self.state.workers.values():
            self._count(worker, 1)
            if not worker.gone:
                self._hold(worker)
        self.doubted: dict[str, dict[str, int]] = {}
        """Of each node, the workers that the log can't confirm, and their slots."""
        for worker_id, orphan in self.state.orphans.items():
            self._doubt(worker_id, orphan)
        for command in self.state.commands.values():
            if not command.done:
                self._await(command)
        for job in self.state.jobs.values():
            for run in job.runs:
                if run.state is RUN_WAITING:
                    self._line_up(run)
                elif run.state is RUN_STARTING:
                    self.starting[run.job_id, run.run_id] = None
                elif run.state is RUN_STOPPING and run.moves:
                    self.moving[run.job_id, run.run_id] = None
        for node in self.state.nodes.values():
            if node.drain is not None:
                self.draining[node.node_id] = None
            if node.expired:
                self._silent(node)

    @property
    def position(self) -> int:
        return self.state.position

    def held_slots(self, node_id: str) -> int:
        """Slots of the live workers on a node."""
        return self._held.get(node_id, 0)

    def free_slots(self, node_id: str) -> int:
        return self.capacity.free_of(node_id)

    def run_of(self, worker: Worker) -> Run:
        return self.jobs[worker.job_id].run(worker.run_id)

    def tally(self, job_id: str, run_id: int) -> Tally:
        """The workers of a run, counted; not to be changed by those who ask."""
        return self._tallies.get((job_id, run_id)) or Tally()

    def answering(self, job_id: str, run_id: int) -> int:
        """How many live workers of a run are on nodes that answer."""
        tally = self.tally(job_id, run_id)
        return tally.live - tally.silent

    def answers(self, worker: Worker) -> bool:
        """Whether the worker's node is there to say what became of it."""
        node = self.nodes.get(worker.node_id)
        return node is not None and not node.expired

    def _count(self, worker: Worker, sign: int) -> None:
        """Takes a worker into its run's tally (1), or out of it (-1) before it changes."""
        key = (worker.job_id, worker.run_id)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally()
        if not worker.gone:
            tally.live += sign
            if not self.answers(worker):
                tally.silent += sign
            if worker.unwanted:
                tally.leaving += sign * worker.slots
        if worker.serves:
            tally.serving += sign * worker.slots
            if not worker.launched:
                tally.waiting += sign
            elif worker.gone:
                tally.failed += sign * (worker.state is WORKER_FAILED)
                tally.vanished += sign * (worker.state is WORKER_LOST)

    # What ``_count`` before and after comes to, for the most frequent changes:

    def _count_new(self, worker: Worker) -> None:
        key = (worker.job_id, worker.run_id)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally()
        tally.live += 1
        tally.silent += not self.answers(worker)
        tally.waiting += 1
        tally.serving += worker.slots

    def _count_launched(self, worker: Worker) -> None:
        if not worker.unwanted:
            self._tallies[worker.job_id, worker.run_id].waiting -= 1

    def _count_unwanted(self, worker: Worker) -> None:
        tally = self._tallies[worker.job_id, worker.run_id]
        tally.serving -= worker.slots
        tally.leaving += worker.slots
        tally.waiting -= not worker.launched

    def _count_gone(self, worker: Worker, launched: bool) -> None:
        """``launched``: whether it ever ran, as its end tells."""
        tally = self._tallies[worker.job_id, worker.run_id]
        tally.live -= 1
        tally.silent -= not self.answers(worker)
        if worker.unwanted:
            tally.leaving -= worker.slots
            return
        tally.waiting -= not worker.launched
        if not launched:
            tally.serving -= worker.slots
        else:
            tally.failed += worker.state is WORKER_FAILED
            tally.vanished += worker.state is WORKER_LOST

    def _count_all(self, node_id: str, sign: int) -> None:
        """``_count`` for the live workers of a node that falls silent or is heard again."""
        for worker in self.live_by_node.get(node_id, {}).values():
            self._count(worker, sign)

    def _doubt(self, worker_id: str, orphan: Orphan) -> None:
        self.doubted.setdefault(orphan.node_id, {})[worker_id] = orphan.slots
        self._digests.pop(orphan.node_id, None)

    def _doubt_no_more(self, worker_id: str, orphan: Orphan) -> None:
        here = self.doubted[orphan.node_id]
        del here[worker_id]
        if not here:
            del self.doubted[orphan.node_id]
        self._digests.pop(orphan.node_id, None)

    def _await(self, entry: CommandEntry) -> None:
        self.pending[entry.command_id] = entry
        self.pending_of.setdefault(entry.job_id, {})[entry.command_id] = entry
        if entry.kind == "stop":
            known = [self.workers.get(worker_id) for worker_id in entry.workers]
            left = [worker.worker_id for worker in known if worker and not worker.gone]
            self.unended[entry.command_id] = dict.fromkeys(left)

    def _line_up(self, run: Run) -> None:
        self.waiting.join(run)
        if run.not_after is not None or run.not_before is not None:
            self._set_alarms(run)

    def _leave_line(self, run: Run) -> None:
        self.waiting.leave(run)
        if run.not_after is not None or run.not_before is not None:
            self._drop_alarms(run)

    def _set_alarms(self, run: Run) -> None:
        for time in (run.not_after, run.not_before):
            if time is not None:
                self.alarms.add((time, run.job_id, run.run_id))

    def _drop_alarms(self, run: Run) -> None:
        """Before the times of a run that waits change."""
        for time in (run.not_after, run.not_before):
            if time is not None:
                self.alarms.discard((time, run.job_id, run.run_id))

    def _silent(self, node: Node) -> None:
        """The leases of its workers run out, unless it is heard again."""
        for worker in self.live_by_node.get(node.node_id, {}).values():
            lease = self._lease_of(worker)
            if lease is not None:
                self.leases.add(lease)

    def _heard(self, node: Node) -> None:
        """Before it counts as heard: its workers' leases are renewed again."""
        for worker in self.live_by_node.get(node.node_id, {}).values():
            self._unlease(worker)

    def _unlease(self, worker: Worker) -> None:
        lease = self._lease_of(worker)
        if lease is not None:
            self.leases.discard(lease)

    def _lease_of(self, worker: Worker) -> Lease | None:
        """Of a worker on a silent node whose agent renews leases."""
        node = self.nodes.get(worker.node_id)
        if node is None or node.last_seen is None or not node.watched:
            return None
        stop_after_s = self.run_of(worker).scheduler_config.stop_after_s
        if stop_after_s is None:
            return None
        return (gone_at(node.last_seen, stop_after_s), worker.worker_id)

    def _hold(self, worker: Worker) -> None:
        self._held[worker.node_id] = self._held.get(worker.node_id, 0) + worker.slots
        self.live_by_node.setdefault(worker.node_id, {})[worker.worker_id] = worker
        self.stuck.pop(worker.node_id, None)
        self.capacity.changed(worker.node_id)
        self._digests.pop(worker.node_id, None)
