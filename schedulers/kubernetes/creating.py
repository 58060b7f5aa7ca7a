"""Creating pods: each attempt's answer, and what a missing answer leaves open.

What lives here: ``PodMaker``: the pod of an assignment, made once however often it is asked
for. What may not: when to try again, what runs, and programs (``programs``).

A request that was sent can't be called back: it goes on when nobody waits for it any more,
and who stops its worker waits for it here first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from events.errors import Internal, Invalid
from schedulers.kubernetes.client import (
    CONFLICT,
    NOT_FOUND,
    REQUEST_TIMEOUT_S,
    ApiRefused,
    ApiUnreachable,
    KubeApi,
    pod_of,
)
from schedulers.kubernetes.config import KubernetesConfig, Owner
from schedulers.kubernetes.identity import read_identity, same_worker
from schedulers.kubernetes.manifest import identity_of, in_config_map, pod_manifest
from schedulers.kubernetes.names import pod_name
from schedulers.kubernetes.overlay import Json
from schedulers.kubernetes.pods import Pod
from schedulers.kubernetes.programs import Programs
from schedulers.launcher import Assignment, LaunchRefused, Unreachable

PODS: Final = "pods"
DOUBT_S: Final = REQUEST_TIMEOUT_S + 5.0
"""How long after a request without an answer the server may still carry it out: it was told
to give up after REQUEST_TIMEOUT_S."""


class PodMaker:
    """``connected()`` gives the API, ``owner()`` whose end ends the pods."""

    def __init__(
        self,
        config: KubernetesConfig,
        template: Json,
        connected: Callable[[], Awaitable[KubeApi]],
        owner: Callable[[], Awaitable[Owner | None]],
        programs: Programs,
    ) -> None:
        self._config = config
        self._template = template
        self._connected = connected
        self._owner = owner
        self._under_way: dict[str, asyncio.Task[Pod]] = {}
        self._doubtful: dict[str, float] = {}
        self._programs = programs

    async def make(self, assignment: Assignment) -> Pod:
        """One attempt to create a worker's pod; it is done too where it is there already.

        Raises LaunchRefused with the server's reason, Unreachable.
        """
        worker_id = assignment.worker_id
        task = self._under_way.get(worker_id)
        if task is None:
            task = asyncio.create_task(self._attempt(assignment), name=f"pod of {worker_id}")
            self._under_way[worker_id] = task
            task.add_done_callback(lambda done: self._done(worker_id, done))
        return await asyncio.shield(task)

    def makes(self, worker_id: str) -> bool:
        """Whether a request for this worker's pod is under way."""
        return worker_id in self._under_way

    async def settled(self, worker_id: str) -> None:
        """Waits for a request under way, whatever becomes of it."""
        task = self._under_way.get(worker_id)
        if task is not None:
            await asyncio.wait({task})

    def may_appear(self, worker_id: str) -> bool:
        """Whether a pod that is not there may be created yet, by a request without answer."""
        until = self._doubtful.get(worker_id)
        if until is None:
            return False
        if asyncio.get_running_loop().time() < until:
            return True
        del self._doubtful[worker_id]
        return False

    async def close(self) -> None:
        """Gives up waiting for what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one attempt --------------------------------------------------------------------

    def _done(self, worker_id: str, task: asyncio.Task[Pod]) -> None:
        del self._under_way[worker_id]
        if not task.cancelled():
            task.exception()  # who waited for it may have left

    async def _attempt(self, assignment: Assignment) -> Pod:
        try:
            owner = await self._owner()
            api = await self._connected()
            if in_config_map(assignment):
                await self._programs.put(assignment, owner)
            return await self._create(api, assignment, owner)
        except Invalid as error:
            raise LaunchRefused(f"{error.path}: {error.message}") from error
        except Internal as error:  # the owner may not be looked up
            raise LaunchRefused(error.message) from error
        except ApiUnreachable as error:
            raise Unreachable(str(error)) from error
        except ApiRefused as refused:
            if refused.passes:
                raise Unreachable(refused.message) from refused
            raise LaunchRefused(refused.message) from refused

    async def _create(self, api: KubeApi, assignment: Assignment, owner: Owner | None) -> Pod:
        worker_id = assignment.worker_id

        def manifest() -> Json:
            return pod_manifest(self._config, assignment, owner, template=self._template)

        try:
            pod = pod_of(await api.create(PODS, manifest))
        except ApiUnreachable:
            self._doubt(worker_id)
            raise
        except ApiRefused as refused:
            if refused.code >= 500:  # it may have been done all the same
                self._doubt(worker_id)
            taken = refused.code == CONFLICT and refused.reason == "AlreadyExists"
            if not taken and (refused.passes or not self.may_appear(worker_id)):
                raise
            # Ours from a request whose answer was lost? It counts, whatever it is told now.
            found = await self._found(api, assignment)
            if found is None and taken:
                raise ApiUnreachable("a pod of this name has just gone: once more") from refused
            if found is None:
                raise
            pod = found
        self._doubtful.pop(worker_id, None)
        return pod

    def _doubt(self, worker_id: str) -> None:
        self._doubtful[worker_id] = asyncio.get_running_loop().time() + DOUBT_S

    async def _found(self, api: KubeApi, assignment: Assignment) -> Pod | None:
        """The pod of an assignment that is there already. Raises LaunchRefused for another
        of its name, ApiRefused, ApiUnreachable."""
        who = identity_of(self._config, assignment)
        name = pod_name(self._config.cluster, who.job_id, who.run_id, who.worker_id)
        try:
            pod = pod_of(await api.get(PODS, name))
        except ApiRefused as refused:
            if refused.code == NOT_FOUND:
                return None
            raise
        meta = pod.metadata
        if not same_worker(read_identity(meta.labels or {}, meta.annotations or {}), who):
            raise LaunchRefused(f"pod {name} is there already, and is not ours")
        return pod
