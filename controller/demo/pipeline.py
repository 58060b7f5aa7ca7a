"""An example pipeline: the program that the demo's workers run, as a user would write one.

It reads its settings from the job's program, listens to a NATS subject as one queue group
with all other workers of its job, sums the readings up over time windows, and publishes each
window's results. Its slots are parallel subscriptions, each with windows of its own: a queue
group hands every reading to one slot of the whole job, so each slot holds a share of each
window, and the shares add up (`windows.merge`). TERM ends it cleanly: no new readings, those
already received are counted, open windows are published.

What lives here: what a worker needs of NATS and of its environment. What may not: the windows'
arithmetic, and anything else of slotbus: both files can be copied as they are.

    python -m controller.demo.pipeline
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import nats
import nats.errors
from msgspec import Meta, Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from controller.demo.windows import Part, Reading, TumblingWindows

CONNECT_TIMEOUT_S: Final = 5.0
DRAIN_TIMEOUT_S: Final = 5.0
"""What TERM may take; the usual grace before KILL is 10 s."""
REPORT_S: Final = 5.0
"""Seconds between two lines of output."""
EXIT_MISUSE: Final = 2

Positive = Annotated[float, Meta(gt=0, le=86_400)]


class BadProgram(Exception):
    """The environment or the program is not what this worker can run; says which field."""


class Program(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The job's program. `idle_s`: after so many seconds without a reading, open windows are
    published as they are; what comes later for them makes a further part."""

    server: str = "nats://127.0.0.1:4222"
    subject: str = "demo.readings"
    results: str = "demo.results"
    window_s: Positive = 10.0
    lateness_s: Annotated[float, Meta(ge=0, le=86_400)] = 1.0
    idle_s: Positive = 5.0


class Task(Struct, kw_only=True, frozen=True):
    """Who this worker is: what slotbus put into its environment."""

    job_id: str
    run_id: int
    worker_id: str
    slots: int
    program: Program


class Result(Struct, kw_only=True, frozen=True):
    """What is published: one part of a window, and whose it is. `slot` counts from 0."""

    job_id: str
    run_id: int
    worker_id: str
    slot: int
    mean: float
    part: Part


def read_task(environ: Mapping[str, str]) -> Task:
    """Reads the worker's environment. Raises BadProgram."""
    try:
        if "SLOTBUS_PROGRAM_FILE" in environ:
            text = Path(environ["SLOTBUS_PROGRAM_FILE"]).read_text(encoding="utf-8")
        else:
            text = environ.get("SLOTBUS_PROGRAM", "{}")
        return Task(
            job_id=environ.get("SLOTBUS_JOB_ID", "demo"),
            run_id=int(environ.get("SLOTBUS_RUN_ID", "1")),
            worker_id=environ.get("SLOTBUS_WORKER_ID", f"pid-{os.getpid()}"),
            slots=int(environ.get("SLOTBUS_SLOTS", "1")),
            program=msgspec.json.decode(text, type=Program),
        )
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise BadProgram(f"the program can't be read: {error}") from error


class Slot:
    """One unit of parallelism: one subscription and its windows."""

    def __init__(self, nc: Client, task: Task, number: int) -> None:
        self._nc = nc
        self._task = task
        self._number = number
        self._windows = TumblingWindows(
            int(task.program.window_s * 1000), int(task.program.lateness_s * 1000)
        )
        self._subscription: Subscription | None = None
        self._last_at = asyncio.get_running_loop().time()
        self.readings = 0
        self.unreadable = 0

    async def open(self) -> None:
        """Begins to listen. The queue group is the job: each reading goes to one slot of it."""
        self._subscription = await self._nc.subscribe(
            self._task.program.subject, queue=self._task.job_id, cb=self._on_message
        )

    async def close(self) -> None:
        """Counts what has been received, and publishes what is open."""
        if self._subscription is not None:
            await self._subscription.drain()  # type: ignore[no-untyped-call]
        await self._publish(self._windows.flush())

    async def tick(self, now: float) -> None:
        """Publishes open windows where nothing has come for `idle_s` seconds."""
        if self._windows.open_parts and now - self._last_at > self._task.program.idle_s:
            await self._publish(self._windows.flush())

    async def _on_message(self, message: Msg) -> None:
        try:
            reading = msgspec.json.decode(message.data, type=Reading)
        except (ValueError, RecursionError):
            self.unreadable += 1
            return
        self.readings += 1
        self._last_at = asyncio.get_running_loop().time()
        await self._publish(self._windows.add(reading))

    async def _publish(self, parts: list[Part]) -> None:
        task = self._task
        for part in parts:
            result = Result(
                job_id=task.job_id,
                run_id=task.run_id,
                worker_id=task.worker_id,
                slot=self._number,
                mean=round(part.mean, 3),
                part=part,
            )
            await self._nc.publish(task.program.results, msgspec.json.encode(result))


def say(text: str) -> None:
    """One line of output, at once: `slotbus logs` shows it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _on_error(error: Exception) -> None:
    say(f"NATS: {error!r}")


async def connect(server: str) -> Client:
    """Connects within CONNECT_TIMEOUT_S seconds, and from then on reconnects for ever.

    Raises BadProgram.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await nats.connect(server, error_cb=_on_error, max_reconnect_attempts=-1)
    except (OSError, TimeoutError, ValueError, nats.errors.Error) as error:
        raise BadProgram(f"no connection to {server}: {error!r}") from error


async def watch(slots: list[Slot], stop: asyncio.Event, idle_s: float) -> None:
    """Looks after idle windows and reports, until `stop` is set."""
    loop = asyncio.get_running_loop()
    next_report = loop.time() + REPORT_S
    while not stop.is_set():
        try:
            async with asyncio.timeout(min(idle_s / 2, REPORT_S)):
                await stop.wait()
        except TimeoutError:
            for slot in slots:
                await slot.tick(loop.time())
        if loop.time() >= next_report:
            say(f"counted {summary(slots)}")
            next_report = loop.time() + REPORT_S


def summary(slots: list[Slot]) -> str:
    total = sum(slot.readings for slot in slots)
    unreadable = sum(slot.unreadable for slot in slots)
    return f"{total} readings" + (f", {unreadable} unreadable" if unreadable else "")


async def work(task: Task, stop: asyncio.Event) -> None:
    """Runs the pipeline until `stop` is set. Raises BadProgram, or what NATS says when the
    results can't be sent at the end."""
    nc = await connect(task.program.server)
    try:
        slots = [Slot(nc, task, number) for number in range(task.slots)]
        for slot in slots:
            await slot.open()
        await nc.flush()
        say(f"{task.job_id} run {task.run_id}: {task.slots} slots on {task.program.subject}")
        await watch(slots, stop, task.program.idle_s)
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            for slot in slots:
                await slot.close()
            await nc.flush()
        say(f"ended, {summary(slots)}")
    finally:
        await nc.close()


async def amain() -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await work(read_task(os.environ), stop)
    except BadProgram as error:
        say(str(error))
        return EXIT_MISUSE
    except (TimeoutError, OSError, nats.errors.Error) as error:
        say(f"the last results may not have been sent: {error!r}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(amain()))
