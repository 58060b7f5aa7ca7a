"""A scheduler over the rig, with a proxy in between: the stage of the Kubernetes tests.

What lives here: ``Scene``, which makes schedulers one after another on one log, and asks them
what a user would. What may not: faults (``faultproxy``), nodes (``automatic``, ``kubelet``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kubernetes_asyncio.client import ApiClient

from events.log import EventLog, MemoryLog
from events.messages import SchedulerConfig, StartPipelineReq
from events.queries import QueryWorkers, WorkerRow, WorkersReply
from schedulers.decide import Rules
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.launcher import KubernetesLauncher
from schedulers.kubernetes.scheduler import KubernetesScheduler
from tests.support.kube.apiserver import KubeServer
from tests.support.kube.clients import client_of, config_of
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.waiting import until

RULES = Rules(stop_timeout_s=1.0, rollback_grace_s=1.0)


@dataclass
class Scene:
    """``url``: where schedulers go, the proxy by default."""

    server: KubeServer
    kubelet: Kubelet
    proxy: FaultProxy
    log: EventLog = field(default_factory=MemoryLog)
    _open: list[tuple[KubernetesScheduler, ApiClient]] = field(default_factory=list)

    def config(self, **fields: object) -> KubernetesConfig:
        return config_of(self.kubelet.namespace, **fields)

    def scheduler(
        self,
        config: KubernetesConfig | None = None,
        *,
        rules: Rules = RULES,
        token: str | None = None,
        url: str | None = None,
    ) -> KubernetesScheduler:
        """One more, on the same log; ``leave`` it, or it ends with the scene."""
        client = client_of(self.server, token, url or self.proxy.url)
        made = KubernetesScheduler(
            config or self.config(), client=client, log=self.log, rules=rules
        )
        self._open.append((made, client))
        return made

    async def leave(self, scheduler: KubernetesScheduler) -> None:
        """It is closed; what it made stays."""
        for one in [one for one in self._open if one[0] is scheduler]:
            self._open.remove(one)
            await one[0].close()
            await one[1].close()

    async def leave_all(self) -> None:
        for scheduler, _ in list(self._open):
            await self.leave(scheduler)


@asynccontextmanager
async def scene_of(server: KubeServer, kubelet: Kubelet, proxy: FaultProxy) -> AsyncIterator[Scene]:
    made = Scene(server, kubelet, proxy)
    try:
        yield made
    finally:
        await made.leave_all()


def launcher_of(scheduler: KubernetesScheduler) -> KubernetesLauncher:
    launcher = scheduler.backend.launcher
    assert isinstance(launcher, KubernetesLauncher)
    return launcher


async def rows(scheduler: KubernetesScheduler, job_id: str | None = None) -> list[WorkerRow]:
    """All workers, those that have ended too."""
    reply = await scheduler.submit(QueryWorkers(job_id=job_id, all=True))
    assert isinstance(reply, WorkersReply)
    return reply.workers


def states(scheduler: KubernetesScheduler, job_id: str = "j") -> list[str]:
    """Of a job's workers, in order of their ids."""
    found = sorted(scheduler.ledger.workers.values(), key=lambda w: w.worker_id)
    return [str(w.state) for w in found if w.job_id == job_id]


async def until_states(scheduler: KubernetesScheduler, *wanted: str, job_id: str = "j") -> None:
    """Waits until the job's workers are in these states, in any order."""
    await until(lambda: sorted(states(scheduler, job_id)) == sorted(wanted))


def starts(job_id: str = "j", slots: int = 1, **fields: object) -> StartPipelineReq:
    return StartPipelineReq(job_id=job_id, slots=slots, **fields)  # type: ignore[arg-type]


def starts_with(job_id: str = "j", slots: int = 1, **options: object) -> StartPipelineReq:
    """A start with these fields in its ``scheduler_config``."""
    config = SchedulerConfig(**options)  # type: ignore[arg-type]
    return StartPipelineReq(job_id=job_id, slots=slots, scheduler_config=config)
