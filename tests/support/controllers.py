"""Real controllers for tests: in this process, or in one of their own to be killed.

What lives here: starting and ending them, reading their pages, asking them as a client
does. What may not: what a controller decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from controller.app import ControllerInfo, run_controller
from controller.config import ControllerConfig
from events.codec import error_from_body
from events.errors import NotLeader, SlotbusError
from events.subjects import Subjects
from tests.support.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]


def config_for(
    server: str, subjects: Subjects, state_dir: Path, **settings: object
) -> ControllerConfig:
    """A configuration for tests: nothing shared, quick leases."""
    config = ControllerConfig(
        server=server,
        root=subjects.root,
        state_dir=str(state_dir),
        http="127.0.0.1:0",
        lease_ttl_s=2,
        shutdown_timeout_s=2.0,
        log_max_bytes=64 * 1024 * 1024,
        worker_command=["sleep", "600"],
    )
    return msgspec.structs.replace(config, **settings)


class Controller:
    """One in this process. ``info`` is there once it leads."""

    def __init__(self, config: ControllerConfig) -> None:
        self.config = config
        self.leads: asyncio.Future[ControllerInfo] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._news = asyncio.Event()
        self.leads.add_done_callback(lambda _: self._news.set())
        self.task = asyncio.create_task(
            run_controller(config, ready=self.leads.set_result, stop=self._stop)
        )
        self.task.add_done_callback(lambda _: self._news.set())

    async def leading(self) -> ControllerInfo:
        """Waits until it leads; raises what ended it before."""
        async with asyncio.timeout(DEADLINE_S):
            await self._news.wait()
        if not self.leads.done():
            self.task.result()
        return self.leads.result()

    async def stop(self) -> None:
        """An orderly end. Raises what ended it otherwise."""
        self._stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await self.task


@asynccontextmanager
async def controller(config: ControllerConfig) -> AsyncIterator[Controller]:
    """A controller for a block of code, stopped in order at its end."""
    made = Controller(config)
    try:
        yield made
    finally:
        if not made.task.done():
            await made.stop()
        elif not made.task.cancelled():
            made.task.exception()  # the block's to look at


class ControllerProcess:
    """One in a process of its own, which can be frozen and killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, config: ControllerConfig, log: Path) -> ControllerProcess:
        """Starts it; its log goes to a file."""
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "tests.support.controller_program"),
                msgspec.json.encode(config).decode(),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        return cls(process)

    async def leading(self) -> ControllerInfo:
        """Waits until it leads."""
        assert self.process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            line = await self.process.stdout.readline()
        assert line, "the controller ended before it led"
        return msgspec.json.decode(line, type=ControllerInfo)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Ends it without a chance to say anything."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def terminate(self) -> int:
        """Asks it to end; its exit code."""
        self.process.terminate()
        async with asyncio.timeout(DEADLINE_S):
            return await self.process.wait()


@asynccontextmanager
async def controller_process(
    config: ControllerConfig, log: Path
) -> AsyncIterator[ControllerProcess]:
    """A controller's process for a block of code; killed at its end if it still runs."""
    made = await ControllerProcess.start(config, log)
    try:
        yield made
    finally:
        await made.kill()


class Caller:
    """A client of the plain kind: requests with JSON, as from the nats command line."""

    def __init__(self, nc: Client, subjects: Subjects) -> None:
        self._nc = nc
        self._subjects = subjects

    async def cmd(self, verb: str, **fields: object) -> dict[str, Any]:
        """The reply's body. Raises the error that it holds, NoRespondersError, TimeoutError."""
        return await self._ask(self._subjects.cmd(verb), fields)

    async def query(self, what: str, **fields: object) -> dict[str, Any]:
        """As ``cmd``."""
        return await self._ask(self._subjects.query(what), fields)

    async def node(self, node_id: str, verb: str, **fields: object) -> dict[str, Any]:
        """What an agent says: as ``cmd``."""
        return await self._ask(self._subjects.node(node_id, verb), fields)

    async def workers(self, *, patient: bool = False, **fields: object) -> list[dict[str, Any]]:
        """The rows of ``query.workers``; ``patient``: while nobody leads, ask again."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    rows: list[dict[str, Any]] = (await self.query("workers", **fields))["workers"]
                    return rows
                except (NoRespondersError, NotLeader):
                    if not patient:
                        raise
                await asyncio.sleep(0.02)

    async def cmd_patiently(self, verb: str, **fields: object) -> dict[str, Any]:
        """As ``cmd``, asked again under one command_id while nobody leads."""
        fields.setdefault("command_id", f"c-{secrets.token_hex(4)}")
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(NoRespondersError, NotLeader, NatsTimeout):
                    return await self._ask(self._subjects.cmd(verb), fields, timeout_s=1.0)
                await asyncio.sleep(0.02)

    async def until_nodes(self, count: int) -> None:
        """Waits until so many nodes are ready."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                nodes = (await self.query("nodes"))["nodes"]
                if sum(node["state"] == "ready" for node in nodes) >= count:
                    return
                await asyncio.sleep(0.02)

    async def until_workers(self, state: str) -> list[dict[str, Any]]:
        """Waits until all workers, those that ended too, are in a state."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                rows = await self.workers(patient=True, all=True)
                if rows and {row["state"] for row in rows} == {state}:
                    return rows
                await asyncio.sleep(0.02)

    async def _ask(
        self, subject: str, fields: dict[str, object], timeout_s: float = DEADLINE_S
    ) -> dict[str, Any]:
        reply = await self._nc.request(subject, json.dumps(fields).encode(), timeout=timeout_s)
        error: SlotbusError | None = error_from_body(reply.data)
        if error is not None:
            raise error
        body: dict[str, Any] = json.loads(reply.data)
        return body


async def page(info: ControllerInfo, path: str) -> str:
    """The text of one of its pages, whatever its status."""
    assert info.http is not None
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{info.http.host}:{info.http.port}{path}") as response,
    ):
        return (await response.text()).strip()


async def until_page(info: ControllerInfo, path: str, text: str) -> None:
    """Waits until a page says this."""
    async with asyncio.timeout(DEADLINE_S):
        while await page(info, path) != text:  # noqa: ASYNC110  what is waited for is remote
            await asyncio.sleep(0.02)


def samples(text: str) -> dict[str, float]:
    """Series of a metrics page by their name with labels."""
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
