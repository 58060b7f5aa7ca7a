"""The event subjects: how fast records are told, and what an append costs meanwhile.

What lives here: the projection of a busy day, and of one node that takes many jobs with it,
against bare publishes of as many messages. What may not: readers.
"""

from __future__ import annotations

import asyncio
from typing import Final

from nats.aio.client import Client

from bench.material import EPOCH, busy_day
from bench.measure import Pair, Row, compare, seconds_of
from bench.rig import linked, nats_server
from events.collector import calm_collector
from events.concerns import Directory
from events.facts import NodeExpired, Record, WorkerAssigned, WorkerLost
from events.ids import Position
from events.jetstream_api import Deadline, JetStreamApi, StreamConfig
from events.jetstream_publish import Outgoing, Publisher
from events.log import MemoryLog
from events.projection import EventProjection
from events.subjects import Subjects

ROUNDS: Final = 3
JOBS: Final = 1_000
LOST: Final = 1_000
TIMEOUT_S: Final = 60.0
TOGETHER: Final = 500
SIZE: Final = 400
"""Bytes of a typical message."""


async def rows() -> list[Row]:
    calm_collector()
    day, expiry = busy_day(JOBS).records, _expiry()
    async with nats_server() as server, linked(server) as nc:
        days = [await _pair(nc, f"day{number}", day, []) for number in range(ROUNDS)]
        ends = [
            await _pair(nc, f"end{number}", [expiry[-1]], expiry[:-1]) for number in range(ROUNDS)
        ]
    against = "bare publishes of as many messages, each synced"
    return [
        compare("event messages of a busy day", days, "1/s", against),
        compare(f"event messages of a node with {LOST:,} jobs that expires", ends, "1/s", against),
    ]


def _expiry() -> list[Record]:
    """Workers of as many jobs on one node, and its end."""
    at = busy_day(0).now
    assigned = [
        WorkerAssigned(
            worker_id=f"w{n}", job_id=f"j{n}", run_id=1, node_id="n", incarnation="i", slots=1
        )
        for n in range(LOST)
    ]
    lost = [
        WorkerLost(worker_id=f"w{n}", reason="node n silent since 12:00:00") for n in range(LOST)
    ]
    expired = NodeExpired(node_id="n", last_seen=at)
    return [
        Record(at=at, epoch=EPOCH, cause="start", events=list(assigned)),
        Record(at=at, epoch=EPOCH, cause="timer", events=[expired, *lost]),
    ]


async def _pair(nc: Client, root: str, records: list[Record], before: list[Record]) -> Pair:
    directory = Directory()
    for record in before:
        directory.concerns(record)
    log = MemoryLog()
    now = records[-1].at.timestamp()
    projection = EventProjection(nc, Subjects(root), log, directory=directory, now=lambda: now)
    running = asyncio.create_task(projection.run())
    await log.append(records, expected=Position(0), timeout_s=TIMEOUT_S)

    async def tell() -> None:
        for position, record in enumerate(records, 1):
            projection.offer(Position(position), record)
        assert await projection.until_settled(TIMEOUT_S)

    took = await seconds_of(tell)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    count = projection.stats.published
    return Pair(count / took, count / await _bare(nc, f"B{root}", count))


async def _bare(nc: Client, stream: str, count: int) -> float:
    config = StreamConfig(name=stream, subjects=[f"{stream}.>"])
    await JetStreamApi(nc).ensure(config, Deadline(TIMEOUT_S))
    publisher = Publisher(nc)

    async def publish() -> None:
        for begin in range(0, count, TOGETHER):
            some = range(begin, min(count, begin + TOGETHER))
            await publisher.publish(
                [Outgoing(f"{stream}.a", b"x" * SIZE, {"Nats-Msg-Id": str(n)}) for n in some],
                timeout_s=TIMEOUT_S,
            )

    took = await seconds_of(publish)
    await publisher.close()
    return took
