"""A cluster in virtual time: how much of its life passes in a second of ours.

What lives here: the plugin's cluster of 100 nodes, quiet and at work, and the test that everybody
writes first. What may not: real processes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Final

from bench.measure import ROUNDS, Goal, Row
from slotbus_pytest import Cluster

NODES: Final = 100
QUIET_S: Final = 600.0
JOBS: Final = 50
EVERY_S: Final = 1.0
"""Between two starts, each stopped one later."""

EXPIRY_TEST_S: Final = 0.05


async def rows() -> list[Row]:
    """In a loop of their own: a virtual cluster brings one."""
    return await asyncio.to_thread(_rows)


def _rows() -> list[Row]:
    quiet = [QUIET_S / _lived(NODES, _quiet) for _ in range(ROUNDS)]
    busy = [JOBS * EVERY_S / _lived(NODES, _busy) for _ in range(ROUNDS)]
    expiry = [_lived(2, _expiry) for _ in range(ROUNDS)]
    return [
        _row(f"{NODES} virtual nodes, quiet", quiet, "virtual s/s"),
        _row(f"{NODES} virtual nodes, a start and a stop each second", busy, "virtual s/s"),
        _row(
            "a test of an expiry after 30 s, the laws and the replay at its end included",
            expiry,
            "s",
            [Goal(EXPIRY_TEST_S, of="value")],
        ),
    ]


def _row(what: str, values: list[float], unit: str, goals: list[Goal] | None = None) -> Row:
    return Row(
        what=what,
        value=statistics.median(values),
        unit=unit,
        rounds=len(values),
        goals=goals or [],
    )


def _lived(nodes: int, live: Callable[[Cluster], Awaitable[None]]) -> float:
    """CPU seconds of this thread that a life takes, from making the cluster to its checks."""
    began = time.thread_time()
    cluster = Cluster(nodes=nodes)
    cluster.open()

    async def all_of_it() -> None:
        await live(cluster)

    cluster.run(all_of_it())
    cluster.check()
    cluster.close()
    return time.thread_time() - began


async def _quiet(cluster: Cluster) -> None:
    await cluster.advance(QUIET_S)


async def _busy(cluster: Cluster) -> None:
    for number in range(JOBS):
        await cluster.start(f"j{number}", 4)
        await cluster.advance(EVERY_S)
        await cluster.stop(f"j{number}")


async def _expiry(cluster: Cluster) -> None:
    await cluster.start("j", 2)
    await cluster.kill("n1")
    await cluster.advance(30.1)
    cluster.expect("n1", "expired")
