"""The embedded backend: workers as asyncio tasks of this program.

What lives here: ``WorkerContext`` (what such a worker is given), its launcher, and
``EmbeddedScheduler``. What may not: NATS, and processes.

A worker lives and dies with the launcher. A task can be asked and cancelled, not killed:
one that swallows its cancellation is cancelled again every second and keeps its slots, and
one that blocks the event loop blocks the scheduler with it.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeAlias

import msgspec
import structlog
from msgspec import Struct

from events.ids import JobId, NodeId, RunId, WorkerId
from events.log import EventLog, MemoryLog
from events.traffic import AgentStopReply, InventoryReply, WorkerFinishedReq
from schedulers.decide import Rules
from schedulers.ending import stop_all_jobs
from schedulers.engine import Backend, Engine, EngineSettings, LocalNode
from schedulers.launcher import Assignment, LaunchAck, LaunchRefused, StopOrder, Unreachable
from schedulers.tracking import Tracking
from schedulers.variables import PROGRAM, variables_of

NODE: Final = "embedded"
SLOTS_PER_WORKER: Final = 16
TASK_SLOTS: Final = 1_000
CANCEL_AGAIN_S: Final = 1.0
CLOSE_GRACE_S: Final = 5.0
"""What workers that still run get when the launcher is closed, before they are cancelled."""

CANCELLED_AS: Final = 9
"""The signal that a cancelled worker is reported with: the wire's word for an end that was
not the worker's own."""

logger = structlog.get_logger("slotbus.embedded")


class WorkerContext(Struct, frozen=True, kw_only=True):
    """What an embedded worker is given.

    ``arguments``: the words of its command after the entry point. ``program``: the job's
    JSON, decoded. ``env``: what a worker process would find in its environment, without
    what it inherits. ``stop``: set when the worker is to end in order; it is cancelled when
    its grace is over.
    """

    worker_id: WorkerId
    job_id: JobId
    run_id: RunId
    node_id: NodeId
    slots: int
    name: str
    hash: str
    wasm_path: str
    arguments: list[str]
    program: Any
    env: dict[str, str]
    stop: asyncio.Event


Worker: TypeAlias = Callable[[WorkerContext], Awaitable[int | None]]
"""An async function; what it returns is its exit code, None is 0. Raising is failing."""


class _Task:
    """One worker's task, and how it is brought to its end."""

    def __init__(self, worker: Worker, context: WorkerContext, tracking: Tracking) -> None:
        self._worker = worker
        self._context = context
        self._tracking = tracking
        self._killer: asyncio.TimerHandle | None = None
        self._killed = False
        self.task = asyncio.create_task(self._run(), name=f"worker {context.worker_id}")
        self.task.add_done_callback(self._ended)

    def stop(self, after_s: float) -> None:
        """Asks it to end, and cancels it ``after_s`` seconds later; an earlier cancellation
        that is due already stays."""
        self._context.stop.set()
        loop = asyncio.get_running_loop()
        if self._killer is None or loop.time() + after_s < self._killer.when():
            self._plan_kill(after_s)

    def _plan_kill(self, after_s: float) -> None:
        if self._killer is not None:
            self._killer.cancel()
        self._killer = asyncio.get_running_loop().call_later(after_s, self._kill)

    def _kill(self) -> None:
        if not self.task.done():
            self._killed = True
            self.task.cancel()
            self._plan_kill(CANCEL_AGAIN_S)

    async def _run(self) -> None:
        try:
            code = await self._worker(self._context)
            self._end(0 if code is None else _exit_code(code))
        except SystemExit as error:
            self._end(error.code if isinstance(error.code, int) else int(error.code is not None))
        except asyncio.CancelledError:
            if self.task.cancelling():
                raise
            self._end(1, "it cancelled itself")
        except Exception as error:  # the edge: a worker's faults are its own
            logger.warning("worker failed", worker_id=self._context.worker_id, exc_info=error)
            self._end(1, f"{type(error).__name__}: {error}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Here, since a task that is cancelled before its first step never runs."""
        if self._killer is not None:
            self._killer.cancel()
        if task.cancelled():
            reason = "cancelled, as it had not ended by itself" if self._killed else "cancelled"
            worker_id = self._context.worker_id
            self._tracking.end(worker_id, signal=CANCELLED_AS, reason=reason)

    def _end(self, code: int, reason: str = "") -> None:
        self._tracking.end(self._context.worker_id, exit_code=code, reason=reason or f"exit {code}")


class EmbeddedLauncher:
    """Implements ``schedulers.launcher.Launcher``.

    ``workers``: entry points by name; others are looked up as ``package.module:callable``
    if ``importable``.
    """

    def __init__(
        self, workers: Mapping[str, Worker], incarnation: str, *, importable: bool = True
    ) -> None:
        self._workers = dict(workers)
        self._importable = importable
        self._tracking = Tracking(incarnation)
        self._tasks: dict[str, _Task] = {}

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        """Begins a worker's task. Raises LaunchRefused, Fenced, Unreachable."""
        worker_id = assignment.worker_id
        self._tracking.fence(assignment.incarnation, assignment.epoch)
        done = self._tracking.launched(worker_id)
        if done is not None:
            return done
        words = assignment.command or assignment.default_command
        try:
            worker = await self._find(words, timeout_s)
        except LaunchRefused:
            self._tracking.bury(worker_id)
            raise
        # Importing takes time: what came meanwhile counts.
        self._tracking.fence(assignment.incarnation, assignment.epoch)
        done = self._tracking.launched(worker_id)
        if done is not None:
            return done
        ack = self._tracking.begin(assignment)
        begun = _Task(worker, _context_of(assignment, words[1:]), self._tracking)
        self._tasks[worker_id] = begun
        begun.task.add_done_callback(lambda _: self._tasks.pop(worker_id, None))
        return ack

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        """Sets the worker's stop event, and cancels it after its grace. Raises Fenced."""
        self._tracking.fence(order.incarnation, order.epoch)
        reply = self._tracking.stop(order.worker_id)
        task = self._tasks.get(order.worker_id)
        if reply.state == "stopping" and task is not None:
            task.stop(0.0 if order.force else order.grace_s)
        return reply

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        """Lists the workers under ``epoch``. Raises Fenced."""
        self._tracking.fence(incarnation, epoch)
        return self._tracking.inventory()

    def reports(self) -> AsyncIterator[WorkerFinishedReq]:
        """Every worker's end, until ``close``."""
        return self._tracking.reports()

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        """The end of this worker is in the log."""
        self._tracking.forget(node_id, worker_id)

    async def close(self) -> None:
        """Stops all workers, cancels them after CLOSE_GRACE_S seconds, and waits for as long
        again; who swallows even that is named in the log."""
        self._tracking.close()
        left = list(self._tasks.values())
        for task in left:
            task.stop(CLOSE_GRACE_S)
        if left:
            _, deaf = await asyncio.wait([one.task for one in left], timeout=2 * CLOSE_GRACE_S)
            for one in deaf:
                logger.error("task can't be ended", task=one.get_name())

    async def _find(self, words: list[str], timeout_s: float) -> Worker:
        """The entry point that a command names. Raises LaunchRefused, Unreachable."""
        if not words:
            raise LaunchRefused("no worker command: neither the job nor this scheduler has one")
        found = self._workers.get(words[0])
        if found is not None:
            return _checked(found, words[0])
        module, colon, attribute = words[0].partition(":")
        if not self._importable or not (module and colon and attribute):
            known = ", ".join(sorted(self._workers)) or "none"
            wanted = "; or package.module:callable" if self._importable else ""
            raise LaunchRefused(f"can't start {words[0]!r}: known workers are {known}{wanted}")
        try:
            async with asyncio.timeout(timeout_s):
                # A thread: whatever importing does, it must not hold up the loop.
                found = await asyncio.to_thread(_import, module, attribute)
        except TimeoutError as error:
            raise Unreachable(f"importing {module} takes longer than {timeout_s:g} s") from error
        except (Exception, SystemExit) as error:  # the edge: what a module does when imported
            raise LaunchRefused(f"can't start {words[0]!r}: {error!r}") from error
        return _checked(found, words[0])


def _import(module: str, attribute: str) -> Any:
    found: Any = import_module(module)
    for name in attribute.split("."):
        found = getattr(found, name)
    return found


def _checked(found: Any, name: str) -> Worker:
    """A plain function would block the loop. Raises LaunchRefused."""
    call = getattr(found, "__call__", None)  # noqa: B004  objects with an async __call__ too
    if not (inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(call)):
        raise LaunchRefused(f"can't start {name!r}: it is no async function")
    worker: Worker = found
    return worker


def _exit_code(code: object) -> int:
    if not isinstance(code, int):
        raise TypeError(f"a worker returns its exit code or None, not {code!r}")
    return int(code)


def _context_of(assignment: Assignment, arguments: list[str]) -> WorkerContext:
    program = bytes(assignment.program)
    return WorkerContext(
        worker_id=WorkerId(assignment.worker_id),
        job_id=JobId(assignment.job_id),
        run_id=RunId(assignment.run_id),
        node_id=NodeId(assignment.node_id),
        slots=assignment.slots,
        name=assignment.name,
        hash=assignment.hash,
        wasm_path=assignment.wasm_path,
        arguments=arguments,
        program=msgspec.json.decode(program),
        env={**variables_of(assignment), PROGRAM: program.decode()},
        stop=asyncio.Event(),
    )


def embedded_backend(
    workers: Mapping[str, Worker] | None = None,
    *,
    task_slots: int = TASK_SLOTS,
    importable: bool = True,
) -> Backend:
    """The embedded backend. Each is a node incarnation of its own: what an earlier one ran
    has ended with it."""
    incarnation = f"embedded-{secrets.token_hex(8)}"
    return Backend(
        name="embedded",
        launcher=EmbeddedLauncher(workers or {}, incarnation, importable=importable),
        local=LocalNode(node_id=NODE, task_slots=task_slots, incarnation=incarnation),
    )


def embedded_rules(rules: Rules, slots_per_worker: int = SLOTS_PER_WORKER) -> Rules:
    """Rules as the embedded backend needs them."""
    return msgspec.structs.replace(rules, per_worker=slots_per_worker, local_node=NODE)


class EmbeddedScheduler(Engine):
    """Runs pipelines as tasks of this program, on a log in memory unless one is given.

    ``workers``: async functions by name; a job names one as the first word of
    ``scheduler_config.command``, as ``worker_command`` does for jobs that name none. Other
    names are imported as ``package.module:callable`` if ``importable``. Works without
    ``async with``: the first call starts it. ``close`` stops its workers.
    """

    def __init__(
        self,
        workers: Mapping[str, Worker] | None = None,
        *,
        worker_command: list[str] | None = None,
        slots_per_worker: int = SLOTS_PER_WORKER,
        task_slots: int = TASK_SLOTS,
        importable: bool = True,
        log: EventLog | None = None,
        rules: Rules | None = None,
    ) -> None:
        rules = rules or Rules()
        if worker_command is not None:
            rules = msgspec.structs.replace(rules, worker_command=worker_command)
        super().__init__(
            embedded_backend(workers, task_slots=task_slots, importable=importable),
            log or MemoryLog(),
            EngineSettings(rules=embedded_rules(rules, slots_per_worker)),
        )

    async def close(self) -> None:
        """Stops all workers, each with the grace it has, and lets go of everything."""
        if not self.runs_here():
            await super().close()  # its workers ended with their event loop
            return
        await stop_all_jobs(self)
        await super().close()
        await self.backend.launcher.close()
