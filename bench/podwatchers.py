"""Programs that follow pods, for ``bench.kubernetes``: ``python -m bench.podwatchers VERB``.

What lives here: slotbus's own scheduler, and its floor, a bare watch. What may not: measuring;
whoever starts them looks at their processes from outside.

Both read a ``Setup`` and then orders as lines of JSON, and print lines of JSON. Times are of the
machine's monotonic clock, which all programs share.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import structlog
from kubernetes_asyncio.client import ApiClient, Configuration
from msgspec import Struct

from events.facts import Record, WorkerEnded
from events.filelog import FileLog
from events.ids import Position
from events.messages import StartPipelineReq
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.launcher import KubernetesLauncher
from schedulers.kubernetes.scheduler import KubernetesScheduler

CLUSTER: Final = "bench"
WATCH_S: Final = 3_000
LINE_BYTES: Final = 4 * 1024 * 1024


class Setup(Struct):
    """Whom to follow. ``folder``: where the event log is."""

    url: str
    ca_file: str
    token: str
    namespace: str
    folder: str


class Order(Struct):
    """``start``: so many slots of a job, a pod each; ``job`` empty: how many requests were
    made so far."""

    job: str = ""
    slots: int = 0


class Line(Struct, omit_defaults=True):
    """``ready``: an order was carried out; ``worker``: its end is in the log, or was seen."""

    at: float
    ready: bool = False
    worker: str = ""
    requests: dict[str, int] = {}


def config_for(namespace: str) -> KubernetesConfig:
    """One slot a pod, and no brake of our own."""
    return KubernetesConfig(
        namespace=namespace,
        cluster=CLUSTER,
        task_slots=1,
        image="bench/none",
        owner="none",
        start_deadline_s=86_400.0,
        requests_per_s=10_000.0,
        burst=10_000,
    )


def client_to(url: str, ca_file: str, token: str) -> ApiClient:
    """kubernetes_asyncio's client, as somebody would configure it by hand."""
    made = Configuration(host=url)
    made.api_key["BearerToken"] = f"Bearer {token}"
    made.ssl_ca_cert = ca_file
    # The certificate that the server makes for itself lacks what strictness asks for.
    made.disable_strict_ssl_verification = True
    made.connection_pool_maxsize = 64
    return ApiClient(made)


def say(line: Line) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


async def follow(setup: Setup, orders: AsyncIterator[Order]) -> None:
    """The scheduler, on a log in a file, each append of which is synced."""
    client = client_to(setup.url, setup.ca_file, setup.token)

    def told(_: Position, record: Record) -> None:
        for fact in record.events:
            if isinstance(fact, WorkerEnded):
                say(Line(at=time.monotonic(), worker=fact.worker_id))

    scheduler = KubernetesScheduler(
        config_for(setup.namespace), client=client, log=FileLog(Path(setup.folder) / "log")
    )
    scheduler.observe(told)
    await scheduler.start()
    launcher = scheduler.backend.launcher
    assert isinstance(launcher, KubernetesLauncher)
    api = await launcher.api()
    say(Line(at=time.monotonic(), ready=True))
    async for order in orders:
        if order.job:
            await scheduler.start_workers(
                StartPipelineReq(job_id=order.job, slots=order.slots, wait_s=300.0)
            )
        asked = {f"{one.verb} {one.code}": count for one, count in api.asked.items()}
        say(Line(at=time.monotonic(), ready=True, requests=asked))
    await scheduler.close()
    await client.close()


class _Meta(Struct):
    labels: dict[str, str] = {}


class _Status(Struct):
    phase: str = ""


class _Pod(Struct):
    metadata: _Meta
    status: _Status


class _Event(Struct):
    type: str
    object: _Pod


class _ListMeta(Struct, rename="camel"):
    resource_version: str


class _List(Struct):
    metadata: _ListMeta


async def bare(setup: Setup, orders: AsyncIterator[Order]) -> None:
    """A watch with the least decoding that tells which pod has ended."""
    client = client_to(setup.url, setup.ca_file, setup.token)
    path = f"{setup.url}/api/v1/namespaces/{setup.namespace}/pods"
    headers: dict[str, str] = {}
    await client.update_params_for_auth(headers, [], ["BearerToken"])
    ask = client.rest_client.request
    first = await ask("GET", path, headers=dict(headers), _preload_content=False)
    version = msgspec.json.decode(await first.read(), type=_List).metadata.resource_version
    query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
    answer = await ask(
        "GET", path, headers=dict(headers), query_params=query, _preload_content=False
    )
    say(Line(at=time.monotonic(), ready=True))

    async def listen() -> None:
        while line := await answer.content.readline():
            event = msgspec.json.decode(line, type=_Event)
            if event.type == "MODIFIED" and event.object.status.phase == "Succeeded":
                say(Line(at=time.monotonic(), worker=event.object.metadata.labels["worker_id"]))

    listening = asyncio.create_task(listen())
    async for _ in orders:
        say(Line(at=time.monotonic(), ready=True))
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    answer.close()
    await client.close()


async def main(verb: str) -> None:
    """Until standard input ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    setup = msgspec.json.decode(await reader.readline(), type=Setup)

    async def orders() -> AsyncIterator[Order]:
        while line := await reader.readline():
            yield msgspec.json.decode(line, type=Order)

    await {"follow": follow, "bare": bare}[verb](setup, orders())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
