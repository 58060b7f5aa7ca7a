"""Where orders arrive: bounded, side by side, one at a time for each worker.

What lives here: from a message to its answer. What may not: what an order means.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg

from events.codec import encode
from events.errors import Internal, Invalid, Overloaded, SlotbusError, TooLarge
from schedulers.node.orders import Orders
from schedulers.node.stats import AgentStats

MAX_ORDERS: Final = 2_048
"""Taken and not answered yet; more are refused as ``overloaded``, to be sent again."""

_log = structlog.get_logger("slotbus.agent")


class _WorkerIdOnly(msgspec.Struct):
    worker_id: str = ""


class Desk:
    """``receive`` is the subscription's callback; ``run`` owns the tasks it starts."""

    def __init__(self, orders: Orders, stats: AgentStats) -> None:
        self._orders = orders
        self._stats = stats
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Owns what ``receive`` starts, until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            await asyncio.Event().wait()

    async def receive(self, message: Msg) -> None:
        """Takes one message; never raises on account of what it says."""
        if self._group is None:
            return
        if len(self._tasks) >= MAX_ORDERS:
            await self._answer(message, encode(Overloaded("too many orders at a time").body()))
            return
        task = self._group.create_task(self._serve(message), name=message.subject)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._done)

    async def finish(self, timeout_s: float) -> None:
        """Waits until everything taken is answered, ``timeout_s`` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()

    async def _serve(self, message: Msg) -> None:
        verb = message.subject.rpartition(".")[2]
        async with self._turn(message.data):
            try:
                reply = await self._orders.carry_out(verb, message.data)
                answer = None if reply is None else encode(reply)
            except Invalid as error:
                self._stats.invalid += 1
                answer = encode(error.body())
            except SlotbusError as error:
                self._stats.refused += 1
                _log.warning("order refused", verb=verb, code=error.code, cause=error.message)
                answer = encode(error.body())
            except Exception as error:  # noqa: BLE001  # the edge: an order must not end the agent
                self._stats.faults += 1
                _log.error("order failed", verb=verb, exc_info=error)
                answer = encode(Internal(f"the agent failed: {error!r}").body())
        if answer is not None:
            await self._answer(message, answer)

    async def _answer(self, message: Msg, body: bytes) -> None:
        if not message.reply:
            return
        try:
            await message.respond(body)
        except nats.errors.MaxPayloadError:
            self._stats.faults += 1
            _log.error("answer too large for NATS", subject=message.subject, bytes=len(body))
            text = f"the answer has {len(body)} bytes, which NATS does not carry"
            await self._answer(message, encode(TooLarge(text, unit="bytes").body()))
        except (nats.errors.Error, OSError) as error:
            _log.debug("answer not sent", subject=message.subject, cause=repr(error))

    @asynccontextmanager
    async def _turn(self, body: bytes) -> AsyncIterator[None]:
        """Waits until nothing else is done to the worker that the message names."""
        try:
            worker_id = msgspec.json.decode(body, type=_WorkerIdOnly).worker_id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            worker_id = ""
        if not worker_id:
            yield
            return
        lock, waiting = self._turns.get(worker_id, (asyncio.Lock(), 0))
        self._turns[worker_id] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns.pop(worker_id)
            if waiting > 1:
                self._turns[worker_id] = (lock, waiting - 1)
