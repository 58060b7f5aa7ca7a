"""What benchmarks stand on: a real nats-server, and programs of their own beside it.

What lives here: starting and ending them, all on loopback. What may not: measuring.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import nats.errors
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.client import SlotbusClient
from events.connection import connect
from events.errors import SlotbusError
from events.states import NodeState
from schedulers.supervisor.api import SupervisorGone
from schedulers.supervisor.client import SupervisorClient

ROOT: Final = Path(__file__).resolve().parents[1]
DEADLINE_S: Final = 60.0
STOP_S: Final = 20.0


@asynccontextmanager
async def scratch() -> AsyncIterator[Path]:
    """A folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="slotbus-bench-") as name:
        yield Path(name)


@asynccontextmanager
async def nats_server() -> AsyncIterator[EmbeddedServer]:
    """As ``slotbus up`` runs it: JetStream on disk, every append synced."""
    async with scratch() as folder, EmbeddedServer(folder / "nats") as server:
        yield server


@asynccontextmanager
async def linked(server: EmbeddedServer, name: str = "bench") -> AsyncIterator[Client]:
    """A connection as our own programs make it."""
    nc = await connect(server.url, name=name, pending_size=0)
    try:
        yield nc
    finally:
        await nc.close()


@asynccontextmanager
async def program(log: Path, *arguments: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A Python program (``-m MODULE ...``) in a process of its own, ended with TERM."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)


@asynccontextmanager
async def helper(server: EmbeddedServer, verb: str, *arguments: str) -> AsyncIterator[None]:
    """``bench.peers VERB`` in a process of its own: the far end of a floor."""
    async with (
        scratch() as folder,
        program(folder / "log", "-m", "bench.peers", verb, server.url, *arguments),
    ):
        yield


@asynccontextmanager
async def cluster(
    server: EmbeddedServer, folder: Path, slots: int, *, record: Path | None = None
) -> AsyncIterator[None]:
    """A controller and two agents as a user runs them, with ``slots`` slots each. ``record``:
    a folder for recordings."""
    async with contextlib.AsyncExitStack() as stack:
        common = ("--server", server.url, "--http", "off", "--log-level", "warning")
        entry = ("-m", "controller.entry")
        for name in ("n1", "n2"):
            state = folder / name
            await stack.enter_async_context(_supervisor_gone(state))
            await stack.enter_async_context(
                program(
                    folder / f"{name}.log",
                    *(*entry, "agent", "--node-id", name, "--slots", str(slots), *common),
                    *("--state-dir", str(state), "--worker-command", "sleep 600"),
                )
            )
        recording = ("--record", str(record)) if record is not None else ()
        controller = ("controller", "--scheduler", "node", *common, *recording)
        await stack.enter_async_context(program(folder / "controller.log", *entry, *controller))
        async with linked(server) as nc:
            await _until_ready(SlotbusClient(nc), 2, folder)
        yield


@asynccontextmanager
async def _supervisor_gone(state: Path) -> AsyncIterator[None]:
    """At the end the supervisor that an agent leaves behind is ended, with its workers."""
    try:
        yield
    finally:
        with contextlib.suppress(SupervisorGone, OSError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                supervisor = await SupervisorClient.connect(state)
                await supervisor.shutdown(0.0)


async def _until_ready(bus: SlotbusClient, count: int, folder: Path) -> None:
    """Raises RuntimeError with the end of each program's log."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while asyncio.get_running_loop().time() < deadline:
        with contextlib.suppress(SlotbusError):
            nodes = await bus.nodes()
            if sum(node.state == NodeState.READY for node in nodes) >= count:
                return
        await asyncio.sleep(0.05)
    raise RuntimeError("\n".join(["the cluster did not come up", *_ends_of_logs(folder)]))


def _ends_of_logs(folder: Path) -> list[str]:
    return [f"{path.name}:\n{path.read_text()[-1_000:]}" for path in folder.glob("*.log")]


async def until_answered(nc: Client, subject: str) -> None:
    """Waits until somebody answers there, with whatever."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(nats.errors.Error):
                await nc.request(subject, b"", timeout=1.0)
                return
            await asyncio.sleep(0.05)
