"""The node backend's launcher: asks the agent of a node, over NATS.

What lives here: orders as requests on ``agent.<node_id>.*`` and what their answers, or the
lack of one, mean to the engine. What may not: decisions, retries and the agent's side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client

from events.codec import decode, encode, error_from_body
from events.connection import request
from events.errors import CommandTimeout, Internal, Invalid, Overloaded, SlotbusError
from events.subjects import Subjects
from events.traffic import (
    AgentInventory,
    AgentStart,
    AgentStartReply,
    AgentStop,
    AgentStopReply,
    InventoryReply,
    WorkerFinishedReq,
)
from schedulers.launcher import (
    Assignment,
    Fenced,
    LaunchAck,
    LaunchDoubtful,
    StopOrder,
    Unreachable,
    refused,
)

R = TypeVar("R", bound=msgspec.Struct)

_UNSETTLED: Final = (CommandTimeout, Overloaded, Internal)
"""Answers after which nobody knows whether the order was, or will be, carried out."""


class NatsLauncher:
    """Implements ``schedulers.launcher.Launcher`` over agents. The connection stays its
    owner's; make it with ``pending_size=0``, so that no order arrives late."""

    def __init__(self, nc: Client, subjects: Subjects) -> None:
        self._nc = nc
        self._subjects = subjects
        self._closed = asyncio.Event()

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        """Starts a worker through its node's agent. Raises LaunchRefused, LaunchDoubtful,
        Fenced, Unreachable."""
        order = msgspec.convert(assignment, AgentStart, from_attributes=True)
        reply = await self._ask(assignment.node_id, "start", order, AgentStartReply, timeout_s)
        return LaunchAck(pid=reply.pid, seq=reply.seq)

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        """Begins to stop a worker. Raises LaunchRefused, LaunchDoubtful, Fenced, Unreachable."""
        message = msgspec.convert(order, AgentStop, from_attributes=True)
        return await self._ask(order.node_id, "stop", message, AgentStopReply, timeout_s)

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        """Raises the node's epoch and lists its workers. Raises Fenced where another
        incarnation answers, Unreachable."""
        message = AgentInventory(epoch=epoch)
        reply = await self._ask(node_id, "inventory", message, InventoryReply, timeout_s)
        if reply.incarnation != incarnation:
            raise Fenced(
                f"node {node_id} is {reply.incarnation} by now, not {incarnation}",
                node_id=node_id,
                incarnation=reply.incarnation,
            )
        return reply

    async def reports(self) -> AsyncIterator[WorkerFinishedReq]:
        """Nothing, until ``close``: agents report on ``node.<node_id>.finished``."""
        await self._closed.wait()
        nothing: tuple[WorkerFinishedReq, ...] = ()
        for report in nothing:
            yield report

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        """Nothing to do: the answer to the agent's own report acknowledges it."""

    async def close(self) -> None:
        """Ends ``reports``."""
        self._closed.set()

    async def _ask(
        self, node_id: str, verb: str, message: msgspec.Struct, kind: type[R], timeout_s: float
    ) -> R:
        subject = self._subjects.agent(node_id, verb)
        try:
            answer = await request(self._nc, subject, encode(message), timeout_s)
        except nats.errors.NoRespondersError as error:
            raise _unreachable(node_id, "no agent listens there") from error
        except nats.errors.MaxPayloadError as error:
            raise LaunchDoubtful(
                f"the order is larger than a NATS message may be ({self._nc.max_payload} bytes): "
                "raise max_payload, or pass the program by its address",
                node_id=node_id,
            ) from error
        except TimeoutError as error:
            raise _unreachable(node_id, f"no answer within {timeout_s:g} s") from error
        except (nats.errors.Error, OSError) as error:
            raise _unreachable(node_id, str(error) or repr(error)) from error
        return _read(node_id, answer.data, kind)


def _read(node_id: str, body: bytes, kind: type[R]) -> R:
    """The answer in ``body``. Raises LaunchRefused, LaunchDoubtful, Fenced, Unreachable."""
    refusal = error_from_body(body)
    if refusal is not None:
        raise _refused(node_id, refusal) from refusal
    try:
        return decode(body, kind)
    except Invalid as error:
        raise _unreachable(node_id, f"its answer can't be read: {error}") from error


def _refused(node_id: str, refusal: SlotbusError) -> SlotbusError:
    if isinstance(refusal, _UNSETTLED):
        return _unreachable(node_id, refusal.message)
    facts = {**refusal.facts, "node_id": node_id, "refusal": refusal.code}
    if facts.keys() & {"epoch_seen", "incarnation"}:
        return Fenced(refusal.message, **facts)
    return refused(refusal.message, facts)


def _unreachable(node_id: str, cause: str) -> Unreachable:
    return Unreachable(f"node {node_id}: {cause}", node_id=node_id)
