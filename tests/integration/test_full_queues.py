"""Queues that are full to the last place: answers on their way out, orders on an agent."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller.outbox import QUEUE_LIMIT, InboxStats, Outbox
from events.subjects import Subjects
from events.traffic import HeartbeatReply, InventoryReply
from schedulers.launcher import Unreachable
from schedulers.node.desk import MAX_ORDERS, Desk
from schedulers.node.launcher import NatsLauncher
from schedulers.node.orders import Orders
from schedulers.node.stats import AgentStats
from tests.support.waiting import DEADLINE_S, background, until

LATER = 10
"""What comes when there is no room."""


class HeldConnection:
    """Takes answers one by one, once it may."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.sent: list[int] = []

    async def respond(self, data: bytes, /, *, headers: dict[str, str] | None = None) -> None:
        await self.open.wait()
        self.sent.append(msgspec.json.decode(data, type=HeartbeatReply).epoch)


async def test_answers_beyond_the_last_place_are_dropped_and_counted_and_the_rest_is_sent() -> None:
    stats, line = InboxStats(), HeldConnection()
    outbox = Outbox(may_answer=lambda: True, max_payload=lambda: 2**20, stats=stats)

    def put(number: int) -> None:
        outbox.put("node-heartbeat", line.respond, HeartbeatReply(epoch=number), [])

    outbox.open()
    try:
        for number in range(QUEUE_LIMIT):
            put(number)
        assert stats.dropped["queue_full"] == 0
        for number in range(LATER):
            put(QUEUE_LIMIT + number)
        assert stats.dropped["queue_full"] == LATER
        line.open.set()
        assert await outbox.until_empty(DEADLINE_S)
        assert line.sent == list(range(QUEUE_LIMIT))
        put(-1)
        assert await outbox.until_empty(DEADLINE_S)
        assert line.sent[-1] == -1
        assert stats.dropped.total() == LATER
    finally:
        await outbox.close()


class HeldOrders:
    """Orders that take as long as somebody says."""

    def __init__(self) -> None:
        self.under_way = 0
        self.release = asyncio.Event()

    async def carry_out(self, verb: str, body: bytes) -> msgspec.Struct:
        self.under_way += 1
        await self.release.wait()
        self.under_way -= 1
        return InventoryReply(incarnation="i", epoch=1, seq=1, workers=[])


async def test_an_agent_refuses_the_order_beyond_the_last_place_and_the_leader_asks_again(
    nc: Client, subjects: Subjects
) -> None:
    orders, answers = HeldOrders(), list[dict[str, object]]()
    desk = Desk(cast(Orders, orders), AgentStats())
    launcher = NatsLauncher(nc, subjects)

    async def answered(message: Msg) -> None:
        answers.append(json.loads(message.data))

    async with background(desk.run()):
        await nc.subscribe(subjects.agent("n1", "*"), cb=desk.receive)
        await nc.subscribe(f"{subjects.root}.answers", cb=answered)
        subject = subjects.agent("n1", "inventory")
        for _ in range(MAX_ORDERS):
            await nc.publish(subject, b'{"epoch":1}', reply=f"{subjects.root}.answers")
        await until(lambda: orders.under_way == MAX_ORDERS)
        assert answers == []

        refused = await nc.request(subject, b'{"epoch":1}', timeout=DEADLINE_S)
        assert json.loads(refused.data)["error"]["code"] == "overloaded"
        # Nobody knows what becomes of it: what may be asked again is, as after no answer.
        with pytest.raises(Unreachable, match="too many orders at a time"):
            await launcher.inventory("n1", "i", 1, DEADLINE_S)
        assert orders.under_way == MAX_ORDERS

        orders.release.set()
        await until(lambda: len(answers) == MAX_ORDERS)
        assert all("error" not in answer for answer in answers)
        assert (await launcher.inventory("n1", "i", 1, DEADLINE_S)).workers == []
        await desk.finish(DEADLINE_S)
