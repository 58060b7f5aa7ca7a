"""Nodes whose containers are real processes of this machine.

What lives here: ``ProcessNode``, which runs the ``worker`` container of every pod of a
namespace as Kubernetes would: its command, its environment, TERM, grace, KILL, exit code.
What may not: images, volumes, other containers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from tests.support.kube import bodies
from tests.support.kube.kubelet import CONFLICT, NOT_FOUND, Kubelet, now
from tests.support.kube.rest import Pod, PodList, Refused, pods_path

SIGNALLED: Final = 128
START_ERROR: Final = 128


class ProcessNode:
    """Use it as a context manager; its processes end with it."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """By the pod's uid."""

        self._changed: dict[str, asyncio.Event] = {}
        self._pods: dict[str, Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        listed = asyncio.Event()
        self._spawn(self._follow(listed))
        await listed.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        found = await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self.processes.values():
            _kill(process, signal.SIGKILL)
            process.wait()
        for one in found:
            if isinstance(one, Exception):
                raise one

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)

    async def _follow(self, listed: asyncio.Event) -> None:
        path = pods_path(self.kubelet.namespace)
        found = await self.kubelet.api.get_as(path, PodList)
        for pod in found.items:
            self._see(pod)
        version = found.metadata.resource_version
        async with self.kubelet.api.watch(path, version, timeoutSeconds="300") as events:
            listed.set()
            async for event in events:
                pod = event.pod
                if event.type == "DELETED":
                    self._pods.pop(pod.uid, None)
                    if pod.uid in self._changed:
                        self._changed[pod.uid].set()
                else:
                    self._see(pod)

    def _see(self, pod: Pod) -> None:
        first = pod.uid not in self._changed
        self._pods[pod.uid] = pod
        self._changed.setdefault(pod.uid, asyncio.Event()).set()
        if first:
            self._spawn(self._live(pod))

    async def _live(self, pod: Pod) -> None:
        try:
            pod = await self.kubelet.place(pod, self.kubelet.nodes[0])
            whole = await self.kubelet.api.get(pods_path(self.kubelet.namespace, pod.name))
            process = await self._start(pod, whole)
            if process is not None:
                code = await self._until_ended(pod, process)
                await self.kubelet.write(pod, bodies.ended(pod, code, now()))
            await self._until_deleted(pod)
            await self.kubelet.remove(pod)
        except Refused as refused:
            if refused.status not in (NOT_FOUND, CONFLICT):
                raise  # else the pod is gone already
        finally:
            if pod.uid in self.processes:
                _kill(self.processes[pod.uid], signal.SIGKILL)

    async def _start(self, pod: Pod, whole: Mapping[str, Any]) -> subprocess.Popen[bytes] | None:
        worker = next(c for c in whole["spec"]["containers"] if c["name"] == "worker")
        env = {one["name"]: _literal(one.get("value", "")) for one in worker.get("env", [])}
        words = [_literal(word) for word in worker["command"]]
        try:
            process = _popen(words, env)
        except OSError as error:
            said = bodies.ended(pod, START_ERROR, now(), "StartError")
            said["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = (  # type: ignore[index]
                f"exec: {words[0]!r}: {error.strerror}"
            )
            await self.kubelet.write(pod, said)
            return None
        self.processes[pod.uid] = process
        await self.kubelet.write(pod, bodies.running(pod, now()))
        return process

    async def _until_ended(self, pod: Pod, process: subprocess.Popen[bytes]) -> int:
        loop = asyncio.get_running_loop()
        asked_at: float | None = None
        while process.poll() is None:
            latest = self._pods.get(pod.uid)
            grace_s = latest.metadata.deletion_grace_period_seconds if latest else 0
            if latest is None or latest.terminating:
                if asked_at is None:
                    asked_at = loop.time()
                    _kill(process, signal.SIGTERM)
                if loop.time() - asked_at >= (grace_s or 0):
                    _kill(process, signal.SIGKILL)
            await asyncio.sleep(0.01)
        code = process.returncode
        return code if code >= 0 else SIGNALLED - code

    async def _until_deleted(self, pod: Pod) -> None:
        while (latest := self._pods.get(pod.uid)) is not None and not latest.terminating:
            self._changed[pod.uid].clear()
            await self._changed[pod.uid].wait()


def _popen(words: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        env={"PATH": os.environ["PATH"]} | env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _literal(text: str) -> str:
    """What Kubernetes makes of ``$$``; nothing here refers to another variable."""
    return text.replace("$$", "$")
