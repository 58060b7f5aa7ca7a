"""A machine of the model fleet: an agent and its supervisor, as their contracts say.

What lives here: what a node does with an order (fences, tombstones, incarnations, ends kept
until acknowledged) and its process table, which is the truth that tests compare with. What
may not: the leader, the network between them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from events.ledger import live_digest
from events.policies import LEASE_GRACE_S
from events.states import WorkerState
from events.traffic import (
    AgentStopReply,
    HeartbeatNodeReq,
    InventoryReply,
    InventoryRow,
    RegisterNodeReq,
    Stamp,
    WorkerFinishedReq,
)
from schedulers.launcher import Assignment, LaunchAck, StopOrder

LIVE = (WorkerState.RUNNING, WorkerState.STOPPING)


class Fenced(Struct, frozen=True):
    """The order is void."""


class Refused(Struct, frozen=True):
    """The worker does not run and never will."""

    reason: str


Reply = LaunchAck | AgentStopReply | InventoryReply | Fenced | Refused


class Process(Struct):
    """``state`` as in an inventory; an ended one is kept until its end is acknowledged.
    ``stop_after_s``: its lease."""

    worker_id: str
    job_id: str
    run_id: int
    slots: int
    stamp: Stamp
    state: WorkerState = WorkerState.RUNNING
    exit_code: int | None = None
    signal: int | None = None
    stop_after_s: float | None = None

    @property
    def alive(self) -> bool:
        return self.state in LIVE

    def row(self) -> InventoryRow:
        return InventoryRow(
            worker_id=self.worker_id,
            job_id=self.job_id,
            run_id=self.run_id,
            slots=self.slots,
            state=self.state,
            exit_code=self.exit_code,
            signal=self.signal,
            stamp=self.stamp,
        )


class Machine:
    """``up``: its messages and orders get through. ``refuse_next``: its next spawn fails.
    ``now``: its clock, which its supervisor counts leases by."""

    def __init__(self, node_id: str, slots: int, now: datetime) -> None:
        self.node_id = node_id
        self.now = self.renewed_at = now
        self.slots = slots
        self.up = True
        self.registered = False
        self.refuse_next = False
        self.processes: dict[str, Process] = {}
        self.spawned: set[str] = set()
        """Every worker id that ever got a process here."""
        self._agents = 0
        self._epoch = 0
        self._seq = 0
        self._tombstones: dict[str, bool] = {}
        self.restart()

    # --- what happens to it -------------------------------------------------------------

    def restart(self) -> None:
        """The agent starts anew; its supervisor and the workers stay."""
        self._agents += 1
        self.incarnation = f"{self.node_id}-{self._agents}"
        self.registered = False

    def reboot(self, *, wiped: bool) -> None:
        """All processes die. ``wiped``: the state directory is lost as well."""
        if wiped:
            self.processes, self._tombstones = {}, {}
            self._epoch = self._seq = 0
        for process in self.alive():
            process.state = WorkerState.LOST
        self.restart()

    def pass_time(self, now: datetime) -> None:
        """Processes whose leases are over are gone at the latest moment that is allowed."""
        self.now = now
        for process in self.alive():
            if self._lease_over(process.stop_after_s, LEASE_GRACE_S):
                process.state, process.signal = WorkerState.LOST, 9

    def renew(self, sent_at: datetime) -> None:
        """A leader answered what was sent then."""
        self.renewed_at = max(self.renewed_at, sent_at)

    def _lease_over(self, stop_after_s: float | None, grace_s: float = 0.0) -> bool:
        if stop_after_s is None:
            return False
        return self.now - self.renewed_at > timedelta(seconds=stop_after_s + grace_s)

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    def ended(self) -> list[Process]:
        return [process for process in self.processes.values() if not process.alive]

    def end(self, process: Process, exit_code: int) -> None:
        """A process exits by itself, or at last because it was asked to."""
        if process.state is WorkerState.STOPPING:
            process.state, process.signal = WorkerState.FAILED, 15
        else:
            process.exit_code = exit_code
            process.state = WorkerState.FAILED if exit_code else WorkerState.FINISHED

    # --- what it says -------------------------------------------------------------------

    def registration(self, *, listed: bool = True) -> RegisterNodeReq:
        return RegisterNodeReq(
            node_id=self.node_id,
            task_slots=self.slots,
            incarnation=self.incarnation,
            machine_id=f"m-{self.node_id}",
            workers=self._rows() if listed else None,
            epoch=self._epoch,
        )

    def heartbeat(self) -> HeartbeatNodeReq:
        return HeartbeatNodeReq(
            node_id=self.node_id,
            incarnation=self.incarnation,
            seq=self._next_seq(),
            epoch=self._epoch,
            digest=live_digest([process.worker_id for process in self.alive()]),
        )

    def report(self, process: Process) -> WorkerFinishedReq:
        return WorkerFinishedReq(
            node_id=self.node_id,
            worker_id=process.worker_id,
            job_id=process.job_id,
            run_id=process.run_id,
            slots=process.slots,
            exit_code=process.exit_code,
            signal=process.signal,
            state=process.state,
        )

    # --- what it is told ----------------------------------------------------------------

    def hear(self, epoch: int) -> bool:
        """An answer of a leader; False if that leader is over."""
        if epoch < self._epoch:
            return False
        self._epoch = epoch
        return True

    def acknowledge(self, worker_id: str) -> None:
        process = self.processes.get(worker_id)
        if process is not None and not process.alive:
            del self.processes[worker_id]
            self._tombstones[worker_id] = True

    def launch(self, order: Assignment) -> Reply:
        process = self.processes.get(order.worker_id)
        if not self.hear(order.epoch):
            return Fenced()
        if order.incarnation != self.incarnation:
            if process is not None and process.alive:
                return LaunchAck(seq=self._next_seq())
            if process is None:
                self._tombstones.setdefault(order.worker_id, False)
            return Fenced()
        if process is not None:
            if process.state is WorkerState.RUNNING:
                return LaunchAck(seq=self._next_seq())
            return Refused("it was stopped or ended")
        if order.worker_id in self._tombstones:
            return Refused("a tombstone stands for it")
        if self._lease_over(order.stop_after_s):
            self._tombstones[order.worker_id] = False
            return Refused("its lease would be over already")
        busy = sum(process.slots for process in self.alive())
        if self.refuse_next or busy + order.slots > self.slots:
            self.refuse_next = False
            self._tombstones[order.worker_id] = False
            return Refused("no such program, or no room")
        self.spawned.add(order.worker_id)
        self.processes[order.worker_id] = Process(
            order.worker_id,
            order.job_id,
            order.run_id,
            order.slots,
            order.stamp,
            stop_after_s=order.stop_after_s,
        )
        return LaunchAck(seq=self._next_seq())

    def stop(self, order: StopOrder) -> Reply:
        if not self.hear(order.epoch) or order.incarnation != self.incarnation:
            return Fenced()
        process = self.processes.get(order.worker_id)
        if process is None:
            ran = self._tombstones.setdefault(order.worker_id, False)
            return AgentStopReply(state="ended" if ran else "unknown", seq=self._next_seq())
        if not process.alive:
            return AgentStopReply(state="ended", seq=self._next_seq())
        process.state = WorkerState.STOPPING
        return AgentStopReply(state="stopping", seq=self._next_seq())

    def inventory(self, incarnation: str, epoch: int) -> Reply:
        if not self.hear(epoch) or incarnation != self.incarnation:
            return Fenced()
        return InventoryReply(
            incarnation=self.incarnation,
            seq=self._next_seq(),
            epoch=self._epoch,
            workers=self._rows(),
        )

    def _rows(self) -> list[InventoryRow]:
        return [process.row() for process in self.processes.values()]

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq
