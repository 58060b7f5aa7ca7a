"""An agent's presence: it registers until it is accepted, then it beats.

What lives here: register, heartbeat, and what their answers change: standing, epoch and the
workers' lease. What may not: orders, and ends of workers.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
import structlog

from events.codec import decode, encode, error_from_body
from events.errors import DuplicateNode, Internal, SlotbusError, TooLarge, UnknownNode
from events.ids import DEFAULT_HEARTBEAT_S
from events.pulse import live_digest
from events.subjects import Subjects
from events.traffic import HeartbeatNodeReq, HeartbeatReply, RegisterNodeReq, RegisterReply
from schedulers.backoff import Backoff
from schedulers.node.config import AgentConfig
from schedulers.node.identity import Identity
from schedulers.node.keeper import Keeper
from schedulers.node.link import Link, NotConnected, Unanswered
from schedulers.node.roster import LIVE
from schedulers.node.stats import AgentStats

RETRY_FIRST_S: Final = 0.2
RETRY_MOST_S: Final = 5.0
DUPLICATE_FIRST_S: Final = 2.0
DUPLICATE_MOST_S: Final = 30.0
HEARTBEAT_LEAST_S: Final = 0.02
HEARTBEAT_MOST_S: Final = 600.0
MAX_INVENTORY_BYTES: Final = 768 * 1024
"""A registration with a longer inventory leaves it out: the leader asks for it."""

R = TypeVar("R", bound=msgspec.Struct)
_log = structlog.get_logger("slotbus.agent")


class Standing(StrEnum):
    """``duplicate``: another agent holds our node_id and is alive."""

    NEW = "new"
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"


class Presence:
    """``run`` is a task of its owner; ``kick`` makes it speak at once."""

    def __init__(
        self,
        config: AgentConfig,
        identity: Identity,
        version: str,
        link: Link,
        keeper: Keeper,
        stats: AgentStats,
        on_accepted: Callable[[], None],
    ) -> None:
        self._config = config
        self._identity = identity
        self._version = version
        self._subjects = Subjects(config.root)
        self._link = link
        self._keeper = keeper
        self._stats = stats
        self._on_accepted = on_accepted
        self._kicked = asyncio.Event()
        self._retry = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        self._duplicate_retry = Backoff(DUPLICATE_FIRST_S, DUPLICATE_MOST_S)
        self._heartbeat_s = DEFAULT_HEARTBEAT_S
        self._said = ""
        self.standing = Standing.NEW
        self.accepted = asyncio.Event()

    def kick(self) -> None:
        """Something changed (link, supervisor): speak now, not at the next beat."""
        self._kicked.set()

    def forgotten(self) -> None:
        """The leader said in another answer that it doesn't know us."""
        if self.standing is Standing.ACCEPTED:
            self._become(Standing.NEW)
            self.kick()

    async def run(self) -> None:
        """Registers and beats, until cancelled."""
        while True:
            self._kicked.clear()
            try:
                if self.standing is Standing.ACCEPTED:
                    await self._beat()
                    pause_s = self._heartbeat_s
                else:
                    await self._register()
                    pause_s = self._heartbeat_s
                self._retry.reset()
            except DuplicateNode as error:
                self._become(Standing.DUPLICATE)
                self._say(f"another agent holds this node_id: {error.message}")
                pause_s = self._duplicate_retry.next()
            except UnknownNode:
                self._become(Standing.NEW)
                self._say("the controller does not know this node, registering again")
                pause_s = self._retry.next()
            except NotConnected:
                pause_s = self._retry.next()  # and a kick comes with the connection
            except SlotbusError as error:
                self._stats.unanswered += 1
                self._say(f"no good answer from a controller: {error.message}")
                pause_s = self._retry.next()
            await self._pause(pause_s)

    async def _register(self) -> None:
        """Raises SlotbusError."""
        inventory = await self._keeper.inventory()
        request = RegisterNodeReq(
            node_id=self._identity.node_id,
            task_slots=self._config.slots,
            incarnation=self._identity.incarnation,
            machine_id=self._identity.machine_id,
            addr=self._config.addr or socket.gethostname(),
            labels=self._config.labels,
            version=self._version,
            workers=inventory.workers,
            epoch=self._keeper.epoch,
        )
        if len(encode(request)) > MAX_INVENTORY_BYTES:
            request = msgspec.structs.replace(request, workers=None)
        sent_at = _now()
        reply = await self._ask("register", request, RegisterReply)
        await self._heard(reply.epoch, sent_at)
        self._heartbeat_s = min(HEARTBEAT_MOST_S, max(HEARTBEAT_LEAST_S, reply.heartbeat_s))
        self._stats.registrations += 1
        self._duplicate_retry.reset()
        self._become(Standing.ACCEPTED)
        self._say(f"registered, a heartbeat every {self._heartbeat_s:g} s", good=True)
        self._on_accepted()

    async def _beat(self) -> None:
        """Raises SlotbusError."""
        inventory = await self._keeper.inventory()
        live = [row.worker_id for row in inventory.workers if row.state in LIVE]
        request = HeartbeatNodeReq(
            node_id=self._identity.node_id,
            incarnation=self._identity.incarnation,
            seq=inventory.seq,
            epoch=self._keeper.epoch,
            digest=live_digest(live),
        )
        sent_at = _now()
        reply = await self._ask("heartbeat", request, HeartbeatReply)
        await self._heard(reply.epoch, sent_at)
        self._stats.heartbeats += 1
        self._say("heartbeats are answered", good=True)

    async def _heard(self, epoch: int, sent_at: float) -> None:
        """A leader answered what was sent then: the workers' lease counts from there.

        Raises Unanswered where it is a leader of the past, SlotbusError.
        """
        if epoch < self._keeper.epoch:
            raise Unanswered(f"the answer is of epoch {epoch}, {self._keeper.epoch} was seen")
        if epoch > self._keeper.epoch:
            await self._keeper.inventory(epoch)
        await self._keeper.renew(sent_at)

    async def _ask(self, verb: str, request: msgspec.Struct, kind: type[R]) -> R:
        """Raises SlotbusError."""
        subject = self._subjects.node(self._identity.node_id, verb)
        timeout_s = self._config.request_timeout_s
        if self.standing is Standing.ACCEPTED:
            timeout_s = min(timeout_s, max(1.0, self._heartbeat_s))
        return read_answer(await self._link.ask(subject, encode(request), timeout_s), kind)

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._kicked.wait()
        except TimeoutError:
            return
        # a whole fleet is kicked by the same event
        await asyncio.sleep(random.uniform(0, min(0.1, self._heartbeat_s / 4)))

    def _become(self, standing: Standing) -> None:
        self.standing = standing
        self._stats.standing = standing.value
        if standing is Standing.ACCEPTED:
            self.accepted.set()
        else:
            self.accepted.clear()

    def _say(self, what: str, *, good: bool = False) -> None:
        """One line for each change, not one for each attempt."""
        if what == self._said or (good and self._said.startswith("registered")):
            return
        self._said = what
        (_log.info if good else _log.warning)(what, node_id=self._identity.node_id)


def read_answer(body: bytes, kind: type[R]) -> R:
    """Raises the SlotbusError that the body holds; Internal if it can't be read."""
    error = error_from_body(body)
    if error is not None:
        raise error
    try:
        return decode(body, kind)
    except (SlotbusError, TooLarge) as error:
        raise Internal(f"an answer can't be read: {error}") from error


def _now() -> float:
    """Seconds since boot with those in suspend, as the supervisor counts its leases."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
