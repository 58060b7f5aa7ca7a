"""Heartbeats: how many a controller takes, against a callback that only decodes them.

What lives here: the whole way from the socket to the pulse, in a process of its own, with
real NATS between it and the sender. What may not: answers in the first comparison, since
the callback gives none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.measure import ROUNDS, Goal, Pair, Row, compare
from bench.peers import SEND, Order
from bench.rig import helper, linked, nats_server, until_answered
from controller.inbox import NatsInbox
from controller.outbox import InboxStats
from events.collector import calm_collector
from events.log import MemoryLog
from events.pulse import live_digest
from events.subjects import Subjects
from events.traffic import HeartbeatNodeReq, HeartbeatReply, RegisterNodeReq
from schedulers.engine import Engine, EngineSettings
from schedulers.node.backend import node_backend

NODES: Final = 1_000
BEATS: Final = 30_000
TIMEOUT_S: Final = 60.0


async def rows() -> list[Row]:
    calm_collector()
    subjects = Subjects("taken")
    async with (
        nats_server() as server,
        helper(server, "send"),
        linked(server, "controller") as nc,
        linked(server, "bench") as control,
    ):
        await until_answered(control, SEND)
        engine = Engine(node_backend(nc, subjects), MemoryLog(), EngineSettings(epoch=1))
        await engine.start()
        stats = InboxStats()
        inbox = NatsInbox(nc, subjects, engine, epoch=1, may_answer=lambda: True, stats=stats)
        await inbox.open()
        for number in range(NODES):
            await engine.submit(
                RegisterNodeReq(node_id=f"n{number}", task_slots=8, incarnation="i1", workers=[])
            )
        await engine.dispatcher.until_idle(TIMEOUT_S)
        silent = [
            Pair(await _taken(control, engine, False), await _bare(control, nc, False))
            for _ in range(ROUNDS)
        ]
        asking = [
            Pair(await _taken(control, engine, True), await _bare(control, nc, True))
            for _ in range(ROUNDS)
        ]
        await inbox.close(1.0)
        await engine.close()
    return [
        compare(
            "heartbeats taken",
            silent,
            "a CPU second",
            "a nats-py callback that decodes them",
            [Goal(0.8, at_least=True)],
        ),
        compare(
            "heartbeats taken and answered",
            asking,
            "a CPU second",
            "a nats-py callback that decodes and answers them",
        ),
    ]


async def _taken(control: Client, engine: Engine, asking: bool) -> float:
    """Heartbeats a second, from the first that arrives to the last in the pulse."""
    name = HeartbeatNodeReq.__name__
    before = engine.stats.messages[name]
    return await _rate(control, "taken", asking, lambda: engine.stats.messages[name] - before)


async def _bare(control: Client, nc: Client, asking: bool) -> float:
    decoder = msgspec.json.Decoder(HeartbeatNodeReq)
    reply = msgspec.json.encode(HeartbeatReply(epoch=1))
    taken = 0

    async def take(message: Msg) -> None:
        nonlocal taken
        decoder.decode(message.data)
        if asking:
            await nc.publish(message.reply, reply)
        taken += 1

    subscription = await nc.subscribe("bare.node.*.heartbeat", cb=take)
    await nc.flush()
    await nc.flush()
    rate = await _rate(control, "bare", asking, lambda: taken)
    await subscription.unsubscribe()
    return rate


async def _rate(control: Client, root: str, asking: bool, counted: Callable[[], int]) -> float:
    """Has heartbeats sent, and counts from the first that was taken to the last."""
    reply = "nobody.listens" if asking else ""
    order = msgspec.json.encode(Order(BEATS, NODES, root, 1, live_digest([]), reply))
    sending = asyncio.create_task(control.request(SEND, order, timeout=TIMEOUT_S))
    began = await _count(counted, 1)
    before = counted()
    ended = await _count(counted, BEATS)
    await sending
    return (BEATS - before) / (ended - began)


async def _count(counted: Callable[[], int], wanted: int) -> float:
    """When so many were counted, in CPU seconds of this process: it is what takes them, and
    how long the sender and the server had to wait for a core says nothing about it."""
    async with asyncio.timeout(TIMEOUT_S):
        while counted() < wanted:  # noqa: ASYNC110  what is waited for is being measured
            await asyncio.sleep(0.0005)
    return time.process_time()
