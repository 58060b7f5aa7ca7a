"""Kubernetes: pods created, and thousands of them followed, on a real kube-apiserver.

What lives here: the backend against bare clients of the same server, in the same run. What may
not: the programs that follow (``bench.podwatchers``), and the server (``tests.support.kube``).

The server and etcd take most of this machine, so that what counts is how little is added.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import psutil
from kubernetes_asyncio.client import ApiClient, CoreV1Api
from msgspec import Struct

from bench.measure import Goal, Pair, Row, compare, seconds_of
from bench.podwatchers import Line, Order, Setup, client_to, config_for
from bench.rig import ROOT, scratch
from events.messages import StartPipelineReq
from schedulers.kubernetes.manifest import planned, pod_manifest
from schedulers.kubernetes.overlay import Json
from schedulers.kubernetes.scheduler import KubernetesScheduler
from tests.support.binaries.building import BuildFailed
from tests.support.kube import bodies
from tests.support.kube.apiserver import KubeServer, make_namespace
from tests.support.kube.build import Binaries, ensure_kubernetes
from tests.support.kube.kubelet import Kubelet, now
from tests.support.kube.rest import Pod, Rest, pods_path

AT_ONCE: Final = 32
"""Requests under way, of slotbus as of the bare clients."""

PODS: Final = 200
ROUNDS: Final = 15
FOLLOWED: Final = 5_000
JOBS: Final = 5
CHANGES: Final = 500
CHANGES_A_SECOND: Final = 50.0
CHUNK: Final = 100
QUIET_S: Final = 300.0
PATIENCE_S: Final = 180.0


class Peer:
    """A program of ``bench.podwatchers``, and what it has told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        self.ends: dict[str, float] = {}
        self.stats = psutil.Process(process.pid)
        self._process = process
        self._stdin = process.stdin
        self._answers: asyncio.Queue[Line] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while text := await self._process.stdout.readline():
            line = msgspec.json.decode(text, type=Line)
            if line.worker:
                self.ends.setdefault(line.worker, line.at)
            else:
                self._answers.put_nowait(line)

    async def ready(self) -> Line:
        """The answer to the last order. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._answers.get()

    async def order(self, order: Order | Setup) -> Line:
        self._stdin.write(msgspec.json.encode(order) + b"\n")
        await self._stdin.drain()
        return await self.ready()

    def cpu_s(self) -> float:
        used = self.stats.cpu_times()
        return used.user + used.system

    def rss(self) -> int:
        return int(self.stats.memory_info().rss)

    async def end(self) -> None:
        self._stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            await self._process.wait()
        await self._listening


@asynccontextmanager
async def peer(verb: str) -> AsyncIterator[Peer]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "bench.podwatchers", verb),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    made = Peer(process)
    try:
        yield made
        await made.end()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def binaries() -> Binaries:
    """Loud, where there are none: what is not measured must not look like measured."""
    try:
        return ensure_kubernetes()
    except BuildFailed as error:
        sys.stderr.write(f"\nNOT MEASURED: Kubernetes, no kube-apiserver here: {error}\n\n")
        raise SystemExit(1) from error


async def rows() -> list[Row]:
    programs = binaries()
    async with (
        scratch() as folder,
        KubeServer(folder / "kube", programs) as server,
        server.admin() as admin,
    ):
        return await _measured(server, admin, folder)


# --- creating -----------------------------------------------------------------------------


async def _created(server: KubeServer, admin: Rest) -> list[Row]:
    ours, theirs = _client(server), _client(server)
    try:
        await _ours(ours, await make_namespace(admin))  # everything is connected after that
        await _bare(theirs, await make_namespace(admin))
        rounds = [await _round(ours, theirs, admin, number) for number in range(ROUNDS)]
    finally:
        await ours.close()
        await theirs.close()
    what = f"{PODS} pods created by one start, {AT_ONCE} requests at once"
    bare = "a bare client that posts the same pods, and leaves the answers unread"
    return [
        compare(
            what,
            [Pair(PODS / way[0].wall_s, PODS / way[1].wall_s) for way in rounds],
            "pods/s",
            bare,
            [Goal(0.95, at_least=True)],
        ),
        compare(
            "the same, in CPU time of client, server and etcd",
            [Pair(PODS / way[0].cpu_s, PODS / way[1].cpu_s) for way in rounds],
            "pods/s",
            "the same",
        ),
        compare(
            "pods created by one start",
            [Pair(PODS / way[0].wall_s, PODS / way[2].wall_s) for way in rounds],
            "pods/s",
            "kubernetes_asyncio's create_namespaced_pod",
        ),
    ]


class Took(Struct, frozen=True):
    """``cpu_s``: of all our processes, the server's too: it does not depend on who else uses
    the machine."""

    wall_s: float
    cpu_s: float


async def _round(ours: ApiClient, theirs: ApiClient, admin: Rest, number: int) -> list[Took]:
    """Slotbus, the raw and the typed client, each first in its turn."""
    found: dict[int, Took] = {}
    ways: list[Callable[[str], Awaitable[Took]]] = [
        lambda namespace: _ours(ours, namespace),
        lambda namespace: _bare(theirs, namespace),
        lambda namespace: _bare(theirs, namespace, typed=True),
    ]
    for at in range(len(ways)):
        which = (at + number) % len(ways)
        namespace = await make_namespace(admin)
        found[which] = await ways[which](namespace)
        await admin.delete(pods_path(namespace), grace_s=0)
    return [found[which] for which in range(len(ways))]


async def _took(work: Callable[[], Awaitable[object]]) -> Took:
    before = _cpu_s()
    wall_s = await seconds_of(work)
    return Took(wall_s, _cpu_s() - before)


def _cpu_s() -> float:
    me = psutil.Process()
    times = [process.cpu_times() for process in [me, *me.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


async def _ours(client: ApiClient, namespace: str) -> Took:
    """A start, from the request to the reply, with its log in memory."""
    scheduler = KubernetesScheduler(config_for(namespace), client=client)
    await scheduler.start_workers(_request(1, "warm"))
    took = await _took(lambda: scheduler.start_workers(_request(PODS)))
    await scheduler.close()
    return took


async def _bare(client: ApiClient, namespace: str, *, typed: bool = False) -> Took:
    """The same requests with nothing around."""
    config = config_for(namespace)
    pods = [pod_manifest(config, planned(config, _request(PODS), i, 1)) for i in range(PODS)]
    under_way = asyncio.Semaphore(AT_ONCE)
    headers: dict[str, str] = {}
    await client.update_params_for_auth(headers, [], ["BearerToken"])
    url = f"{client.configuration.host}{pods_path(namespace)}"

    async def post(pod: Json) -> None:
        async with under_way:
            answer = await client.rest_client.request(
                "POST", url, headers=dict(headers), body=pod, _preload_content=False
            )
            await answer.read()
            assert answer.status == 201, answer.status

    async def create(pod: Json) -> None:
        async with under_way:
            await CoreV1Api(client).create_namespaced_pod(namespace, pod)  # type: ignore[arg-type]

    way = create if typed else post
    return await _took(lambda: asyncio.gather(*map(way, pods)))


def _request(slots: int, job_id: str = "j") -> StartPipelineReq:
    return StartPipelineReq(job_id=job_id, slots=slots, wait_s=PATIENCE_S)


def _client(server: KubeServer) -> ApiClient:
    return client_to(server.url, str(server.ca_file), server.admin_token)


# --- following ----------------------------------------------------------------------------


class Followed(Struct):
    """What the followers did: seconds from each change until it was told, and what it took."""

    ours: list[float]
    bare: list[float]
    ours_cpu_s: float
    bare_cpu_s: float


async def _measured(server: KubeServer, admin: Rest, folder: Path) -> list[Row]:
    namespace = await make_namespace(admin)
    setup = Setup(
        server.url, str(server.ca_file), server.admin_token, namespace, str(folder / "events")
    )
    (folder / "events").mkdir()
    async with peer("follow") as starter:
        await starter.order(setup)
        empty = starter.rss()
        for number in range(JOBS):
            await starter.order(Order(f"j{number}", FOLLOWED // JOBS))
    size = len(await admin.call("GET", pods_path(namespace))) / FOLLOWED
    # Another one, that finds them all: it has nothing left over from making them.
    async with peer("follow") as ours, peer("bare") as bare:
        found_s = await seconds_of(lambda: ours.order(setup))
        held = (ours.rss() - empty) / FOLLOWED
        await bare.order(setup)
        changed = await _changed(Kubelet(admin, namespace), ours, bare)
        before, began = (await ours.order(Order())).requests, time.monotonic()
        quiet = asyncio.create_task(asyncio.sleep(QUIET_S))
        created = await _created(server, admin)
        await quiet
        after, quiet_s = (await ours.order(Order())).requests, time.monotonic() - began
    asked = sum(after.values()) - sum(before.values())
    sys.stderr.write(f"requests in {quiet_s:.0f} s: {_less(after, before)}\n")
    return [
        *created,
        *_rows_of(changed),
        _row(f"one of {FOLLOWED:,} pods followed, memory", held, "bytes", "its JSON", size),
        _row(f"{FOLLOWED:,} pods found by a new leader", found_s, "s", "", None),
        Row(
            what=f"requests in {QUIET_S / 60:g} quiet minutes, {FOLLOWED:,} pods",
            value=asked,
            unit="",
            goals=[Goal(10, of="value")],
        ),
    ]


async def _changed(kubelet: Kubelet, ours: Peer, bare: Peer) -> Followed:
    """Pods end, at a steady pace; who follows them tells when it heard of it."""
    pods = (await kubelet.pods())[:CHANGES]
    sent: dict[str, float] = {}
    cpu = ours.cpu_s(), bare.cpu_s()

    async def end(pod: Pod, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        sent[pod.metadata.labels["worker_id"]] = time.monotonic()
        await kubelet.write(pod, bodies.ended(pod, 0, now()))

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, pod in enumerate(pods):
            group.create_task(end(pod, began + number / CHANGES_A_SECOND))
    async with asyncio.timeout(PATIENCE_S):
        while not (sent.keys() <= ours.ends.keys() & bare.ends.keys()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        gone = {pod.name for pod in pods}
        while gone & {pod.name for pod in await kubelet.pods()}:  # noqa: ASYNC110  one request
            await asyncio.sleep(0.2)
    return Followed(
        [ours.ends[worker] - at for worker, at in sent.items()],
        [bare.ends[worker] - at for worker, at in sent.items()],
        ours.cpu_s() - cpu[0],
        bare.cpu_s() - cpu[1],
    )


def _rows_of(changed: Followed) -> list[Row]:
    chunks = [slice(at, at + CHUNK) for at in range(0, CHANGES, CHUNK)]
    p50 = statistics.median
    seen = "a bare watch that sees it"
    return [
        compare(
            f"from a pod's end to the event in the log, {FOLLOWED:,} pods, p50",
            [Pair(p50(changed.ours[part]), p50(changed.bare[part])) for part in chunks],
            "s",
            f"{seen}, p50",
        ),
        _row("the same, p99", _p99(changed.ours), "s", f"{seen}, p99", _p99(changed.bare)),
        _row(
            "an end followed, logged and its pod removed, CPU time",
            changed.ours_cpu_s / CHANGES,
            "s",
            seen,
            changed.bare_cpu_s / CHANGES,
        ),
    ]


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _row(what: str, value: float, unit: str, floor_is: str, floor: float | None) -> Row:
    ratio = None if floor is None else value / floor
    return Row(
        what=what, value=value, unit=unit, floor_is=floor_is, floor=floor, ratio=ratio,
        low=ratio, high=ratio,
    )  # fmt: skip


def _less(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    grown = {key: count - before.get(key, 0) for key, count in after.items()}
    return {key: count for key, count in grown.items() if count}
