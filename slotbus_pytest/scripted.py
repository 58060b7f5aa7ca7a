"""Nodes that do what a test tells them to, for faults that real ones show too seldom.

What lives here: ``ScriptedNode`` (a process table of its own, fenced as an agent and its
supervisor are) and ``ScriptedLauncher`` over several of them. It is held to the contract of
every launcher (tests/contracts/test_launcher.py). What may not: what could be seen on a real
node as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from events.ledger import live_digest
from events.states import WorkerState
from events.traffic import (
    AgentStopReply,
    HeartbeatNodeReq,
    InventoryReply,
    InventoryRow,
    RegisterNodeReq,
    WorkerFinishedReq,
)
from schedulers.launcher import (
    Assignment,
    Fenced,
    LaunchAck,
    LaunchRefused,
    StopOrder,
    Unreachable,
    report_of,
)

LIVE = (WorkerState.RUNNING, WorkerState.STOPPING)
TERM, KILL = 15, 9


@dataclass(frozen=True)
class Program:
    """What a worker does: it runs until it is stopped, or ends at once with ``exit_code``.
    ``deaf``: only KILL ends it. ``missing``: there is no such program."""

    exit_code: int | None = None
    deaf: bool = False
    missing: bool = False


@dataclass(frozen=True)
class Turn:
    """How a node takes one order to launch. ``after_s``: seconds until it is carried out
    (who asked may have given up by then). ``carried_out`` False: it is lost on its way.
    ``answered`` False: it is done, and the answer is lost. ``refused``: why not, for good."""

    after_s: float = 0.0
    carried_out: bool = True
    answered: bool = True
    refused: str = ""


OK = Turn()
NEVER = Turn(carried_out=False, answered=False)
ANSWER_LOST = Turn(answered=False)


def late(seconds: float) -> Turn:
    return Turn(after_s=seconds)


def refused(reason: str) -> Turn:
    return Turn(refused=reason)


@dataclass
class ScriptedNode:
    """One node. ``turns`` are taken one by one, then ``usual`` holds; ``silent``: nothing
    reaches it or comes from it, while what runs there runs on; ``twice``: every end is
    reported twice."""

    node_id: str
    incarnation: str = "i-1"
    slots: int = 4
    usual: Turn = OK
    turns: deque[Turn] = field(default_factory=deque)
    silent: bool = False
    deaf: bool = False
    twice: bool = False
    program: Callable[[Assignment], Program] = lambda _: Program()
    epoch: int = 0
    seq: int = 0
    spawned: list[str] = field(default_factory=list)
    """Worker ids, in order; one that stands here twice was started twice."""
    orders: list[Assignment] = field(default_factory=list)
    """Every order to launch that reached the node."""
    signals: list[StopOrder] = field(default_factory=list)
    table: dict[str, InventoryRow] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    hard_of_hearing: set[str] = field(default_factory=set)
    tombstones: set[str] = field(default_factory=set)
    unreported: deque[InventoryRow] = field(default_factory=deque)
    on_news: Callable[[], None] = lambda: None

    def running(self) -> list[str]:
        """Workers whose processes exist, in order of their start."""
        return [row.worker_id for row in self.table.values() if row.state in LIVE]

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def registration(self, *, with_inventory: bool = True) -> RegisterNodeReq:
        return RegisterNodeReq(
            node_id=self.node_id,
            task_slots=self.slots,
            incarnation=self.incarnation,
            machine_id=f"machine of {self.node_id}",
            workers=list(self.table.values()) if with_inventory else None,
            epoch=self.epoch,
        )

    def beat(self) -> HeartbeatNodeReq:
        self.on_news()
        return HeartbeatNodeReq(
            node_id=self.node_id,
            incarnation=self.incarnation,
            seq=self.next_seq(),
            epoch=self.epoch,
            digest=live_digest(self.running()),
        )

    def end(self, worker_id: str, *, exit_code: int | None = 0, signal: int | None = None) -> None:
        """A worker ends by itself, or by a signal."""
        row = self.table[worker_id]
        if row.state in LIVE:
            good = exit_code == 0 and signal is None
            state = WorkerState.FINISHED if good else WorkerState.FAILED
            self._ended(replace(row, state=state, exit_code=exit_code, signal=signal))

    def unheard(self, since_s: float) -> None:
        """No leader has answered for so many seconds: its supervisor ends the workers whose
        leases (``stop_after_s``) are over."""
        for order in self.orders:
            row = self.table.get(order.worker_id)
            lease_s = order.stop_after_s
            if row is not None and row.state in LIVE and lease_s is not None and since_s > lease_s:
                reason = f"no client renewed its lease for {lease_s:g} s"
                self._ended(replace(row, state=WorkerState.LOST, signal=TERM, reason=reason))

    def _ended(self, row: InventoryRow) -> None:
        self.table[row.worker_id] = row
        self.next_seq()
        for _ in range(2 if self.twice else 1):
            self.unreported.append(row)
        self.on_news()

    # --- what its agent does ------------------------------------------------------------

    def fence(self, epoch: int, incarnation: str) -> None:
        if epoch < self.epoch:
            raise Fenced(f"epoch {epoch} is over", epoch_seen=self.epoch)
        if incarnation != self.incarnation:
            raise Fenced(f"this is {self.incarnation}", incarnation=self.incarnation)
        self.epoch = epoch

    def start(self, order: Assignment) -> LaunchAck:
        self.orders.append(order)
        self.fence(order.epoch, order.incarnation)
        row = self.table.get(order.worker_id)
        if row is not None and row.state is WorkerState.RUNNING:
            return LaunchAck(pid=row.pid, seq=self.next_seq())
        if order.worker_id in self.ran | self.tombstones:
            ran = order.worker_id in self.ran
            text = f"{order.worker_id} never starts here"
            raise LaunchRefused(text, ran=ran, told=ran and row is None)
        program = self.program(order)
        if program.missing:
            self.tombstones.add(order.worker_id)
            raise LaunchRefused(f"no such program: {order.command[0]}")
        return self._spawn(order, program)

    def _spawn(self, order: Assignment, program: Program) -> LaunchAck:
        self.spawned.append(order.worker_id)
        self.ran.add(order.worker_id)
        if program.deaf:
            self.hard_of_hearing.add(order.worker_id)
        pid = 1_000 + len(self.spawned)
        self.table[order.worker_id] = InventoryRow(
            worker_id=order.worker_id,
            job_id=order.job_id,
            run_id=order.run_id,
            slots=order.slots,
            state=WorkerState.RUNNING,
            pid=pid,
            stamp=order.stamp,
        )
        ack = LaunchAck(pid=pid, seq=self.next_seq())
        if program.exit_code is not None:
            self.end(order.worker_id, exit_code=program.exit_code)
        return ack

    def stop(self, order: StopOrder) -> AgentStopReply:
        self.signals.append(order)
        self.fence(order.epoch, order.incarnation)
        row = self.table.get(order.worker_id)
        if row is None:
            told = order.worker_id in self.ran
            self.tombstones.add(order.worker_id)
            state: Literal["ended", "unknown"] = "ended" if told else "unknown"
            return AgentStopReply(state=state, told=told, seq=self.next_seq())
        if row.state not in LIVE:
            return AgentStopReply(state="ended", seq=self.next_seq())
        self.table[order.worker_id] = replace(row, state=WorkerState.STOPPING)
        if order.force or order.grace_s == 0:
            self._kill(order.worker_id, KILL)
        elif self.deaf or order.worker_id in self.hard_of_hearing:
            loop = asyncio.get_running_loop()
            loop.call_later(order.grace_s, self._kill, order.worker_id, KILL)
        else:
            asyncio.get_running_loop().call_soon(self._kill, order.worker_id, TERM)
        return AgentStopReply(state="stopping", seq=self.next_seq())

    def _kill(self, worker_id: str, signal: int) -> None:
        if worker_id in self.table:
            self.end(worker_id, exit_code=None, signal=signal)

    def acknowledge(self, worker_id: str) -> None:
        row = self.table.get(worker_id)
        if row is not None and row.state not in LIVE:
            del self.table[worker_id]

    def report(self, row: InventoryRow) -> WorkerFinishedReq:
        return report_of(row, self.node_id)


class ScriptedLauncher:
    """Implements ``schedulers.launcher.Launcher`` over scripted nodes, which outlive it.

    ``before_launch`` is called with each order as it leaves the engine.
    """

    def __init__(self, *nodes: ScriptedNode) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.before_launch: Callable[[Assignment], None] = lambda _: None
        self._closed = False
        self._listeners: set[asyncio.Event] = set()

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        self.before_launch(assignment)
        node = self.nodes[assignment.node_id]
        turn = node.turns.popleft() if node.turns else node.usual
        if node.silent or not turn.carried_out:
            raise await _no_answer(timeout_s)
        if turn.after_s > timeout_s:
            loop = asyncio.get_running_loop()
            loop.call_later(turn.after_s, _carry_out_unheard, node, assignment)
            raise await _no_answer(timeout_s)
        await asyncio.sleep(turn.after_s)
        if turn.refused:
            node.tombstones.add(assignment.worker_id)
            raise LaunchRefused(turn.refused)
        ack = node.start(assignment)
        if not turn.answered:
            raise await _no_answer(timeout_s)
        return ack

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        node = self.nodes[order.node_id]
        if node.silent:
            raise await _no_answer(timeout_s)
        return node.stop(order)

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        node = self.nodes[node_id]
        if node.silent:
            raise await _no_answer(timeout_s)
        node.fence(epoch, incarnation)
        return InventoryReply(
            incarnation=node.incarnation,
            seq=node.next_seq(),
            epoch=node.epoch,
            workers=list(node.table.values()),
        )

    async def reports(self) -> AsyncIterator[WorkerFinishedReq]:
        """Ends of workers, unless their node is silent; first those not acknowledged."""
        news = asyncio.Event()
        self._listeners.add(news)
        for node in self.nodes.values():
            node.on_news = news.set
            node.unreported.clear()
            node.unreported.extend(row for row in node.table.values() if row.state not in LIVE)
        try:
            while not self._closed:
                news.clear()
                for node in self.nodes.values():
                    while node.unreported and not node.silent:
                        yield node.report(node.unreported.popleft())
                await news.wait()
        finally:
            self._listeners.discard(news)

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        node = self.nodes[node_id]
        if node.silent:
            raise Unreachable(f"node {node_id} is silent")
        node.acknowledge(worker_id)

    async def close(self) -> None:
        self._closed = True
        for news in self._listeners:
            news.set()


def _carry_out_unheard(node: ScriptedNode, assignment: Assignment) -> None:
    if not node.silent:
        try:
            node.start(assignment)
        except (Fenced, LaunchRefused):
            return  # nobody hears of it


async def _no_answer(timeout_s: float) -> Unreachable:
    await asyncio.sleep(timeout_s)
    return Unreachable(f"no answer within {timeout_s:g} s")
