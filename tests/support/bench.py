"""An engine on scripted nodes, in virtual time: nothing here really sleeps.

What lives here: ``Bench`` (the engine, its log, nodes that beat), a log that fails as told.
What may not: what the nodes do (``scripted``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from events.errors import SlotbusError, UnknownNode
from events.facts import AnyFact, Record
from events.ids import START, Position
from events.ledger import Ledger
from events.log import EventLog, MemoryLog
from events.messages import StartPipelineReq, StartReply, StopReply, StopWorkersReq
from events.queries import QueryNodes, QueryWorkers, WorkerRow, WorkersReply
from schedulers.backend import Backend
from schedulers.decide import Rules
from schedulers.engine import Engine, EngineSettings
from schedulers.inbox import Answer
from tests.support.scripted import ScriptedLauncher, ScriptedNode

QUIET_S = 0.3
"""Longer than the first pauses of a retry: what can be done at once is done by then."""


class FaultyLog:
    """A log in memory that is slow, or fails, when a test says so.

    ``delay_s``: how long an append takes. ``fail_next``: raised by the next append;
    ``stored_first``: how many of its records it stores before that.
    """

    def __init__(self) -> None:
        self.inner = MemoryLog()
        self.delay_s = 0.0
        self.fail_next: BaseException | None = None
        self.stored_first = 0
        self.unreadable: SlotbusError | None = None
        self.appends: list[list[Record]] = []

    def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        if self.unreadable is not None:
            raise self.unreadable
        return self.inner.read(after)

    async def append(
        self, records: Sequence[Record], *, expected: Position, timeout_s: float
    ) -> None:
        await asyncio.sleep(self.delay_s)
        error, self.fail_next = self.fail_next, None
        if error is not None:
            some = records[: self.stored_first]
            if some:
                await self.inner.append(some, expected=expected, timeout_s=timeout_s)
            raise error
        await self.inner.append(records, expected=expected, timeout_s=timeout_s)
        self.appends.append(list(records))

    async def close(self) -> None:
        await self.inner.close()


async def facts_of(log: EventLog) -> list[AnyFact]:
    """Everything that happened, in order."""
    return [fact async for batch in log.read() for record in batch for fact in record.events]


async def fold(log: EventLog) -> Ledger:
    ledger = Ledger()
    async for batch in log.read():
        for record in batch:
            ledger.apply(record)
    return ledger


class Bench:
    """``engine`` leads over ``log``; ``beat`` makes the nodes that are not silent speak, as
    their agents would: register when unknown, else a heartbeat."""

    def __init__(
        self,
        *nodes: ScriptedNode,
        log: EventLog | None = None,
        rules: Rules | None = None,
        may_act: Callable[[], float] = lambda: math.inf,
        queue_limit: int = 10_000,
    ) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.launcher = ScriptedLauncher(*nodes)
        self.log = log or MemoryLog()
        self.rules = rules or Rules()
        self.engine = Engine(
            Backend(name="node", launcher=self.launcher),
            self.log,
            EngineSettings(cluster="test", rules=self.rules, queue_limit=queue_limit),
            may_act=may_act,
        )
        self._beating: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.engine.start()
        for node in self.nodes.values():
            await self.speak(node)
        self._beating = asyncio.create_task(self._beat())

    async def close(self) -> None:
        """As a controller that is killed: nothing is stopped."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self.engine.close()

    async def speak(self, node: ScriptedNode) -> None:
        """One sign of life of a node. Raises SlotbusError."""
        if node.silent:
            return
        try:
            await self.engine.submit(node.beat())
        except UnknownNode:
            await self.engine.submit(node.registration())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.rules.heartbeat_s)
            for node in self.nodes.values():
                try:
                    await self.speak(node)
                except SlotbusError:
                    return

    async def start(self, job_id: str, slots: int, **fields: object) -> StartReply:
        reply = await self.engine.submit(start(job_id, slots, **fields))
        assert isinstance(reply, StartReply)
        return reply

    async def stop(self, job_id: str, **fields: object) -> StopReply:
        request = msgspec.convert({"job_id": job_id, **fields}, StopWorkersReq)
        reply = await self.engine.submit(request)
        assert isinstance(reply, StopReply)
        return reply

    async def workers(self, *, everything: bool = False) -> list[WorkerRow]:
        reply = await self.engine.submit(QueryWorkers(all=everything))
        assert isinstance(reply, WorkersReply)
        return reply.workers

    async def states(self) -> dict[str, str]:
        """The state of each node."""
        await self.engine.submit(QueryNodes())
        return {n.node_id: str(n.state) for n in self.engine.ledger.nodes.values()}

    def running(self) -> list[str]:
        """What the process tables of all nodes say."""
        return sorted(w for node in self.nodes.values() for w in node.running())

    def spawned(self) -> list[str]:
        return [w for node in self.nodes.values() for w in node.spawned]

    async def check(self) -> None:
        """The ledger is the log's, and every process has one decision behind it."""
        await self.engine.submit(QueryNodes())
        assert self.engine.ledger.snapshot() == (await fold(self.log)).snapshot()
        spawned = self.spawned()
        assert len(spawned) == len(set(spawned)), "a worker was started twice"
        assert set(spawned) <= set(self.engine.ledger.workers)


def start(job_id: str, slots: int, **fields: object) -> StartPipelineReq:
    """As it comes from the wire: 3 seconds are 3.0."""
    given = msgspec.to_builtins({"job_id": job_id, "slots": slots, **fields})
    return msgspec.convert(given, StartPipelineReq)


@asynccontextmanager
async def running_bench(*nodes: ScriptedNode, **settings: object) -> AsyncIterator[Bench]:
    """A bench for a block of code."""
    bench = Bench(*nodes, **settings)  # type: ignore[arg-type]
    try:
        await bench.open()
        yield bench
    finally:
        await bench.close()


class Heard:
    """An answer that counts how often it was given."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.answered = asyncio.Event()

    def __call__(self, answer: object) -> None:
        self.answers.append(answer)
        self.answered.set()

    @property
    def one(self) -> object:
        assert len(self.answers) == 1, self.answers
        return self.answers[0]

    def as_answer(self) -> Answer:
        return self
