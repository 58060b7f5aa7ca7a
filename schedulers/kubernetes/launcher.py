"""The launcher over the Kubernetes API: one pod a worker.

What lives here: ``KubernetesLauncher``, which puts together the watch, the view of the pods
and the requests. What may not: what a pod looks like (``manifest``), what its state means
(``phases``), and the way over a connection (``client``).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Literal

import structlog

from events.errors import Internal
from events.states import WorkerState
from events.traffic import AgentStopReply, InventoryReply
from schedulers.backend import Measure
from schedulers.kubernetes.client import (
    CONFLICT,
    NOT_FOUND,
    ApiRefused,
    ApiUnreachable,
    KubeApi,
    Listed,
    pod_of,
)
from schedulers.kubernetes.config import KubernetesConfig, Owner
from schedulers.kubernetes.creating import PODS, PodMaker
from schedulers.kubernetes.identity import workers
from schedulers.kubernetes.keeper import (
    FORCE_GRACE_S,
    FORCE_PATIENCE_S,
    OVERDUE_S,
    Keeper,
)
from schedulers.kubernetes.measures import measures
from schedulers.kubernetes.names import short_hash
from schedulers.kubernetes.overlay import Json
from schedulers.kubernetes.owner import find_owner
from schedulers.kubernetes.pods import Pod
from schedulers.kubernetes.programs import Programs
from schedulers.kubernetes.template import PROGRAM_VOLUME, configured_template
from schedulers.kubernetes.view import PodView, Tracked
from schedulers.kubernetes.watch import PodWatch
from schedulers.launcher import (
    Assignment,
    LaunchAck,
    LaunchRefused,
    Report,
    StopOrder,
    Unreachable,
)
from schedulers.tracking import Tracking

_log = structlog.get_logger("slotbus.kubernetes")


def incarnation_of(config: KubernetesConfig) -> str:
    """The same for every controller of these pods, so that each can take over another's."""
    return f"kubernetes-{short_hash(config.cluster, config.namespace)}"


class KubernetesLauncher:
    """Implements ``schedulers.launcher.Launcher``. ``connect`` makes the API when it is first
    needed; whatever it raises is its caller's."""

    def __init__(
        self,
        config: KubernetesConfig,
        connect: Callable[[], Awaitable[KubeApi]],
        *,
        template: Json | None = None,
    ) -> None:
        self.config = config
        self.incarnation = incarnation_of(config)
        self._connect = connect
        self._api: KubeApi | None = None
        self._connecting = asyncio.Lock()
        self._owner: Owner | None = None
        self._owner_known = False
        self._selector = workers(config.cluster)
        self._tracking = Tracking(self.incarnation)
        self._epoch = 0
        self._seq = 0
        self._reports: deque[Report] = deque()
        self._news = asyncio.Event()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._listed_once = False
        self._launching: set[str] = set()
        self._said = ""
        self.view = PodView(config.cluster, self._tell)
        self.programs = Programs(config, self.api, self.view.runs)
        self.maker = PodMaker(
            config,
            template or configured_template(config),
            self.api,
            self._own_owner,
            self.programs,
        )
        self.watch = PodWatch(
            self.api,
            self._selector,
            listed=self._on_list,
            changed=self._on_change,
            deleted=lambda pod: self.view.gone(pod, _now()),
            timeout_s=config.watch_timeout_s,
        )
        self._keeper = Keeper(config, self.view, self._delete, self._until_back)

    # --- the way there ------------------------------------------------------------------

    async def api(self) -> KubeApi:
        """The API, connected to when it is first asked for."""
        async with self._connecting:
            if self._closed:
                raise ApiUnreachable("this launcher is closed")
            if self._api is None:
                self._api = await self._connect()
            return self._api

    def _slow(self) -> str:
        """Why there is no answer yet."""
        away = self._api.pacer.away if self._api is not None else ""
        return f"the API server can't be reached: {away}" if away else "the API server is slow"

    async def _until_back(self, seconds: float) -> None:
        if self._api is None:
            await asyncio.sleep(seconds)
        else:
            await self._api.pacer.until_back(seconds)

    async def _own_owner(self) -> Owner | None:
        if not self._owner_known:
            self._owner = await find_owner(self.config, await self.api())
            self._owner_known = True
        return self._owner

    def failing(self) -> str:
        """What makes this controller unready; "" for nothing."""
        if not self._tasks:
            return ""
        if any(task.done() for task in self._tasks):
            return "the pods are not followed any more"
        age_s = self.watch.age()
        if age_s is None:
            return "the pods were never listed"
        if age_s > self.config.view_age_s:
            return f"nothing was heard of the pods for {age_s:.0f} s"
        return ""

    def measures(self) -> list[Measure]:
        """For metrics."""
        return measures(self._api, self.watch, len(self.view))

    def _begin(self) -> None:
        """What goes on beside the requests, from the first of them on."""
        if not self._tasks and not self._closed:
            self._go("pods", self.watch.run())
            self._go("pods due", self._keeper.run())
            self._go("programs", self.programs.run())

    def _go(self, name: str, work: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    # --- the launcher -------------------------------------------------------------------

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        """Creates a worker's pod and waits, if so configured, until it runs. Raises
        LaunchRefused with what the server or the cluster says, Fenced, Unreachable."""
        self._tracking.fence(assignment.incarnation, assignment.epoch)
        self._tracking.launched(assignment.worker_id)
        self._begin()
        self._launching.add(assignment.worker_id)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._launch(assignment)
        except LaunchRefused:
            self._tracking.bury(assignment.worker_id)
            if self.view.of(assignment.worker_id) is None:
                self.programs.release(assignment.worker_id)
            raise
        except TimeoutError as error:
            tracked = self.view.of(assignment.worker_id)
            raise Unreachable(tracked.sight.reason if tracked else self._slow()) from error
        finally:
            self._launching.discard(assignment.worker_id)

    async def _launch(self, assignment: Assignment) -> LaunchAck:
        worker_id = assignment.worker_id
        tracked = self.view.of(worker_id)
        if tracked is None:
            tracked = self.view.take(await self.maker.make(assignment), _now())
            self._tracking.launched(worker_id)
        if tracked is None or tracked.end is not None:
            ended = tracked.end.reason if tracked and tracked.end else ""
            ran = tracked is not None and tracked.ran
            raise LaunchRefused(ended or f"worker {worker_id} has ended", ran=ran)
        if self.config.launched_when == "running":
            await tracked.until_settled()
            _check_ran(tracked)
        return LaunchAck(seq=self._seq)

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        """Deletes a worker's pod; its end is reported when the kubelet has confirmed it.
        Raises Fenced, Unreachable."""
        self._tracking.fence(order.incarnation, order.epoch)
        self._begin()
        self._tracking.bury(order.worker_id)
        try:
            async with asyncio.timeout(timeout_s):
                state = await self._signal(order)
        except TimeoutError as error:
            raise Unreachable(self._slow()) from error
        except ApiUnreachable as error:  # which the watch tells of, once for all
            raise Unreachable(str(error)) from error
        except ApiRefused as error:
            _log.warning("a pod can't be deleted", worker_id=order.worker_id, cause=str(error))
            raise Unreachable(str(error)) from error
        return AgentStopReply(state=state, seq=self._seq)

    async def _signal(self, order: StopOrder) -> Literal["stopping", "ended", "unknown"]:
        await self.maker.settled(order.worker_id)
        tracked = self.view.of(order.worker_id) or await self._look_for(order.worker_id)
        if tracked is None:
            if self.maker.may_appear(order.worker_id):
                raise Unreachable("its pod may still be created by a request without an answer")
            self.programs.release(order.worker_id)
            return "unknown"
        if tracked.end is not None:
            return "ended"
        if tracked.there:
            await self._stop(tracked, order)
        else:
            self.view.say_gone(tracked)
        return "stopping"

    async def _look_for(self, worker_id: str) -> Tracked | None:
        """The pod of a worker that no list or watch has shown yet."""
        found = await (await self.api()).list(
            PODS, workers(self.config.cluster, worker_id=worker_id)
        )
        for item in found.items:
            self.view.take(pod_of(item), _now(), found=True)
        return self.view.of(worker_id)

    async def _stop(self, tracked: Tracked, order: StopOrder) -> None:
        grace_s = math.ceil(order.grace_s) or FORCE_GRACE_S
        if order.force:
            grace_s = FORCE_GRACE_S
        forced = _now() + FORCE_PATIENCE_S if order.force else None
        await self._delete(tracked, grace_s)
        self.view.ask(tracked, due=_now() + grace_s + OVERDUE_S, forced=forced)

    async def _delete(self, tracked: Tracked, grace_s: int) -> None:
        """Asks for the end of exactly this pod. Raises ApiRefused, ApiUnreachable."""
        before = self.view.asking(tracked, grace_s)
        try:
            await (await self.api()).delete(PODS, tracked.name, grace_s=grace_s, uid=tracked.uid)
        except ApiRefused as refused:
            tracked.asked = before
            if refused.code not in (NOT_FOUND, CONFLICT):
                raise
            if tracked.there and tracked.vanished is None:
                self.watch.list_again()  # it went by itself, which the watch should have told
        finally:
            self.view.asked(tracked)

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        """Lists the pods, begun now. Raises Fenced, Unreachable, and Internal where the server
        will not let us."""
        self._tracking.fence(incarnation, epoch)
        self._epoch = max(self._epoch, epoch)
        begun = _now()
        self._seq += 1
        seq = self._seq
        try:
            found = await self._all_pods(timeout_s)
        except Unreachable as error:
            if error.message != self._said:  # it is asked for again, and again
                self._said = error.message
                _log.warning("the pods can't be listed, trying again", cause=error.message)
            raise
        self._said = ""
        self._on_list(self.watch.readable(found.items), begun, tell=False)
        self.watch.go_on_from(found.version)
        self._begin()
        return self._inventory(seq)

    async def _all_pods(self, timeout_s: float) -> Listed:
        try:
            async with asyncio.timeout(timeout_s):
                return await (await self.api()).list(PODS, self._selector)
        except TimeoutError as error:
            raise Unreachable(self._slow()) from error
        except ApiUnreachable as error:
            raise Unreachable(str(error)) from error
        except ApiRefused as refused:
            kind = Unreachable if refused.passes else Internal
            raise kind(f"the pods can't be listed: {refused.message}") from refused

    async def reports(self) -> AsyncIterator[Report]:
        """Ends of workers, those that nobody can vouch for, and whole lists; until ``close``."""
        while not self._closed:
            while self._reports:
                yield self._reports.popleft()
            self._news.clear()
            if not self._closed:
                await self._news.wait()

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        """The end of this worker is in the log: its pod is removed. Raises Unreachable."""
        self._tracking.bury(worker_id)
        tracked = self.view.of(worker_id)
        if tracked is None:
            self.programs.release(worker_id)
            return
        try:
            if tracked.there:
                await self._remove(tracked)
        except (ApiRefused, ApiUnreachable) as error:
            _log.warning("a pod can't be removed", worker_id=worker_id, cause=str(error))
            raise Unreachable(str(error)) from error
        self.view.forget(worker_id)
        if any(volume.name == PROGRAM_VOLUME for volume in tracked.pod.spec.volumes or []):
            self.programs.release(worker_id, tracked.who.job_id, tracked.who.run_id)

    async def _remove(self, tracked: Tracked) -> None:
        try:
            await (await self.api()).delete(PODS, tracked.name, uid=tracked.uid)
        except ApiRefused as refused:
            if refused.code not in (NOT_FOUND, CONFLICT):
                raise

    async def close(self) -> None:
        """Lets go of the connection; the pods stay as they are."""
        self._closed = True
        self._tracking.close()
        self._news.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.maker.close()
        await self.programs.close()
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    # --- what is seen -------------------------------------------------------------------

    def _tell(self, report: Report) -> None:
        self._reports.append(report)
        self._news.set()

    def _inventory(self, seq: int) -> InventoryReply:
        return InventoryReply(
            incarnation=self.incarnation, seq=seq, epoch=self._epoch, workers=self.view.rows()
        )

    def _on_list(self, pods: list[Pod], begun: float, *, tell: bool = True) -> None:
        self.view.listed(pods, _now(), begun, found=not self._listed_once)
        self._listed_once = True
        if tell and self._epoch:
            # Only what was acknowledged before it began may be missed in it.
            self._tell(self._inventory(0))

    def _on_change(self, pod: Pod) -> None:
        known = len(self.view)
        tracked = self.view.take(pod, _now())
        if tracked is None or len(self.view) == known:
            return
        worker_id = tracked.who.worker_id
        if worker_id in self._launching or self.maker.makes(worker_id):
            return
        if tracked.sight.state in (WorkerState.ASSIGNED, WorkerState.RUNNING):
            # Not made by us: by an earlier controller, or by a stranger.
            self.watch.list_again()


def _check_ran(tracked: Tracked) -> None:
    """Raises LaunchRefused for a pod that is over and never ran."""
    if tracked.end is not None and not tracked.ran:
        raise LaunchRefused(tracked.end.reason)


def _now() -> float:
    return asyncio.get_running_loop().time()
