"""A Kubernetes API in memory for tests in virtual time: it can be away for as long as they like.

What lives here: ``PretendCluster`` (pods, and whether it answers) and ``PretendApi``, the way to
it. What may not: proofs about a real server, which has tests of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

from schedulers.kubernetes.client import NOT_FOUND, ApiRefused, ApiUnreachable, KubeApi, Listed
from schedulers.kubernetes.client import WatchEvent as Told
from schedulers.kubernetes.overlay import Json
from schedulers.kubernetes.pacing import Pacer

REFUSED_AFTER_S = 0.01


class PretendCluster:
    """Pods that run as soon as they are made, and are gone as soon as they are deleted."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.asked: Counter[str] = Counter()
        self._history: list[Told] = []
        self._more = asyncio.Event()
        self._there = asyncio.Event()
        self._gone = asyncio.Event()
        self._there.set()

    def leave(self) -> None:
        """Nothing is answered any more, and every watch breaks."""
        self._there.clear()
        self._gone.set()

    def come_back(self) -> None:
        self._gone.clear()
        self._there.set()

    async def answer(self, verb: str) -> None:
        """Takes a request. Raises ApiUnreachable."""
        self.asked[verb] += 1
        if not self._there.is_set():
            await asyncio.sleep(REFUSED_AFTER_S)
            raise ApiUnreachable("connection refused")

    def put(self, pod: Json, kind: str = "ADDED") -> Json:
        """A pod as it is from now on, which watches tell."""
        self.pods[pod["metadata"]["name"]] = pod
        self._happened(kind, pod)
        return pod

    def make(self, manifest: Json) -> Json:
        pod: Json = msgspec.json.decode(msgspec.json.encode(manifest))
        pod["metadata"]["uid"] = f"uid of {pod['metadata']['name']}"
        pod["spec"]["nodeName"] = "n1"
        running = {"name": "worker", "state": {"running": {}}}
        pod["status"] = {"phase": "Running", "containerStatuses": [running]}
        return self.put(pod)

    def end(self, name: str, code: int) -> None:
        """Its container ends by itself."""
        ended = {"name": "worker", "state": {"terminated": {"exitCode": code}}}
        phase = "Failed" if code else "Succeeded"
        pod = self.pods[name]
        self.put({**pod, "status": {"phase": phase, "containerStatuses": [ended]}}, "MODIFIED")

    def remove(self, name: str) -> None:
        """The object goes."""
        self._happened("DELETED", self.pods.pop(name))

    def version(self) -> str:
        return str(len(self._history))

    def _happened(self, kind: str, pod: Json) -> None:
        pod["metadata"]["resourceVersion"] = str(len(self._history) + 1)
        self._history.append(Told(kind, Raw(msgspec.json.encode(pod))))
        self._more.set()
        self._more = asyncio.Event()

    async def told(self, version: str, lasts_s: float) -> AsyncGenerator[Told]:
        """What has happened since, and what happens. Raises ApiUnreachable when it leaves."""
        at = int(version)
        gone = asyncio.create_task(self._gone.wait())
        try:
            async with asyncio.timeout(lasts_s):
                while True:
                    next_one = self._more  # what happens before the task waits is not missed
                    while at < len(self._history):
                        at += 1
                        yield self._history[at - 1]
                    more = asyncio.create_task(next_one.wait())
                    await asyncio.wait({more, gone}, return_when=asyncio.FIRST_COMPLETED)
                    more.cancel()
                    if gone.done():
                        raise ApiUnreachable("the watch broke off")
        except TimeoutError:
            return
        finally:
            gone.cancel()


class PretendApi(KubeApi):
    """The way to a cluster that is pretended, paced like the real one."""

    def __init__(self, cluster: PretendCluster) -> None:
        self.namespace = "pretended"
        self.asked = Counter()
        self.pacer = Pacer(1_000, 1_000, 32)
        self._cluster = cluster

    async def create(self, kind: str, manifest: Callable[[], Json]) -> bytes:
        await self._paced_answer("create")
        return msgspec.json.encode(self._cluster.make(manifest()))

    async def get(self, kind: str, name: str, group: str = "") -> bytes:
        await self._paced_answer("get")
        return msgspec.json.encode(self._found(name))

    async def delete(
        self, kind: str, name: str, *, grace_s: int | None = None, uid: str = ""
    ) -> bytes:
        await self._paced_answer("delete")
        pod = self._found(name)
        self._cluster.remove(name)
        return msgspec.json.encode(pod)

    async def list(self, kind: str, selector: str) -> Listed:
        await self._paced_answer(f"list {kind}")
        pods = self._cluster.pods.values() if kind == "pods" else ()
        return Listed(self._cluster.version(), [Raw(msgspec.json.encode(pod)) for pod in pods])

    async def knows(self, kind: str, selector: str, version: str) -> bool:
        await self._paced_answer("knows")
        return True

    @asynccontextmanager
    async def watch(
        self, kind: str, selector: str, version: str, timeout_s: float, silence_s: float
    ) -> AsyncGenerator[AsyncGenerator[Told]]:
        await self._answered("watch")
        yield self._cluster.told(version, timeout_s)

    async def close(self) -> None:
        pass

    async def _paced_answer(self, verb: str) -> None:
        async with self.pacer.turn():
            await self._answered(verb)

    async def _answered(self, verb: str) -> None:
        try:
            await self._cluster.answer(verb)
        except ApiUnreachable as error:
            self.pacer.unanswered(str(error))
            raise
        self.pacer.answered()

    def _found(self, name: str) -> dict[str, Any]:
        pod = self._cluster.pods.get(name)
        if pod is None:
            raise ApiRefused(NOT_FOUND, "NotFound", f"no pod {name}", None)
        return pod
