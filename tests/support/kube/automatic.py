"""Nodes that work by themselves: every new pod of a namespace is bound, runs and ends.

What lives here: ``Automatic``, which follows the pods by a watch and plays each one's life by
a ``Behaviour``. What may not: single steps (``kubelet``).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Final, Self

import aiohttp

from tests.support.kube import bodies
from tests.support.kube.kubelet import NOT_FOUND, Kubelet, is_another, now
from tests.support.kube.rest import Event, Pod, PodList, Refused, pods_path

RETRY_S: Final = 0.05
WATCH_S: Final = 300
TOO_MANY: Final = 429
GONE: Final = 410
KILLED_CODE: Final = 137
TERMINATED_CODE: Final = 143


@dataclass(frozen=True)
class Behaviour:
    """How a pod and its processes behave; times in seconds."""

    schedule: bool = True
    """Bind it, if nobody has; without, it waits for a real scheduler or the test."""

    run_after_s: float = 0.0
    waiting: str = ""
    """It is bound and never runs, for this reason, as ImagePullBackOff."""

    end_after_s: float | None = None
    """Its processes end by themselves, with ``exit_code``."""

    exit_code: int = 0
    stop_after_s: float = 0.0
    """How long its processes take to end once they were told to."""

    stop_exit_code: int = TERMINATED_CODE
    ignores_term: bool = False
    """They run on until the grace is over."""


@dataclass(eq=False)
class _Life:
    pod: Pod
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    terminating: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def see(self, pod: Pod) -> None:
        self.pod = pod
        if pod.terminating:
            self.terminating.set()
        self.changed.set()

    def end(self) -> None:
        self.gone.set()
        self.terminating.set()
        self.changed.set()


class Automatic:
    """Use it as a context manager; an error of its own comes out at the end of the block.

    ``behave`` says how a pod behaves and may be replaced at any time: it is asked once a pod.
    Pods go to the nodes in turn, lost ones left out.
    """

    def __init__(
        self, kubelet: Kubelet, behave: Callable[[Pod], Behaviour] = lambda pod: Behaviour()
    ) -> None:
        self.kubelet = kubelet
        self.behave = behave
        self._lives: dict[str, _Life] = {}
        self._turn = count()
        self._listed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._follower = self._group.create_task(self._follow())
        self._tasks: set[asyncio.Task[None]] = {self._follower}
        await self._listed.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    # --- what there is ------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Lists and watches for ever, over any break."""
        path = pods_path(self.kubelet.namespace)
        while True:
            try:
                listed = await self.kubelet.api.get_as(path, PodList)
                self._reconcile(listed.items)
                self._listed.set()
                async with self.kubelet.api.watch(
                    path, listed.metadata.resource_version, timeoutSeconds=str(WATCH_S)
                ) as events:
                    async for event in events:
                        if not self._take(event):
                            break
            except Refused as refused:
                if not _passes(refused):
                    raise
            except (aiohttp.ClientError, TimeoutError):
                pass  # the server is away; it comes back
            await asyncio.sleep(RETRY_S)

    def _reconcile(self, pods: list[Pod]) -> None:
        for pod in pods:
            self._see(pod)
        here = {pod.uid for pod in pods}
        for uid in [uid for uid in self._lives if uid not in here]:
            self._lives.pop(uid).end()

    def _take(self, event: Event) -> bool:
        """False when the watch is of no more use."""
        match event.type:
            case "ADDED" | "MODIFIED":
                self._see(event.pod)
            case "DELETED":
                life = self._lives.pop(event.pod.uid, None)
                if life is not None:
                    life.end()
            case _:
                return False
        return True

    def _see(self, pod: Pod) -> None:
        life = self._lives.get(pod.uid)
        if life is None:
            life = self._lives[pod.uid] = _Life(pod)
            task = self._group.create_task(self._live(life))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        life.see(pod)

    # --- one pod ------------------------------------------------------------------------------

    async def _live(self, life: _Life) -> None:
        behaviour = self.behave(life.pod)
        if not life.terminating.is_set():
            playing = asyncio.create_task(self._play(life, behaviour))
            ending = asyncio.create_task(life.terminating.wait())
            try:
                await asyncio.wait({playing, ending}, return_when=asyncio.FIRST_COMPLETED)
                if playing.done():
                    playing.result()
                    await ending
            finally:
                for task in (playing, ending):
                    task.cancel()
                await asyncio.gather(playing, ending, return_exceptions=True)
        await self._terminate(life, behaviour)

    async def _play(self, life: _Life, behaviour: Behaviour) -> None:
        if life.pod.ended or not await self._on_node(life, behaviour):
            return
        if behaviour.waiting:
            await self._act(life, lambda: self._write_waiting(life.pod, behaviour.waiting))
            return
        if life.pod.status.phase != "Running":
            await asyncio.sleep(behaviour.run_after_s)
            if not await self._act(life, lambda: self._write_running(life.pod)):
                return
        if behaviour.end_after_s is not None:
            await asyncio.sleep(behaviour.end_after_s)
            await self._act(life, lambda: self._write_ended(life.pod, behaviour.exit_code))

    async def _on_node(self, life: _Life, behaviour: Behaviour) -> bool:
        """Waits until it is bound, or binds it. False if it is gone before."""
        if behaviour.schedule and not life.pod.spec.node_name:
            nodes = [n for n in self.kubelet.nodes if n not in self.kubelet.lost_nodes]
            node = nodes[next(self._turn) % len(nodes)]

            async def place() -> None:
                life.pod = await self.kubelet.place(life.pod, node)

            await self._act(life, place)
        while not life.pod.spec.node_name and not life.gone.is_set():
            life.changed.clear()
            await life.changed.wait()
        return not life.gone.is_set()

    async def _terminate(self, life: _Life, behaviour: Behaviour) -> None:
        """It was deleted: the processes get their time, then the object goes; or the object
        is gone already, and the processes follow when the node notices."""
        killed = await self._grace(life, behaviour)
        await self._until_found(life)
        pod, ran = life.pod, life.pod.uid in self.kubelet.containers
        if not life.gone.is_set():
            if ran and not pod.ended:
                code = KILLED_CODE if killed else behaviour.stop_exit_code
                await self._act(life, lambda: self._write_ended(pod, code))
            await self._act(life, lambda: self.kubelet.remove(pod))
        self.kubelet.containers.pop(pod.uid, None)

    async def _grace(self, life: _Life, behaviour: Behaviour) -> bool:
        """Waits until the processes have ended, or must; True if they were killed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if life.pod.uid not in self.kubelet.containers:
            return False
        takes = math.inf if behaviour.ignores_term else behaviour.stop_after_s
        # With a grace of 0 the object goes by itself, before anybody has looked at it.
        while not life.gone.is_set() and (grace := life.pod.metadata.grace_s) > 0:
            left = min(takes, grace) - (loop.time() - began)
            if left <= 0:
                return takes > grace
            life.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(life.changed.wait(), left)
        await asyncio.sleep(behaviour.stop_after_s)
        return True

    # --- what is written ----------------------------------------------------------------------

    async def _write_waiting(self, pod: Pod, reason: str) -> None:
        await self.kubelet.write(pod, bodies.waiting(pod, reason, "", now()))

    async def _write_running(self, pod: Pod) -> None:
        self.kubelet.containers[pod.uid] = pod
        await self.kubelet.write(pod, bodies.running(pod, now()))

    async def _write_ended(self, pod: Pod, code: int) -> None:
        self.kubelet.containers.pop(pod.uid, None)
        await self.kubelet.write(pod, bodies.ended(pod, code, now()))

    async def _act(self, life: _Life, action: Callable[[], Awaitable[None]]) -> bool:
        """Repeats until the server has taken it; False if the pod is not there any more."""
        while True:
            await self._until_found(life)
            try:
                await action()
            except Refused as refused:
                if refused.status == NOT_FOUND or is_another(refused):
                    return False
                if not _passes(refused):
                    raise
            except (aiohttp.ClientError, TimeoutError):
                pass  # the server is away; it comes back
            else:
                return True
            await asyncio.sleep(RETRY_S)

    async def _until_found(self, life: _Life) -> None:
        while self.kubelet.is_lost(life.pod):  # noqa: ASYNC110  a lost node is rare and short
            await asyncio.sleep(RETRY_S)


def _passes(refused: Refused) -> bool:
    return refused.status >= 500 or refused.status in (TOO_MANY, GONE)
