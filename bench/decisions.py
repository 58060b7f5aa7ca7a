"""Decisions: commands taken, decided, stored and answered, against storing alone.

What lives here: an engine over the real log, asked from within its process, against bare
compare-and-swap appends of the same bytes. What may not: the way of a command over NATS.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Final

from bench.appends import BareAppends
from bench.measure import ROUNDS, Goal, Pair, Row, compare, seconds_of
from bench.rig import linked, nats_server
from events.collector import calm_collector
from events.errors import SlotbusError
from events.jetstream import JetStreamLog
from events.messages import CordonReq, UncordonReq
from events.subjects import Subjects
from events.traffic import RegisterNodeReq
from schedulers.decide.messages import Reply
from schedulers.engine import Engine, EngineSettings
from schedulers.node.backend import node_backend

AT_ONCE: Final = 5_000
IDLE: Final = 60
PAUSE_S: Final = 0.002
"""Between decisions of an engine that has nothing else to do."""

TIMEOUT_S: Final = 60.0


async def rows() -> list[Row]:
    calm_collector()
    subjects = Subjects("decided")
    async with nats_server() as server, linked(server) as nc:
        log = JetStreamLog(nc, subjects)
        engine = Engine(node_backend(nc, subjects), log, EngineSettings(epoch=1))
        await engine.start()
        await engine.submit(
            RegisterNodeReq(node_id="n1", task_slots=8, incarnation="i1", workers=[])
        )
        bare = await BareAppends.open(nc, subjects.log_stream)
        gathered = [await _gathered(engine, bare, number) for number in range(ROUNDS)]
        idle = [await _idle(engine, bare, number) for number in range(ROUNDS)]
        await engine.close()
    return [
        compare(
            f"decisions, {AT_ONCE:,} commands at once",
            gathered,
            "1/s",
            "appends of the same messages, one by one",
            [Goal(10_000, at_least=True, of="value")],
        ),
        compare(
            "a decision when idle, p50",
            idle,
            "s",
            "append of the same record, p50",
            [Goal(1.5)],
        ),
    ]


def _command(number: int, index: int) -> CordonReq | UncordonReq:
    kind = CordonReq if index % 2 else UncordonReq
    return kind(node_id="n1", command_id=f"c-{number}-{index}")


async def _gathered(engine: Engine, bare: BareAppends, number: int) -> Pair:
    before = await bare.end()
    answered = asyncio.Event()
    left = AT_ONCE

    def heard(answer: Reply | SlotbusError) -> None:
        nonlocal left
        assert not isinstance(answer, SlotbusError), answer
        left -= 1
        if not left:
            answered.set()

    began = time.perf_counter()
    for index in range(AT_ONCE):
        engine.offer(_command(number, index), heard)
    async with asyncio.timeout(TIMEOUT_S):
        await answered.wait()
    took = time.perf_counter() - began
    bodies = await bare.bodies(before)

    async def again() -> None:
        for body in bodies:
            await bare.append(body)

    return Pair(AT_ONCE / took, AT_ONCE / await seconds_of(again))


async def _idle(engine: Engine, bare: BareAppends, number: int) -> Pair:
    decisions: list[float] = []
    appends: list[float] = []
    for index in range(IDLE):
        command = _command(number + 1_000, index)
        before = await bare.end()
        await asyncio.sleep(PAUSE_S)
        decisions.append(await seconds_of(lambda one=command: engine.submit(one)))  # type: ignore[misc]
        (body,) = await bare.bodies(before)
        await asyncio.sleep(PAUSE_S)
        appends.append(await seconds_of(lambda one=body: bare.append(one)))  # type: ignore[misc]
    return Pair(statistics.median(decisions), statistics.median(appends))
