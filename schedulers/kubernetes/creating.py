"""Creating pods: each attempt's answer, and what a missing answer leaves open.

What lives here: ``PodMaker``: the pod of an assignment, made once however often it is asked
for. What may not: when to try again, what runs, and programs (``programs``).

A request that was sent can't be called back: it goes on when nobody waits for it any more,
and who stops its worker waits for it here first. One that was not sent yet is withdrawn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

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


class _Order(Struct, eq=False):
    """A pod that is wanted. ``sent``: a request may be under way."""

    assignment: Assignment
    pod: asyncio.Future[Pod]
    sent: bool = False


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
        self._orders: dict[str, _Order] = {}
        self._queue: deque[_Order] = deque()
        self._makers: set[asyncio.Task[None]] = set()
        self._doubtful: dict[str, float] = {}
        self._programs = programs

    async def make(self, assignment: Assignment) -> Pod:
        """One attempt to create a worker's pod; it is done too where it is there already.

        Raises LaunchRefused with the server's reason, Unreachable.
        """
        worker_id = assignment.worker_id
        order = self._orders.get(worker_id)
        if order is None:
            order = _Order(assignment, asyncio.get_running_loop().create_future())
            order.pod.add_done_callback(_looked_at)
            self._orders[worker_id] = order
            self._queue.append(order)
            if len(self._makers) < self._config.requests_at_once:
                maker = asyncio.create_task(self._work(), name="pods to be made")
                self._makers.add(maker)
                maker.add_done_callback(self._makers.discard)
        return await asyncio.shield(order.pod)

    def __len__(self) -> int:
        """Pods that are wanted and not made yet."""
        return len(self._orders)

    def makes(self, worker_id: str) -> bool:
        """Whether a request for this worker's pod is under way, or is to be."""
        return worker_id in self._orders

    async def settled(self, worker_id: str) -> None:
        """Waits for a request under way, whatever becomes of it; one to be is not made."""
        order = self._orders.get(worker_id)
        if order is None:
            return
        if order.sent:
            await asyncio.wait({order.pod})
        else:
            del self._orders[worker_id]
            order.pod.set_exception(Unreachable("it was stopped before its pod was asked for"))

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
        makers = list(self._makers)
        for maker in makers:
            maker.cancel()
        await asyncio.gather(*makers, return_exceptions=True)
        for order in self._orders.values():
            order.pod.cancel()
        self._orders.clear()
        self._queue.clear()

    # --- one attempt --------------------------------------------------------------------

    async def _work(self) -> None:
        """Makes pods one after the other, until there are none to be made."""
        while self._queue:
            order = self._queue.popleft()
            if order.pod.done():
                continue
            order.sent = True
            try:
                pod = await self._attempt(order.assignment)
            except Exception as error:  # noqa: BLE001  the edge: it is for who waits for the pod
                self._orders.pop(order.assignment.worker_id, None)
                order.pod.set_exception(error)
            else:
                self._orders.pop(order.assignment.worker_id, None)
                order.pod.set_result(pod)

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


def _looked_at(pod: asyncio.Future[Pod]) -> None:
    """Who waited for it may have left."""
    if not pod.cancelled():
        pod.exception()
