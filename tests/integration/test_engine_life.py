"""How an engine starts and ends, also half-way, twice, or in the wrong place."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from events.errors import NotLeader
from events.facts import LeaderStarted, NodeCordoned, Record
from events.ids import START, Position
from events.log import LogUnreadable, LogUnsettled
from events.queries import QueryNodes
from events.traffic import InventoryReply
from schedulers.backend import Backend, LocalNode
from schedulers.decide import Rules
from schedulers.engine import Engine, EngineSettings
from schedulers.launcher import Unreachable
from tests.support.bench import Bench, FaultyLog, Heard, facts_of, running_bench, start
from tests.support.scripted import ScriptedLauncher, ScriptedNode, late

pytestmark = pytest.mark.looptime

LOCAL = LocalNode(node_id="n1", task_slots=4, incarnation="i-1")


def tasks() -> set[str]:
    """Names of the tasks beside the one that asks."""
    return {t.get_name() for t in asyncio.all_tasks()} - {asyncio.current_task().get_name()}  # type: ignore[union-attr]


def local_engine(launcher: ScriptedLauncher, log: FaultyLog | None = None) -> Engine:
    """An engine on one node that needs no heartbeat."""
    rules = Rules(local_node="n1")
    backend = Backend(name="scripted", launcher=launcher, local=LOCAL)
    return Engine(backend, log or FaultyLog(), EngineSettings(cluster="test", rules=rules))


async def test_close_leaves_no_task_and_answers_everybody() -> None:
    before = tasks()
    log, node = FaultyLog(), ScriptedNode("n1", slots=9, usual=late(2.5))
    bench = Bench(node, log=log)
    await bench.open()
    waiting, decided, queued = Heard(), Heard(), Heard()
    bench.engine.offer(start("a", 2), waiting.as_answer())
    await asyncio.sleep(1)
    log.delay_s = 5.0
    bench.engine.offer(start("b", 2), decided.as_answer())
    await asyncio.sleep(1)
    bench.engine.offer(QueryNodes(), queued.as_answer())
    await bench.close()

    assert [type(h.one) for h in (waiting, decided, queued)] == [NotLeader] * 3
    assert tasks() == before
    assert await bench.engine.wait_closed() is None
    await bench.close()
    await asyncio.sleep(100)
    assert [len(h.answers) for h in (waiting, decided, queued)] == [1, 1, 1]
    assert {order.job_id for order in node.orders} <= {"a"}


async def test_after_close_there_is_a_clear_error() -> None:
    bench = Bench(ScriptedNode("n1"))
    await bench.open()
    await bench.close()
    with pytest.raises(NotLeader, match="closed: make a new one"):
        await bench.engine.start()
    with pytest.raises(NotLeader, match="closed: make a new one"):
        await bench.engine.workers_for_job("j")
    with pytest.raises(NotLeader):
        await bench.engine.submit(QueryNodes())


async def test_starting_again_or_side_by_side_is_starting_once() -> None:
    log = FaultyLog()
    log.delay_s = 1.0
    bench = Bench(ScriptedNode("n1"), log=log)
    await asyncio.gather(*(bench.engine.start() for _ in range(5)))
    await bench.engine.start()
    assert [type(fact) for fact in await facts_of(log)] == [LeaderStarted]
    await bench.close()


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5, 3.0])
async def test_a_close_ends_a_start_that_is_under_way(after_s: float) -> None:
    before = tasks()
    log, node = FaultyLog(), ScriptedNode("n1", silent=True)
    log.delay_s = 1.0
    engine = local_engine(ScriptedLauncher(node), log)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(after_s)
    await engine.close()
    with pytest.raises(NotLeader, match="closed"):
        await starting
    assert tasks() == before


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    before = tasks()
    log, node = FaultyLog(), ScriptedNode("n1", silent=True)
    engine = local_engine(ScriptedLauncher(node), log)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert tasks() == before
    node.silent = False
    assert await engine.workers_for_job("j") == []  # and it can be started again
    await engine.close()


async def test_a_log_that_cannot_be_read_names_the_record_and_leaves_nothing() -> None:
    before = tasks()
    log = FaultyLog()
    log.unreadable = LogUnreadable("record 7 can't be read", position=7)
    bench = Bench(ScriptedNode("n1"), log=log)
    with pytest.raises(LogUnreadable, match="record 7"):
        await bench.engine.start()
    with pytest.raises(NotLeader, match="never started"):
        await bench.engine.wait_closed()
    assert tasks() == before

    log.unreadable = None
    await bench.open()
    assert (await bench.start("j", 1)).workers
    await bench.close()


async def test_a_record_that_cannot_be_names_itself() -> None:
    log = FaultyLog()
    record = Record(
        at=datetime.now(UTC), epoch=1, cause="?", events=[NodeCordoned(node_id="nobody")]
    )
    await log.append([record], expected=START, timeout_s=1)
    bench = Bench(ScriptedNode("n1"), log=log)
    with pytest.raises(LogUnreadable, match="record 1 of the event log") as unreadable:
        await bench.engine.start()
    assert unreadable.value.facts["position"] == 1
    await bench.close()


async def test_a_reader_of_the_log_is_closed_when_it_fails() -> None:
    closed: list[bool] = []

    class Careful(FaultyLog):
        async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
            try:
                async for batch in self.inner.read(after):
                    yield batch
            finally:
                closed.append(True)

    log = Careful()
    record = Record(at=datetime.now(UTC), epoch=1, cause="?", events=[NodeCordoned(node_id="no")])
    await log.inner.append([record], expected=START, timeout_s=1)
    bench = Bench(ScriptedNode("n1"), log=log)
    with pytest.raises(LogUnreadable):
        await bench.engine.start()
    assert closed == [True]
    await bench.close()


async def test_a_first_append_that_fails_leaves_nothing() -> None:
    before = tasks()
    log = FaultyLog()
    log.fail_next = LogUnsettled("no answer")
    bench = Bench(ScriptedNode("n1"), log=log)
    with pytest.raises(LogUnsettled):
        await bench.engine.start()
    with pytest.raises(NotLeader):
        bench.engine.offer(QueryNodes())
    assert tasks() == before
    await bench.open()
    await bench.close()


async def test_a_launcher_that_is_not_there_is_waited_for_and_then_named() -> None:
    before = tasks()
    node = ScriptedNode("n1", silent=True)
    engine = local_engine(ScriptedLauncher(node))
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unreachable, match="no answer"):
        await engine.start()
    assert 25 < asyncio.get_running_loop().time() - began < 40
    assert tasks() == before

    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(8)
    node.silent = False
    await starting
    assert len(await engine.start_workers(start("j", 4))) == 1
    await engine.close()


async def test_a_launcher_that_breaks_the_contract_is_an_error_of_the_start() -> None:
    class Broken(ScriptedLauncher):
        async def inventory(
            self, node_id: str, incarnation: str, epoch: int, timeout_s: float
        ) -> InventoryReply:
            raise ZeroDivisionError("a fault of the backend")

    before = tasks()
    engine = local_engine(Broken(ScriptedNode("n1")))
    with pytest.raises(ZeroDivisionError):
        await engine.start()
    assert tasks() == before
    await engine.close()


async def test_an_epoch_that_is_over_does_not_lead() -> None:
    log = FaultyLog()
    async with running_bench(ScriptedNode("n1"), log=log) as bench:
        seen = bench.engine.epoch
    engine = Engine(
        Backend(name="node", launcher=ScriptedLauncher()), log, EngineSettings(epoch=seen)
    )
    with pytest.raises(NotLeader, match=f"epoch {seen} is over"):
        await engine.start()


async def test_time_never_goes_back_behind_the_log() -> None:
    log = FaultyLog()
    async with running_bench(ScriptedNode("n1"), log=log) as bench:
        await asyncio.sleep(600)  # this controller's clock is ten minutes ahead
        await bench.start("j", 1)
        last = bench.engine.ledger.state.at
    async with running_bench(ScriptedNode("n2"), log=log) as bench:
        assert last is not None
        assert bench.engine.clock.now() >= last
        times = [record.at async for batch in log.read() for record in batch]
        assert times == sorted(times)


def test_a_program_that_ends_without_close_says_nothing_bad() -> None:
    """``asyncio.run`` cancels what is left: no coroutine unawaited, no error unseen."""
    complaints: list[object] = []

    async def main() -> Engine:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        bench = Bench(ScriptedNode("n1", usual=late(2.0)))
        await bench.open()
        bench.engine.offer(start("j", 2))
        await asyncio.sleep(0.01)
        return bench.engine

    engine = asyncio.run(main(), debug=True)
    gc.collect()
    assert complaints == []

    async def again() -> None:
        with pytest.raises(NotLeader, match="another event loop"):
            await engine.workers_for_job("j")
        await engine.close()

    asyncio.run(again())


async def test_an_engine_with_nothing_to_do_is_true() -> None:
    async with running_bench(ScriptedNode("n1")) as bench:
        await bench.engine.submit(QueryNodes())
        assert len(bench.engine) == 0
        assert bench.engine
