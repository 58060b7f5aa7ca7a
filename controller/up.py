"""``slotbus up``: NATS, a controller and its workers on this machine, in one command.

What lives here: starting the parts in order, saying what to type next, and ending them in
order. What may not: the parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from controller.app import ControllerInfo, run_controller
from controller.children import Child
from controller.cli.finding import leave_note
from controller.config import ControllerConfig, default_state_dir, env_name
from controller.embedded import LOCALHOST, EmbeddedServer
from controller.loading import NATS_VARIABLES
from events.client import SlotbusClient
from events.errors import SlotbusError
from events.queries import JobRow
from events.states import RUN_ENDED, NodeState
from schedulers.idle import idle_command
from schedulers.supervisor.api import SupervisorGone
from schedulers.supervisor.client import SupervisorClient

NATS_PORT: Final = 4222
READY_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.1
STOP_GRACE_S: Final = 5.0
"""Between TERM and KILL for the jobs that run when we end."""
AGENT_STOP_S: Final = 10.0

_CREDENTIALS: Final = (
    *("user", "password", "token", "creds_file", "nkey_file"),
    *("tls_ca", "tls_cert", "tls_key"),
)

Say = Callable[[str], None]


class UpFailed(SlotbusError):
    """A part did not start, or has ended by itself."""

    code: ClassVar[str] = "up_failed"
    status: ClassVar[int] = 500


class UpConfig(Struct, kw_only=True):
    """``nodes`` agents with ``slots`` each; 0: the controller's own workers, ``slots`` of
    them. ``own_server``: start a NATS server, on ``port`` (None: the usual one if free)."""

    controller: ControllerConfig
    nodes: int
    slots: int
    own_server: bool
    port: int | None = None

    def __post_init__(self) -> None:
        if self.own_server:  # which asks nobody who they are
            self.controller = replace(self.controller, **dict.fromkeys(_CREDENTIALS, ""))

    def folder(self) -> Path:
        """Where everything is kept."""
        configured = self.controller.state_dir
        return Path(configured) if configured else default_state_dir(os.environ, "up")


async def run_up(plan: UpConfig, say: Say, stop: asyncio.Event) -> None:
    """Runs until ``stop`` is set, then stops all jobs and ends everything.

    Raises UpFailed and what the parts raise when they can't start.
    """
    up = _Up(plan, say)
    async with contextlib.AsyncExitStack() as parts:
        url = await parts.enter_async_context(up.nats_server())
        info = await parts.enter_async_context(up.controller(url))
        await parts.enter_async_context(up.agents(url))
        bus = await parts.enter_async_context(
            SlotbusClient.connect(
                url, plan.controller.root, name="slotbus up", access=plan.controller.access()
            )
        )
        await up.nodes_ready(bus, stop)
        parts.enter_context(up.note(url))
        if not stop.is_set():
            up.greet(url, info)
        await up.until(stop)
        await up.stop_jobs(bus)
    say(f"ended; what happened stays in {plan.folder()}")


class _Up:
    """The parts, and who of them has ended by itself."""

    def __init__(self, plan: UpConfig, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._folder = plan.folder()
        self._idle = not plan.controller.worker_command
        self._watched: dict[str, asyncio.Task[object]] = {}
        self._children: list[Child] = []

    @contextlib.asynccontextmanager
    async def nats_server(self) -> AsyncGenerator[str]:
        """The URL of the server, ours or a given one."""
        if not self._plan.own_server:
            yield self._plan.controller.server
            return
        port = self._plan.port
        if port is None:
            port = NATS_PORT if _is_free(NATS_PORT) else 0
            if not port:
                self._say(f"port {NATS_PORT} is taken: NATS gets a free one")
        async with EmbeddedServer(self._folder / "nats", port=port) as server:
            self._watch("the NATS server", server.wait())
            yield server.url
            await self._unwatch("the NATS server")

    @contextlib.asynccontextmanager
    async def controller(self, url: str) -> AsyncGenerator[ControllerInfo]:
        """Yields once it leads; ends it afterwards."""
        config = replace(
            self._plan.controller,
            server=url,
            state_dir=str(self._folder / "controller"),
            worker_command=self._plan.controller.worker_command or idle_command(),
        )
        leads: asyncio.Future[ControllerInfo] = asyncio.get_running_loop().create_future()

        def ready(info: ControllerInfo) -> None:
            if not leads.done():
                leads.set_result(info)

        stop = asyncio.Event()
        self._watch("the controller", run_controller(config, ready=ready, stop=stop))
        running = self._watched["the controller"]
        try:
            either: set[asyncio.Future[Any]] = {running, leads}
            await asyncio.wait(either, timeout=READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            self._raise_for_ended()
            if not leads.done():
                raise UpFailed(
                    f"the controller does not lead after {READY_TIMEOUT_S:g} s: does another one?"
                )
            yield leads.result()
        finally:
            leads.cancel()
            stop.set()
            del self._watched["the controller"]
            await asyncio.gather(running, return_exceptions=True)
            await self._end_supervisor(Path(config.state_dir))

    async def _end_supervisor(self, state_dir: Path) -> None:
        """A supervisor would wait for the next agent or controller, with what runs under
        it; both end here."""
        try:
            supervisor = await SupervisorClient.connect(state_dir)
        except SupervisorGone:
            return
        try:
            await supervisor.shutdown(STOP_GRACE_S)
        except SupervisorGone as error:
            self._say(f"the supervisor does not end: {error.message}")

    @contextlib.asynccontextmanager
    async def agents(self, url: str) -> AsyncGenerator[None]:
        """The agents as children; their workers end with them."""
        try:
            for number in range(1, self._plan.nodes + 1):
                child = self._agent(f"node-{number}", url)
                child.start(self._environ())
                self._children.append(child)
                self._watch(_agent_name(child), child.ended())
            yield
        finally:
            for child in self._children:
                await self._unwatch(_agent_name(child))
            await asyncio.gather(*(self._end_agent(child) for child in self._children))

    async def _end_agent(self, child: Child) -> None:
        """An agent that was killed has left its supervisor and workers behind."""
        await child.stop(AGENT_STOP_S)
        await self._end_supervisor(child.output.parent)

    def _agent(self, node_id: str, url: str) -> Child:
        plan = self._plan.controller
        folder = self._folder / node_id
        arguments = ["agent", "--node-id", node_id, "--slots", str(self._plan.slots)]
        arguments += ["--server", url, "--root", plan.root, "--state-dir", str(folder)]
        arguments += ["--http", "off", "--stop-workers-on-exit"]
        if plan.worker_command:
            arguments += ["--worker-command", shlex.join(plan.worker_command)]
        return Child(node_id, arguments, folder / "agent.log")

    def _environ(self) -> dict[str, str]:
        """Ours, with who we are to NATS as it was found out here, and nothing else of that."""
        kept = {name: value for name, value in os.environ.items() if name not in NATS_VARIABLES}
        told = {
            env_name(name): "true" if value is True else str(value or "")
            for name, value in asdict(self._plan.controller.access()).items()
            if value is not False
        }
        return {**kept, **told, env_name("context"): ""}

    async def nodes_ready(self, bus: SlotbusClient, stop: asyncio.Event) -> None:
        """Waits for all agents to be accepted, or for ``stop``. Raises UpFailed."""
        wanted = {child.name for child in self._children}
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not stop.is_set():
            rows = await bus.nodes() if wanted else []
            if wanted <= {row.node_id for row in rows if row.state is not NodeState.EXPIRED}:
                return
            self._raise_for_ended()
            if time.monotonic() > deadline:
                raise UpFailed(f"not all agents are there after {READY_TIMEOUT_S:g} s")
            await asyncio.sleep(POLL_S)

    @contextlib.contextmanager
    def note(self, url: str) -> Generator[None]:
        """Lets other commands find us; we can do without it."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(leave_note(url, time.time(), root=self._plan.controller.root))
            except OSError as error:
                self._say(f"other commands need --server {url}: no note can be left ({error})")
            yield

    def greet(self, url: str, info: ControllerInfo) -> None:
        """What runs, and what to type next."""
        slots, nodes = self._plan.slots, self._plan.nodes
        where = f"{nodes} nodes with {slots} slots each" if nodes else f"{slots} slots, no agents"
        self._say(f"slotbus is up: NATS at {url}, {where}")
        if info.http:
            self._say(f"  metrics   http://{info.http.host}:{info.http.port}/metrics")
        self._say(f"  kept in   {self._folder}")
        if self._idle:
            self._say("  workers   jobs without a command run the packaged idle worker")
        self._say("")
        self._say("in another terminal:")
        for line in (
            "slotbus start hello --slots 2",
            "slotbus workers hello",
            "slotbus logs hello -f",
            "slotbus events -f",
            "slotbus stop hello",
        ):
            self._say(f"  {line}")
        self._say("")
        self._say("Ctrl-C stops all jobs and ends everything")

    async def until(self, stop: asyncio.Event) -> None:
        """Waits for ``stop``. An agent that ends by itself is told of: it may have been
        killed to see what happens. Raises UpFailed when another part ends."""
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            while not stop.is_set():
                waited: set[asyncio.Future[Any]] = {stopping, *self._watched.values()}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                self._tell_of_ended_agents()
                if not stop.is_set():
                    self._raise_for_ended()
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)

    def _tell_of_ended_agents(self) -> None:
        for child in self._children:
            task = self._watched.get(_agent_name(child))
            if task is not None and task.done():
                del self._watched[_agent_name(child)]
                self._say(
                    f"{_agent_name(child)} has ended (code {task.result()}); its node expires "
                    f"in {self._plan.controller.node_expiry_s:g} s"
                )

    async def stop_jobs(self, bus: SlotbusClient) -> None:
        """Stops what runs; says what could not be stopped."""
        try:
            jobs = [job for job in await bus.jobs() if job.state not in RUN_ENDED]
        except SlotbusError as error:
            self._say(f"jobs can't be stopped: {error.message}")
            return
        if jobs:
            self._say(f"stopping {len(jobs)} jobs")
        await asyncio.gather(*(self._stop_job(bus, job) for job in jobs))

    async def _stop_job(self, bus: SlotbusClient, job: JobRow) -> None:
        try:
            reply = await bus.stop(job.job_id, grace_s=STOP_GRACE_S, wait_s=2 * STOP_GRACE_S)
        except SlotbusError as error:
            self._say(f"{job.job_id} could not be stopped: {error.message}")
            return
        if reply.unconfirmed:
            self._say(f"{job.job_id}: can't be confirmed: {', '.join(reply.unconfirmed)}")

    def _watch(self, name: str, running: Coroutine[Any, Any, object]) -> None:
        self._watched[name] = asyncio.create_task(running, name=name)

    async def _unwatch(self, name: str) -> None:
        task = self._watched.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _raise_for_ended(self) -> None:
        """Raises UpFailed for the first part that has ended by itself."""
        for name, task in self._watched.items():
            if not task.done():
                continue
            error = task.exception()
            if isinstance(error, SlotbusError):
                raise error
            said = next((c.tail() for c in self._children if name.endswith(c.name)), "")
            raise UpFailed(f"{name} has ended by itself ({error or task.result()}) {said}".strip())


def _agent_name(child: Child) -> str:
    return f"the agent {child.name}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
        return True
