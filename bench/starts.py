"""Starting workers: many at once, and one after the other.

What lives here: the way of a start through a controller and its agents, all of them programs
of their own, against spawning the same processes with nothing around, and against a bare
request. What may not: one part of that way alone.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
import uuid
from typing import Final

from nats.aio.client import Client

from bench.appends import BareAppends
from bench.measure import ROUNDS, Goal, Pair, Row, compare, seconds_of
from bench.peers import ECHO
from bench.rig import cluster, helper, linked, nats_server, scratch, until_answered
from events.client import SlotbusClient

AT_ONCE: Final = 100
ONE_BY_ONE: Final = 40
TIMEOUT_S: Final = 30.0
RECORD: Final = b"x" * 700
"""About what the record of a one-slot start has."""

WORKER: Final = ("sleep", "600")

_BARE: Final = f"""
import asyncio
async def main():
    made = [asyncio.create_subprocess_exec(*{WORKER!r}, start_new_session=True) for _ in range(%d)]
    workers = await asyncio.gather(*made)
    print("up", flush=True)
    for worker in workers:
        worker.kill()
        await worker.wait()
asyncio.run(main())
"""


async def rows() -> list[Row]:
    async with (
        nats_server() as server,
        scratch() as folder,
        helper(server, "echo"),
        cluster(server, folder, AT_ONCE),
        linked(server) as nc,
    ):
        bus = SlotbusClient(nc)
        await _round(bus)  # everything is imported and connected after that
        burst = [
            (await _round(bus), await _spawn(AT_ONCE), await asyncio.to_thread(_program))
            for _ in range(ROUNDS)
        ]
        await until_answered(nc, ECHO)
        bare = await BareAppends.open(nc, bus.subjects.log_stream)
        single = [await _single(bus, nc, bare) for _ in range(ROUNDS)]
    return [
        compare(
            f"{AT_ONCE} one-slot starts sent at once, all running",
            [Pair(value, spawn) for value, spawn, _ in burst],
            "s",
            f"{AT_ONCE} bare asyncio spawns in a warm loop",
            [Goal(1.5)],
        ),
        compare(
            "the same",
            [Pair(value, program) for value, _, program in burst],
            "s",
            "a bare asyncio program that does it, with its own start",
        ),
        compare(
            "one-slot starts one by one, p50",
            [Pair(value, request) for value, request, _ in single],
            "s",
            "bare NATS request to another process, p50",
            [Goal(5.0)],
        ),
        compare(
            "the same",
            [Pair(value, parts) for value, _, parts in single],
            "s",
            "its parts: 2 bare requests, 2 bare appends, 1 bare spawn",
        ),
    ]


async def _round(bus: SlotbusClient) -> float:
    """Seconds until all are running; they are stopped again."""
    jobs = [f"b-{uuid.uuid4().hex[:12]}" for _ in range(AT_ONCE)]
    took = await seconds_of(
        lambda: asyncio.gather(*(bus.start(job_id=job, slots=1) for job in jobs))
    )
    await asyncio.gather(*(bus.stop(job, force=True) for job in jobs))
    return took


async def _spawn(count: int) -> float:
    """Seconds for bare spawns from this loop; they are ended again."""
    began = time.perf_counter()
    workers = await asyncio.gather(
        *(asyncio.create_subprocess_exec(*WORKER, start_new_session=True) for _ in range(count))
    )
    took = time.perf_counter() - began
    for worker in workers:
        worker.kill()
    await asyncio.gather(*(worker.wait() for worker in workers))
    return took


def _program() -> float:
    """Seconds from the start of a program to its last worker."""
    began = time.perf_counter()
    command = [sys.executable, "-c", _BARE % AT_ONCE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return time.perf_counter() - began


async def _single(bus: SlotbusClient, nc: Client, bare: BareAppends) -> tuple[float, float, float]:
    """p50 of a start, of a bare request, and the sum of what a start can't do without, taken
    in turns."""
    starts: list[float] = []
    requests: list[float] = []
    appends: list[float] = []
    spawns: list[float] = []
    for _ in range(ONE_BY_ONE):
        job = f"s-{uuid.uuid4().hex[:12]}"
        starts.append(await seconds_of(lambda job=job: bus.start(job_id=job, slots=1)))  # type: ignore[misc]
        await bus.stop(job, force=True)
        requests.append(await seconds_of(lambda: nc.request(ECHO, b"{}", timeout=TIMEOUT_S)))
        appends.append(await seconds_of(lambda: bare.append(RECORD)))
        spawns.append(await _spawn(1))
    p50 = statistics.median
    return p50(starts), p50(requests), 2 * p50(requests) + 2 * p50(appends) + p50(spawns)
