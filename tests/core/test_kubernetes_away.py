"""An API server that is away for ten minutes, and a long quiet time, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from events.errors import StartFailed
from events.log import MemoryLog
from events.messages import StartPipelineReq, StopReply, StopWorkersReq
from schedulers.decide import Rules
from schedulers.engine import Engine, EngineSettings
from schedulers.kubernetes.client import KubeApi
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.launcher import KubernetesLauncher
from schedulers.kubernetes.scheduler import kubernetes_backend, kubernetes_rules
from slotbus_pytest.virtual import VirtualLoop
from tests.support.kube.pretend import PretendApi, PretendCluster

AWAY_S = 600.0
HOURS = 3


class Stage:
    """An engine on a cluster that is pretended."""

    def __init__(self, engine: Engine, cluster: PretendCluster) -> None:
        self.engine = engine
        self.cluster = cluster

    @property
    def launcher(self) -> KubernetesLauncher:
        launcher = self.engine.backend.launcher
        assert isinstance(launcher, KubernetesLauncher)
        return launcher

    def states(self, job_id: str = "j") -> list[str]:
        workers = self.engine.ledger.workers.values()
        return sorted(str(w.state) for w in workers if w.job_id == job_id)

    async def start(self, job_id: str, slots: int = 1) -> None:
        request = StartPipelineReq(job_id=job_id, slots=slots, wait_s=3_600.0)
        await self.engine.start_workers(request)

    async def stop(self, job_id: str) -> StopReply:
        reply = await self.engine.submit(StopWorkersReq(job_id=job_id, wait_s=3_600.0))
        assert isinstance(reply, StopReply)
        return reply


@asynccontextmanager
async def stage(**fields: object) -> AsyncIterator[Stage]:
    cluster = PretendCluster()

    async def connected() -> KubeApi:
        return PretendApi(cluster)

    config = KubernetesConfig(task_slots=1, owner="none", cluster="away", **fields)  # type: ignore[arg-type]
    engine = Engine(
        kubernetes_backend(config, connected),
        MemoryLog(),
        EngineSettings(cluster="away", rules=kubernetes_rules(Rules(), config)),
    )
    async with engine:
        yield Stage(engine, cluster)
        await engine.backend.launcher.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await work()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())


def test_ten_minutes_without_the_server_conclude_nothing_and_lose_nothing() -> None:
    async def work() -> None:
        async with stage() as s:
            await s.start("j", 4)
            ended, gone, _, _ = list(s.cluster.pods)
            await asyncio.sleep(5)
            s.cluster.leave()
            before = sum(s.cluster.asked.values())
            await asyncio.sleep(AWAY_S / 2)
            assert "nothing was heard of the pods for" in s.launcher.failing()
            # It goes on without us: one ends, one is taken away.
            s.cluster.end(ended, 3)
            s.cluster.remove(gone)
            await asyncio.sleep(AWAY_S / 2)
            assert s.states() == ["running"] * 4
            # The watch asks, and what looks for left-overs; each after 2.5 to 5 s.
            asked = sum(s.cluster.asked.values()) - before
            assert AWAY_S / 5 <= asked <= 2 * AWAY_S / 2.5
            s.cluster.come_back()
            await asyncio.sleep(6)
            assert s.states() == ["failed", "lost", "running", "running"]
            assert s.launcher.failing() == ""
            assert s.launcher.watch.stats.faults == 0

    run(work)


def test_many_that_want_something_of_a_server_that_is_away_do_not_storm_it() -> None:
    async def work() -> None:
        async with stage(start_deadline_s=1_800.0) as s:
            await s.start("old", 100)
            s.cluster.leave()
            before = sum(s.cluster.asked.values())
            starting = asyncio.create_task(s.start("new", 100))
            stopping = asyncio.create_task(s.stop("old"))
            await asyncio.sleep(AWAY_S)
            assert sum(s.cluster.asked.values()) - before <= 2 * AWAY_S / 2.5 + 40
            s.cluster.come_back()
            await asyncio.gather(starting, stopping)
            await asyncio.sleep(20)
            assert s.states("new") == ["running"] * 100
            assert s.states("old") == ["finished"] * 100

    run(work)


def test_what_was_asked_for_meanwhile_is_done_when_it_is_back() -> None:
    async def work() -> None:
        async with stage(start_deadline_s=1_800.0) as s:
            await s.start("old")
            s.cluster.leave()
            starting = asyncio.create_task(s.start("new", 2))
            stopping = asyncio.create_task(s.stop("old"))
            await asyncio.sleep(AWAY_S)
            assert not starting.done()
            assert (s.states("new"), s.states("old")) == (["assigned"] * 2, ["stopping"])
            # The stop's answer came at its deadline, and was the truth.
            assert len((await stopping).unconfirmed) == 1
            s.cluster.come_back()
            await starting
            await asyncio.sleep(5)
            assert (s.states("new"), s.states("old")) == (["running"] * 2, ["finished"])
            assert len(s.cluster.pods) == 2

    run(work)


def test_a_start_fails_at_its_deadline_and_names_what_it_waited_for() -> None:
    async def work() -> None:
        async with stage(start_deadline_s=120.0) as s:
            await s.start("j")
            s.cluster.leave()
            with pytest.raises(StartFailed, match="connection refused"):
                await s.start("new", 2)
            assert s.states("new") == ["stopping", "stopping"]
            s.cluster.come_back()
            await asyncio.sleep(60)
            assert s.states("new") == ["failed", "failed"]
            assert len(s.cluster.pods) == 1

    run(work)


def test_quiet_hours_are_quiet() -> None:
    async def work() -> None:
        async with stage() as s:
            await s.start("j", 3)
            await asyncio.sleep(60)
            s.cluster.asked.clear()
            await asyncio.sleep(HOURS * 3_600)
            asked = s.cluster.asked
            # A watch every two minutes, each silent one asked about; lists every 15 minutes.
            assert HOURS * 30 <= asked["watch"] <= HOURS * 35
            assert asked["knows"] <= asked["watch"]
            assert asked["list pods"] <= HOURS * 4
            assert asked["list configmaps"] <= HOURS * 4 + 2
            assert sum(asked.values()) <= HOURS * 80
            assert s.launcher.failing() == ""
            assert s.states() == ["running"] * 3

    run(work)


def test_a_watch_that_has_ended_for_whatever_cause_makes_the_controller_unready() -> None:
    async def work() -> None:
        async with stage() as s:
            await s.start("j")
            assert s.launcher.failing() == ""
            for task in asyncio.all_tasks():
                if task.get_name() == "pods":
                    task.cancel()
            await asyncio.sleep(0.1)
            assert s.launcher.failing() == "the pods are not followed any more"

    run(work)
