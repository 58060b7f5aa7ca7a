"""Node traffic: what agents say, as plain subscriptions.

What lives here: registrations, heartbeats and ends of workers on their way to the engine,
decoded as cheaply as their numbers ask for. What may not: decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from controller.outbox import Answer, InboxStats, Offers, Outbox, Outcome
from events.codec import decode_with
from events.errors import Internal, SlotbusError
from events.ids import NodeId
from events.messages import HeartbeatNodeReq, RegisterNodeReq, WorkerFinishedReq
from events.subjects import Subjects
from schedulers.decide.messages import NodeTraffic as NodeMessage

PENDING_MESSAGES: Final = 1_000_000
PENDING_BYTES: Final = 256 * 1024 * 1024
"""What nats-py may hold back for us; beyond, it drops the newest."""

TURN: Final = 128
"""Messages after which the loop gets a turn: nats-py doesn't wait while it has more."""

CROWDED: Final = 4_000
"""Messages in the engine's queue from which on node traffic waits, so that commands still
find room."""

CROWDED_PAUSE_S: Final = 0.002

REMEMBERED_SUBJECTS: Final = 50_000

Read: TypeAlias = Callable[[Msg], NodeMessage]

_log = structlog.get_logger("slotbus.inbox")


_decode_beat: Final = msgspec.json.Decoder(HeartbeatNodeReq).decode


class NodeTraffic:
    """The subscriptions of one leadership."""

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
        self._closed = False
        self._subscriptions: list[Subscription] = []
        self._nodes: dict[str, NodeId] = {}

    async def open(self) -> None:
        """Listens, in no queue group: a frozen predecessor must not get a share. Raises
        nats.errors.Error where the connection is closed."""
        reads: dict[str, Read] = {
            "heartbeat": self._read_heartbeat,
            "register": self._read_register,
            "finished": self._read_finished,
        }
        for kind, read in reads.items():
            self._subscriptions.append(
                await self._nc.subscribe(
                    self._subjects.node("*", kind),
                    cb=self._handler(kind, read),
                    pending_msgs_limit=PENDING_MESSAGES,
                    pending_bytes_limit=PENDING_BYTES,
                )
            )

    async def close(self) -> None:
        """Stops listening. Raises nats.errors.Error where the connection is gone."""
        self._closed = True
        while self._subscriptions:
            await self._subscriptions.pop().unsubscribe()

    def _handler(self, kind: str, read: Read) -> Callable[[Msg], Awaitable[None]]:
        taken = 0
        received, offer = self._stats.received, self._engine.offer

        async def handle(message: Msg) -> None:
            nonlocal taken
            received[kind] += 1
            answer: Answer | None = None
            if message.reply:
                answer = partial(self._answer, kind, message.reply)
            try:
                offer(read(message), answer)
            except SlotbusError as error:
                self._refuse(kind, message, answer, error)
            except Exception as error:  # noqa: BLE001  the edge: a fault of ours kills no loop
                self._stats.faults += 1
                _log.exception("node message not handled", kind=kind, subject=message.subject)
                self._refuse(kind, message, answer, Internal(f"a fault of slotbus: {error!r}"))
            taken += 1
            if taken >= TURN:
                taken = 0
                await self._give_way()

        return handle

    async def _give_way(self) -> None:
        await asyncio.sleep(0)
        while len(self._engine) > CROWDED and not self._closed:  # noqa: ASYNC110  a queue's length
            await asyncio.sleep(CROWDED_PAUSE_S)

    def _answer(self, kind: str, reply: str, outcome: Outcome) -> None:
        self._outbox.put(kind, partial(self._nc.publish, reply), outcome, [])

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
