"""A cluster in virtual time: the real engine and its log, on nodes that do as a test says.

What lives here: ``Cluster``, what a test does to it and asks of it. What may not: pytest
(``slotbus_pytest``), what a node does with an order (``slotbus_pytest.scripted``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from events.audit import audit
from events.errors import SlotbusError, UnknownNode
from events.messages import (
    Command,
    ConfirmDeadReply,
    ConfirmDeadReq,
    CordonReq,
    DrainReply,
    DrainReq,
    NodeReply,
    StartPipelineReq,
    StartReply,
    StopReply,
    StopWorkersReq,
    UncordonReq,
)
from schedulers.backend import Backend
from schedulers.chance import CountingChance
from schedulers.clock import MonotonicClock
from schedulers.decide import Rules
from schedulers.decide.messages import Reply
from schedulers.engine import Engine, EngineSettings
from schedulers.launcher import Assignment
from schedulers.replaying import replay
from slotbus_pytest.scripted import OK, Program, ScriptedLauncher, ScriptedNode, refused
from slotbus_pytest.seen import Seen
from slotbus_pytest.virtual import VirtualLoop

DAWN: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""When every virtual cluster begins."""

LONGEST_S: Final = 86_400.0
"""Virtual seconds that one test may take."""

TURNS: Final = 1_000
"""Of the loop, in which what follows at once has followed."""

QUIET_TURNS: Final = 20
SHELL_SIGNAL: Final = 128
"""Exit codes above are a shell's way to name a signal."""

T = TypeVar("T")


class Cluster(Seen):
    """``nodes`` named n1, n2, ... with ``slots`` each, and a leader. Whatever a test awaits
    passes in virtual time, heartbeats included; what it does has had its consequences when
    the call returns."""

    def __init__(
        self,
        *,
        nodes: int = 3,
        slots: int = 4,
        rules: Rules | None = None,
        labels: dict[str, dict[str, str]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.rules = rules or Rules(**settings)
        self._loop = VirtualLoop()
        self._chance = CountingChance()
        self._epoch = 0
        self._labels = labels or {}
        self._programs: dict[str, Program] = {}
        self._frozen: dict[str, list[Callable[[], None]]] = {}
        self._answered: dict[str, float] = {}
        """When each node sent what a leader answered last."""
        self._beating: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        for number in range(1, nodes + 1):
            self._make_node(f"n{number}", slots)

    # --- its life (the fixture's) -------------------------------------------------------

    def open(self) -> None:
        """A leader leads, and all nodes are known to it."""
        self.run(self._lead())

    def close(self) -> None:
        """Ends everything; what is left is the log."""
        try:
            self.run(self._end())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the cluster's loop. Raises TimeoutError after a virtual day."""

        async def bounded() -> T:
            async with asyncio.timeout(LONGEST_S):
                return await work

        return self._loop.run_until_complete(bounded())

    def check(self) -> None:
        """Raises AssertionError for a broken law, or where the recording of all this leads to
        another log."""
        records = self.records
        found = audit(records, self.now)
        assert not found, "\n".join(f"law {v.law} at {v.position}: {v.sentence}" for v in found)
        again = replay(self.recording())
        assert again.records == records, "the recording leads to another log"

    @property
    def engine(self) -> Engine:
        """The leader, for what this class does not offer."""
        assert self._engine is not None
        return self._engine

    # --- commands -----------------------------------------------------------------------

    async def start(self, job_id: str, slots: int = 1, **fields: Any) -> StartReply:
        """Starts a job, as ``slotbus start`` does. Raises NotEnoughSlots and the like."""
        reply = await self._send(StartPipelineReq, job_id=job_id, slots=slots, **fields)
        assert isinstance(reply, StartReply)
        return reply

    async def stop(self, job_id: str, **fields: Any) -> StopReply:
        """Stops a job. Raises UnknownJob."""
        reply = await self._send(StopWorkersReq, job_id=job_id, **fields)
        assert isinstance(reply, StopReply)
        return reply

    async def cordon(self, node_id: str) -> NodeReply:
        """No new workers on a node. Raises UnknownNode."""
        reply = await self._send(CordonReq, node_id=node_id)
        assert isinstance(reply, NodeReply)
        return reply

    async def uncordon(self, node_id: str) -> NodeReply:
        """New workers are welcome again. Raises UnknownNode."""
        reply = await self._send(UncordonReq, node_id=node_id)
        assert isinstance(reply, NodeReply)
        return reply

    async def drain(self, node_id: str, **fields: Any) -> DrainReply:
        """Empties a node; returns at its end or the deadline (``deadline_s``), which may be
        sooner than it was waited for. Raises UnknownNode, CommandTimeout."""
        reply = await self._send(DrainReq, node_id=node_id, **fields)
        assert isinstance(reply, DrainReply)
        await self.settle()
        return reply

    async def confirm_dead(self, node_id: str) -> ConfirmDeadReply:
        """Says that nothing runs on an expired node. Raises UnknownNode, NodeAlive."""
        reply = await self._send(ConfirmDeadReq, node_id=node_id)
        assert isinstance(reply, ConfirmDeadReply)
        await self.settle()
        return reply

    # --- what happens -------------------------------------------------------------------

    async def advance(self, seconds: float) -> None:
        """Time passes, and all that is due in it happens."""
        await asyncio.sleep(seconds)
        await self.settle()

    async def add_node(self, node_id: str, slots: int = 4, **labels: str) -> None:
        """Another machine joins."""
        self._labels[node_id] = labels
        await self._speak(self._make_node(node_id, slots))
        await self.settle()

    async def kill(self, node_id: str) -> None:
        """The machine loses its power, with all that runs on it."""
        node = self._node(node_id)
        node.silent = True
        node.table.clear()
        node.unreported.clear()
        self._frozen.pop(node_id, None)
        await self.settle()

    async def reboot(self, node_id: str) -> None:
        """A machine (killed or not) comes back with nothing running, as a new incarnation."""
        await self.kill(node_id)
        await self.restart_agent(node_id)

    async def restart_agent(self, node_id: str) -> None:
        """The agent starts anew; what runs on the node runs on."""
        node = self._node(node_id)
        count = int(node.incarnation.rpartition("-")[2])
        node.incarnation, node.silent = f"{node_id}-{count + 1}", False
        await self._register(node)

    async def partition(self, *node_ids: str) -> None:
        """These nodes and the leader can't reach each other; workers run on, and may end."""
        for node_id in node_ids:
            self._node(node_id).silent = True
        await self.settle()

    async def heal(self, *node_ids: str) -> None:
        """They can again. (A machine that was killed needs ``reboot``.)"""
        for node_id in node_ids:
            node = self._node(node_id)
            node.silent = False
            await self._speak(node)
        await self.settle()

    async def freeze(self, node_id: str) -> None:
        """The whole machine stands still (SIGSTOP, a paused VM): nothing on it ends, either."""
        self._frozen.setdefault(node_id, [])
        await self.partition(node_id)

    async def thaw(self, node_id: str) -> None:
        """It goes on where it stood; exits that fell into its sleep happen now."""
        for happen in self._frozen.pop(node_id, []):
            happen()
        await self.heal(node_id)

    async def worker_exits(
        self, worker_id: str, exit_code: int | None = 0, *, signal: int | None = None
    ) -> None:
        """A worker's process ends by itself. 137 stands for KILL, as in a shell."""
        if signal is None and exit_code is not None and exit_code > SHELL_SIGNAL:
            signal = exit_code - SHELL_SIGNAL
        if signal is not None:
            exit_code = None
        node = self._node_of(worker_id)

        def happen() -> None:
            node.end(worker_id, exit_code=exit_code, signal=signal)

        if node.node_id in self._frozen:
            self._frozen[node.node_id].append(happen)
        else:
            happen()
        await self.settle()

    def program(
        self, job_id: str, *, exits: int | None = None, deaf: bool = False, missing: bool = False
    ) -> None:
        """What the workers of a job are: they end at once with a code, don't hear TERM, or
        can't be started at all. Else they run until they are stopped."""
        self._programs[job_id] = Program(exit_code=exits, deaf=deaf, missing=missing)

    def refuse_launches(self, node_id: str, reason: str = "no space left on device") -> None:
        """From here on this node can't start workers."""
        self._node(node_id).usual = refused(reason)

    def allow_launches(self, node_id: str) -> None:
        """It can again."""
        self._node(node_id).usual = OK

    async def new_leader(self) -> None:
        """The controller dies; another one reads the log and takes over."""
        await self._end()
        await self._lead()

    async def settle(self) -> None:
        """All that follows at once has happened; no time passes."""
        quiet = 0
        for _ in range(TURNS):
            await asyncio.sleep(0)
            quiet = 0 if len(self.engine) else quiet + 1
            if quiet > QUIET_TURNS:
                return

    # --- inside -------------------------------------------------------------------------

    def _make_node(self, node_id: str, slots: int) -> ScriptedNode:
        node = ScriptedNode(node_id, incarnation=f"{node_id}-1", slots=slots)
        node.program = self._program_of
        self._nodes[node_id] = node
        return node

    def _program_of(self, order: Assignment) -> Program:
        return self._programs.get(order.job_id, Program())

    async def _send(self, kind: type[Command], **fields: Any) -> Reply:
        given = msgspec.to_builtins(fields)
        return await self.engine.submit(msgspec.convert(given, kind))

    async def _lead(self) -> None:
        self._epoch += 1
        launcher = ScriptedLauncher(*self._nodes.values())
        launcher.nodes = self._nodes
        clock = MonotonicClock(self._loop.time, wall=DAWN)
        self._engine = Engine(
            Backend(name="node", launcher=launcher),
            self.log,
            EngineSettings(cluster="test", rules=self.rules, epoch=self._epoch),
            clock=clock,
            chance=self._chance,
        )
        self._engine.record(self.recorder)
        await self._engine.start()
        for node in self._nodes.values():
            await self._speak(node)
        self._beating = asyncio.create_task(self._beat())
        await self.settle()

    async def _end(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        await self.engine.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.rules.heartbeat_s)
            for node in list(self._nodes.values()):
                await self._speak(node)
                if node.node_id not in self._frozen:
                    answered_at = self._answered.get(node.node_id, self._loop.time())
                    node.unheard(self._loop.time() - answered_at)

    async def _speak(self, node: ScriptedNode) -> None:
        """One sign of life, as an agent gives it."""
        if node.silent:
            return
        sent_at = self._loop.time()
        try:
            await self.engine.submit(node.beat())
        except UnknownNode:
            await self._register(node)
        except SlotbusError:
            return  # no leader hears it now; the next heartbeat is due soon
        self._answered[node.node_id] = sent_at

    async def _register(self, node: ScriptedNode) -> None:
        request = node.registration()
        labels = self._labels.get(node.node_id, {})
        await self.engine.submit(msgspec.structs.replace(request, labels=labels))
        await self.settle()
