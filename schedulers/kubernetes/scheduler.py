"""The Kubernetes backend put together, and ``KubernetesScheduler``, which works as a library.

What lives here: how launcher, rules and configuration go together. What may not: NATS.

All pods are of one node, ``kubernetes``: which machine a pod runs on is the cluster's own
choice, and so are selectors and evenness, which are handed on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Self

import msgspec

from events.log import EventLog, MemoryLog
from events.messages import StartPipelineReq
from schedulers.decide import Rules
from schedulers.decide.words import split_command
from schedulers.ending import stop_all_jobs
from schedulers.engine import Backend, Engine, EngineSettings, LocalNode
from schedulers.kubernetes.client import KubeApi
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.connecting import api_over, connect, own_namespace
from schedulers.kubernetes.launcher import KubernetesLauncher, incarnation_of
from schedulers.kubernetes.manifest import NODE, check_request, planned, pod_manifest
from schedulers.kubernetes.overlay import Json
from schedulers.kubernetes.reading import check_config
from schedulers.kubernetes.template import configured_template

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

AT_ONCE: Final = 5_000
"""Tries under way: most of them only wait, for their turn or for a pod to run. What the
server has to bear is bounded by ``requests_at_once``."""

TRY_S: Final = 15.0
"""Longer than the API server takes at most to answer."""

SPARE_S: Final = 30.0
"""Beyond a pod's own deadline, before the engine's: so that the pod's reason is told."""


def kubernetes_backend(
    config: KubernetesConfig, connected: Callable[[], Awaitable[KubeApi]] | None = None
) -> Backend:
    """The Kubernetes backend. Raises Invalid for a configuration that can't be. ``connected``
    gives the API, which is closed with the launcher if it is its own."""
    check_config(config)
    template = configured_template(config)

    async def usual() -> KubeApi:
        return await connect(config)

    launcher = KubernetesLauncher(config, connected or usual, template=template)
    incarnation = incarnation_of(config)
    return Backend(
        name="kubernetes",
        launcher=launcher,
        local=LocalNode(
            node_id=NODE,
            task_slots=config.capacity,
            incarnation=incarnation,
            machine_id=incarnation,
        ),
        check=lambda request: check_request(config, request, template=template),
        failing=launcher.failing,
        measures=launcher.measures,
        at_once=AT_ONCE,
        try_s=TRY_S,
    )


def kubernetes_rules(rules: Rules, config: KubernetesConfig) -> Rules:
    """Rules as this backend needs them. No worker command is one: an image has its own."""
    started_s = config.start_deadline_s + config.termination_grace_s
    return msgspec.structs.replace(
        rules,
        per_worker=config.task_slots,
        local_node=NODE,
        chooses_nodes=False,
        launch_timeout_s=started_s + SPARE_S,
        start_timeout_s=started_s + 2 * SPARE_S,
    )


class KubernetesScheduler(Engine):
    """Runs pipelines as pods, on a log in memory unless one is given.

    Finds its cluster by itself: the one it runs in (and there its own namespace, unless a
    configuration says another), or a kubeconfig's. Works without ``async
    with``: the first call starts it. ``close`` stops the workers, if nothing but this log in
    memory knew of them; with a log that was given they run on, for the next scheduler.
    """

    def __init__(
        self,
        config: KubernetesConfig | None = None,
        *,
        client: ApiClient | None = None,
        worker_command: list[str] | None = None,
        log: EventLog | None = None,
        rules: Rules | None = None,
    ) -> None:
        self.config = config = config or KubernetesConfig(namespace=own_namespace() or "default")
        rules = rules or Rules()
        if worker_command is not None:
            rules = msgspec.structs.replace(rules, worker_command=worker_command)
        self._stops_workers = log is None

        async def over() -> KubeApi:
            return await connect(config) if client is None else api_over(client, config)

        super().__init__(
            kubernetes_backend(config, over),
            log or MemoryLog(),
            EngineSettings(cluster=config.cluster, rules=kubernetes_rules(rules, config)),
        )

    @classmethod
    def with_config(cls, client: ApiClient, config: KubernetesConfig) -> Self:
        """Over a client of kubernetes_asyncio, which stays its maker's to close."""
        return cls(config, client=client)

    def make_pod(self, request: StartPipelineReq, number: int, slots: int) -> Json:
        """The pod, as the API's JSON, that a start would create for its worker ``number``;
        worker id and stamp are none that a start would give. Raises Invalid."""
        assignment = planned(
            self.config,
            request,
            number,
            slots,
            command=split_command(request.scheduler_config.command),
            default_command=self.rules.worker_command,
        )
        return pod_manifest(self.config, assignment)

    async def close(self) -> None:
        """Ends this scheduler, and lets go of the connection."""
        if self.runs_here() and self._stops_workers and self._started:
            await stop_all_jobs(self)
        await super().close()
        if self.runs_here():
            await self.backend.launcher.close()
