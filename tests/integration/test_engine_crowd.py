"""10,000 nodes at once: the loop is never held for long, and who commands does not wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from controller.metrics import Metrics
from controller.outbox import InboxStats
from events.errors import UnknownJob
from events.log import MemoryLog
from events.queries import QueryNodes, QueryShortage, QueryWorkers
from events.states import NodeState
from schedulers.backend import Backend
from schedulers.decide import Rules
from schedulers.engine import Engine, EngineSettings
from tests.support.scripted import ScriptedLauncher, ScriptedNode
from tests.support.story import start, stop
from tests.support.waiting import until

NODES = 10_000
STEP_S = 0.15
"""CPU time of one step: about 0.05 s where nothing else runs."""

IDLE_S = 60.0


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """CPU seconds of each step of the event loop that took more than a hundredth."""
    steps: list[float] = []
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.process_time()
        run(handle)
        took = time.process_time() - began
        if took > 0.01:
            steps.append(took)

    monkeypatch.setattr(asyncio.events.Handle, "_run", timed)
    yield steps
    assert max(steps, default=0.0) < STEP_S, sorted(steps)[-5:]


@asynccontextmanager
async def leading(log: MemoryLog, nodes: list[ScriptedNode], epoch: int) -> AsyncIterator[Engine]:
    engine = Engine(
        Backend(name="node", launcher=ScriptedLauncher(*nodes)),
        log,
        EngineSettings(cluster="test", rules=Rules(), epoch=epoch),
    )
    await engine.start()
    try:
        yield engine
        assert await engine.dispatcher.until_idle(IDLE_S)
    finally:
        await engine.close()


async def test_no_step_is_long_among_10_000_nodes(longest: list[float]) -> None:
    """They register at once, are asked by a new leader, and are looked at."""
    asyncio.get_running_loop().set_debug(False)  # which makes each step thrice as long
    log = MemoryLog()
    nodes = [ScriptedNode(f"n{i:05}", incarnation="i", slots=2) for i in range(NODES)]
    async with leading(log, nodes, 1) as first:
        answered: list[object] = []
        for node in nodes:
            first.offer(node.registration(), answered.append)
        await asyncio.sleep(0)
        longest.clear()  # what was the test's own work
        with pytest.raises(UnknownJob):
            await first.submit(stop("nobody"))
        assert len(answered) < NODES / 2, "a command overtakes"
        await until(lambda: len(answered) == NODES)
        for number in range(10):
            await first.submit(start(f"j{number}", 1_000))
    async with leading(log, nodes, 2) as second:
        longest.clear()  # a log in memory is read in one go
        await second.submit(start("right-after-it", 10))
        for query in (QueryNodes(limit=5_000), QueryWorkers(limit=5_000), QueryShortage()):
            await second.submit(query)
        metrics = Metrics(InboxStats())
        metrics.lead(second)
        assert (await metrics.render()).count(b"slotbus_node_free_slots{") == NODES
        states = {node.state for node in second.ledger.nodes.values()}
        assert states == {NodeState.READY}
