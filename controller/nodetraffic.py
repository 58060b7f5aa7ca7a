"""Node traffic: what agents say, as plain subscriptions.

What lives here: registrations, heartbeats and ends of workers on their way to the engine,
decoded as cheaply as their numbers ask for; and what becomes of them where they come faster
than they are taken. What may not: decisions, connections (``controller.ears``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec
import nats.errors
import structlog
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from controller.outbox import Answer, InboxStats, Offers, Outbox, Outcome, Respond
from events.codec import decode_with
from events.errors import Internal, Overloaded, SlotbusError
from events.ids import NodeId
from events.subjects import Subjects
from events.traffic import HeartbeatNodeReq, RegisterNodeReq, WorkerFinishedReq
from schedulers.decide.messages import NodeTraffic as NodeMessage

PENDING_MESSAGES: Final = 1_000_000
PENDING_BYTES: Final = 256 * 1024 * 1024
"""What nats-py may hold back for us; beyond, it drops the newest."""

TURN: Final = 4_096
"""Messages after which the loop gets a turn: nats-py doesn't wait while it has more. It reads
some 1,500 a turn, and what is not taken in the same turn would only pile up."""

LOOK: Final = 128
"""Messages after which it is looked again whether the engine is crowded."""

CROWDED: Final = 2_000
"""Messages in the engine's queue from which on registrations and heartbeats wait here."""

HELD_MOST: Final = 100_000
"""Of how many nodes' messages may wait; beyond, who asks is told ``overloaded``."""

CROWDED_PAUSE_S: Final = 0.002

REMEMBERED_SUBJECTS: Final = 50_000

Read: TypeAlias = Callable[[Msg], NodeMessage]
Publish: TypeAlias = Callable[..., Awaitable[None]]
"""A connection's own."""

_log = structlog.get_logger("slotbus.inbox")


_decode_beat: Final = msgspec.json.Decoder(HeartbeatNodeReq).decode


class _Held(Struct, frozen=True):
    """A message that waits for the engine to be less crowded."""

    kind: str
    message: Msg
    publish: Publish


class NodeTraffic:
    """The subscriptions of one leadership: ``open`` for the ends of workers, ``hear`` for
    what nodes say without end, perhaps on another connection.

    While the engine is crowded, of each node only the newest registration and heartbeat are
    held, in the place of the first: whoever sent one before it has given that one up.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        engine: Offers,
        outbox: Outbox,
        stats: InboxStats,
    ) -> None:
        self._nc = nc
        self._subjects = subjects
        self._engine = engine
        self._outbox = outbox
        self._stats = stats
        self._subscriptions: list[Subscription] = []
        self._nodes: dict[str, NodeId] = {}
        self._crowded = False
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._filled = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._reads: dict[str, Read] = {
            "heartbeat": self._read_heartbeat,
            "register": self._read_register,
            "finished": self._read_finished,
        }

    async def open(self) -> None:
        """Listens for ends of workers. Raises nats.errors.Error where the connection is
        closed."""
        self._draining = asyncio.create_task(self._drain(), name="held node traffic")
        await self._listen(self._nc, "finished", self._ends(self._nc))

    async def hear(self, nc: Client) -> None:
        """Listens for registrations and heartbeats on a connection. Raises as ``open``."""
        for kind in ("heartbeat", "register"):
            await self._listen(nc, kind, self._crowd(kind, nc))

    async def close(self) -> None:
        """Stops listening."""
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)
        self._held.clear()
        while self._subscriptions:
            with contextlib.suppress(nats.errors.Error, OSError):  # its connection is gone
                await self._subscriptions.pop().unsubscribe()

    async def _listen(
        self, nc: Client, kind: str, handle: Callable[[Msg], Awaitable[None]]
    ) -> None:
        """In no queue group: a frozen predecessor must not get a share."""
        self._subscriptions.append(
            await nc.subscribe(
                self._subjects.node("*", kind),
                cb=handle,
                pending_msgs_limit=PENDING_MESSAGES,
                pending_bytes_limit=PENDING_BYTES,
            )
        )

    def _ends(self, nc: Client) -> Callable[[Msg], Awaitable[None]]:
        taken = 0

        async def handle(message: Msg) -> None:
            nonlocal taken
            self._stats.received["finished"] += 1
            self._take("finished", message, nc.publish)
            taken += 1
            if taken % TURN == 0:
                await asyncio.sleep(0)

        return handle

    def _crowd(self, kind: str, nc: Client) -> Callable[[Msg], Awaitable[None]]:
        taken = 0
        received, held, publish = self._stats.received, self._held, nc.publish

        async def handle(message: Msg) -> None:
            nonlocal taken
            received[kind] += 1
            if held or self._crowded:
                self._hold(kind, message, publish)
            else:
                self._take(kind, message, publish)
            taken += 1
            if taken % LOOK == 0:
                self._crowded = len(self._engine) > CROWDED
                if taken % TURN == 0:
                    await asyncio.sleep(0)

        return handle

    def _take(self, kind: str, message: Msg, publish: Publish) -> None:
        answer: Answer | None = None
        if message.reply:
            answer = partial(self._answer, kind, partial(publish, message.reply))
        try:
            self._engine.offer(self._reads[kind](message), answer)
        except SlotbusError as error:
            self._refuse(kind, message, answer, error)
        except Exception as error:  # noqa: BLE001  the edge: a fault of ours kills no loop
            self._stats.faults += 1
            _log.exception("node message not handled", kind=kind, subject=message.subject)
            self._refuse(kind, message, answer, Internal(f"a fault of slotbus: {error!r}"))

    # --- where more comes than is taken -------------------------------------------------

    def _hold(self, kind: str, message: Msg, publish: Publish) -> None:
        """Keeps the newest of each subject, which names node and kind."""
        if message.subject in self._held:
            self._stats.dropped["superseded"] += 1
        elif len(self._held) >= HELD_MOST:
            text = f"messages of {HELD_MOST} nodes wait already: try a little later"
            answer = partial(self._answer, kind, partial(publish, message.reply))
            self._refuse(
                kind, message, answer if message.reply else None, Overloaded(text, limit=HELD_MOST)
            )
            return
        self._held[message.subject] = _Held(kind, message, publish)
        self._filled.set()

    async def _drain(self) -> None:
        """Hands on what is held, as fast as the engine takes it."""
        while True:
            await self._filled.wait()
            while self._held:
                for _ in range(TURN // LOOK):
                    if len(self._engine) > CROWDED:
                        await asyncio.sleep(CROWDED_PAUSE_S)
                        break
                    for _ in range(min(LOOK, len(self._held))):
                        _, held = self._held.popitem(last=False)
                        self._take(held.kind, held.message, held.publish)
                await asyncio.sleep(0)
            self._crowded = False
            self._filled.clear()

    def _answer(self, kind: str, respond: Respond, outcome: Outcome) -> None:
        self._outbox.put(kind, respond, outcome, [])

    def _refuse(self, kind: str, message: Msg, answer: Answer | None, error: SlotbusError) -> None:
        if answer is not None:
            answer(error)
            return
        self._stats.refused(kind, error)
        _log.debug("node message refused", subject=message.subject, cause=error.message)

    # --- reading ------------------------------------------------------------------------

    def _node_of(self, subject: str) -> NodeId:
        """The node a subject names; remembered, since each node says its own so often."""
        node_id = self._nodes.get(subject)
        if node_id is None:
            node_id = self._subjects.parse_node(subject).node_id
            if len(self._nodes) >= REMEMBERED_SUBJECTS:
                self._nodes.clear()
            self._nodes[subject] = node_id
        return node_id

    def _read_heartbeat(self, message: Msg) -> HeartbeatNodeReq:
        try:
            beat = _decode_beat(message.data)
            if beat.node_id == self._nodes.get(message.subject):
                return beat
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            pass
        # The slow way, where the node is new or the body does not say whose it is; it says
        # what is wrong, too.
        node_id = self._node_of(message.subject)
        return decode_with(message.data, HeartbeatNodeReq, node_id=node_id)

    def _read_register(self, message: Msg) -> RegisterNodeReq:
        node_id = self._node_of(message.subject)
        return decode_with(message.data, RegisterNodeReq, node_id=node_id)

    def _read_finished(self, message: Msg) -> WorkerFinishedReq:
        node_id = self._node_of(message.subject)
        return decode_with(message.data, WorkerFinishedReq, node_id=node_id)
