"""The orders of a leader: start, stop, inventory and logs, fenced and one at a time.

What lives here: what an agent does and answers for one order. What may not: registration,
reports, and how a worker is spawned (that is the supervisor's).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from events.codec import decode
from events.errors import Invalid, NotEnoughSlots, StartFailed
from events.traffic import (
    AgentAbout,
    AgentAboutReply,
    AgentInventory,
    AgentLogs,
    AgentStart,
    AgentStartReply,
    AgentStop,
    AgentStopReply,
    InventoryReply,
)
from schedulers.node.identity import Identity, is_later
from schedulers.node.keeper import Keeper
from schedulers.node.roster import Roster
from schedulers.node.stats import AgentStats
from schedulers.shipping import LogShipper, stored_tail
from schedulers.supervisor.api import WorkerSpec

ACCEPTED_WAIT_S: Final = 2.0
"""An inventory asked for while our registration is on its way waits this long for it."""

_log = structlog.get_logger("slotbus.agent")

Reply = msgspec.Struct | None
"""None: the order is meant for another agent of this name, which will answer."""


class Orders:
    """Carries out orders. Idempotent by worker id; every refusal of a start is final,
    since a tombstone then stands for the worker."""

    def __init__(
        self,
        identity: Identity,
        capacity: int,
        worker_command: list[str],
        keeper: Keeper,
        roster: Roster,
        shipper: LogShipper,
        stats: AgentStats,
        accepted: asyncio.Event,
    ) -> None:
        self._identity = identity
        self._capacity = capacity
        self._worker_command = worker_command
        self._keeper = keeper
        self._roster = roster
        self._shipper = shipper
        self._stats = stats
        self._accepted = accepted
        self._handlers: Mapping[str, Callable[[bytes], Awaitable[Reply]]] = {
            "start": self._on_start,
            "stop": self._on_stop,
            "inventory": self._on_inventory,
            "logs": self._on_logs,
            "about": self._on_about,
        }

    async def carry_out(self, verb: str, body: bytes) -> Reply:
        """Raises SlotbusError: the refusal to be answered."""
        handler = self._handlers.get(verb)
        if handler is None:
            raise Invalid(f"an agent knows {', '.join(self._handlers)}, not {verb!r}", "subject")
        return await handler(body)

    async def _on_about(self, body: bytes) -> Reply:
        decode(body, AgentAbout)
        return AgentAboutReply(
            node_id=self._identity.node_id,
            incarnation=self._identity.incarnation,
            epoch=self._stats.epoch,
            now=datetime.now(UTC),
            standing=self._stats.standing,
        )

    async def _on_start(self, body: bytes) -> Reply:
        order = decode(body, AgentStart)
        if self._is_for_another(order.incarnation):
            return None
        self._fence(order.epoch, order.incarnation)
        if not self._roster.holds(order.worker_id):
            await self._admit(order)
        self._roster.reserve(order.worker_id, order.slots)
        try:
            spawned = await self._keeper.launch(self._spec(order), order.epoch)
        finally:
            self._roster.release(order.worker_id)
        self._roster.launched(order.worker_id, order.slots, spawned.seq)
        self._shipper.follow(order.worker_id, order.job_id, order.run_id)
        self._stats.starts += 1
        _log.info(
            "worker started",
            worker_id=order.worker_id,
            job_id=order.job_id,
            run_id=order.run_id,
            slots=order.slots,
            pid=spawned.pid,
        )
        return AgentStartReply(pid=spawned.pid, seq=spawned.seq)

    async def _on_stop(self, body: bytes) -> Reply:
        order = decode(body, AgentStop)
        if self._is_for_another(order.incarnation):
            return None
        self._fence(order.epoch, order.incarnation)
        reply = await self._keeper.stop(
            order.worker_id, force=order.force, grace_s=order.grace_s, epoch=order.epoch
        )
        self._stats.stops += 1
        _log.info(
            "worker is being stopped" if reply.state == "stopping" else "nothing to stop",
            worker_id=order.worker_id,
            force=order.force,
            state=reply.state,
        )
        return reply

    async def _on_inventory(self, body: bytes) -> Reply:
        order = decode(body, AgentInventory)
        if not await self._is_accepted():
            self._stats.ignored += 1
            return None
        self._fence(order.epoch)
        inventory = await self._keeper.inventory(order.epoch)
        self._stats.inventories += 1
        return InventoryReply(
            incarnation=self._identity.incarnation,
            seq=inventory.seq,
            epoch=inventory.epoch,
            workers=inventory.workers,
        )

    async def _on_logs(self, body: bytes) -> Reply:
        if not self._accepted.is_set():
            return None
        return await stored_tail(self._keeper, decode(body, AgentLogs))

    async def _admit(self, order: AgentStart) -> None:
        """Raises the refusal of a worker that can't be taken, once it can never run, with the
        fact whether it ``ran`` before: the answer to an earlier order may have been lost. What
        the roster says is looked at again with the supervisor before that."""
        if self._refusal(order) is None:
            return
        await self._keeper.inventory()
        if self._roster.holds(order.worker_id):
            return
        refusal = self._refusal(order)
        if refusal is not None:
            buried = await self._bury(order)
            # What it was before counts, and not why it can't be taken now.
            refusal.facts |= {"ran": buried.state != "unknown", "told": buried.told}
            raise refusal

    def _refusal(self, order: AgentStart) -> StartFailed | NotEnoughSlots | None:
        if not self._command(order):
            return StartFailed(
                "nothing to execute: neither the job, nor this agent (--worker-command), nor "
                "the controller names a worker command",
                node_id=self._identity.node_id,
            )
        free = max(0, self._capacity - self._roster.used)
        if order.slots > free:
            return NotEnoughSlots(order.slots - free, free, node_id=self._identity.node_id)
        return None

    async def _bury(self, order: AgentStart) -> AgentStopReply:
        """The worker doesn't run; from now on it never will."""
        return await self._keeper.stop(order.worker_id, force=True, grace_s=0.0, epoch=order.epoch)

    def _is_for_another(self, incarnation: str) -> bool:
        """Whether another agent under our name is meant: one that started after us, or the
        one that was accepted instead of us. Our answer would be taken for its refusal."""
        ours = self._identity.incarnation
        if incarnation == ours:
            return False
        if self._accepted.is_set() and not is_later(incarnation, than=ours):
            return False
        self._stats.ignored += 1
        return True

    async def _is_accepted(self) -> bool:
        try:
            async with asyncio.timeout(ACCEPTED_WAIT_S):
                await self._accepted.wait()
        except TimeoutError:
            return False
        return True

    def _fence(self, epoch: int, incarnation: str | None = None) -> None:
        """Raises StartFailed, with what we are as a fact, for an order of the past."""
        ours = self._identity.incarnation
        if epoch < self._keeper.epoch:
            raise StartFailed(
                f"epoch {epoch} is over: this node has seen {self._keeper.epoch}",
                epoch_seen=self._keeper.epoch,
            )
        if incarnation not in (None, ours):
            raise StartFailed(
                f"incarnation {incarnation} is over: this agent is {ours}", incarnation=ours
            )

    def _command(self, order: AgentStart) -> list[str]:
        return order.command or self._worker_command or order.default_command

    def _spec(self, order: AgentStart) -> WorkerSpec:
        return WorkerSpec(
            worker_id=order.worker_id,
            job_id=order.job_id,
            run_id=order.run_id,
            slots=order.slots,
            node_id=self._identity.node_id,
            command=self._command(order),
            stamp=order.stamp,
            env_vars=order.env_vars,
            program=order.program,
            name=order.name,
            hash=order.hash,
            wasm_path=order.wasm_path,
            stop_after_s=order.stop_after_s,
        )
