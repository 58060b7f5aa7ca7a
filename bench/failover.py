"""Fail-over: how long nobody serves, and whether anything is lost or done twice.

What lives here: a leader, a warm standby and an agent as programs of their own, a prober, a
person who starts and stops jobs all the while, and the ends of leaders: an orderly one, and
SIGKILL, on the standby's own machine and as from another one (whose death can't be looked
up, so that the lease has to run out). What may not: what a controller does.

``python -m bench.failover --times 50`` does each so often; a few times are enough to see.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import nats.errors
from msgspec import Struct
from nats.aio.client import Client

from bench.measure import Goal, Row
from bench.rig import DEADLINE_S, ROOT, linked, nats_server, program, scratch
from controller.embedded import EmbeddedServer
from events.client import SlotbusClient
from events.errors import SlotbusError
from events.facts import CommandDone, CommandTaken, WorkerAssigned
from events.jetstream import JetStreamLog
from events.subjects import Subjects
from schedulers.supervisor.api import SupervisorGone
from schedulers.supervisor.client import SupervisorClient

TIMES: Final = 2
LEASE_S: Final = 2
"""Short, so that it can be waited for often; the time without service grows with it."""

MARGIN_S: Final = 0.5
HAND_OVER_S: Final = 0.1
PROBE_TIMEOUT_S: Final = 0.25
WORKER: Final = "sleep 86399"
"""Told apart from everybody else's processes."""

ELSEWHERE: Final = (
    "import sys, controller.leader as l; from controller.identity import Process; "
    "l.this_process = Process; from controller.entry import main; "
    "sys.argv[0] = 'slotbus'; main()"
)
"""A controller whose lease says nothing of its process, as one on another machine."""


class Told(Struct, kw_only=True):
    """What a round of ends came to. ``lost``: commands that were answered and that the log
    or the process table does not bear out; ``double``: starts that ran more than once."""

    gaps: list[float]
    commands: int = 0
    lost: int = 0
    double: int = 0


async def rows() -> list[Row]:
    return [row for kind in KINDS for row in await measured(kind, TIMES)]


class Kind(Struct, frozen=True):
    """A way for a leader to end. ``apart``: as from another machine; ``bound``: seconds."""

    what: str
    sign: signal.Signals
    apart: bool
    bound: float


KINDS: Final = {
    "handover": Kind("planned hand-over (SIGTERM)", signal.SIGTERM, False, HAND_OVER_S),
    "kill": Kind("SIGKILL, same machine", signal.SIGKILL, False, LEASE_S + MARGIN_S),
    "elsewhere": Kind("SIGKILL, as from another machine", signal.SIGKILL, True, LEASE_S + MARGIN_S),
}


async def measured(name: str, times: int) -> list[Row]:
    """The rows of one kind of end, so many times."""
    kind = KINDS[name]
    told = await _round(times, kind.sign, kind.apart)
    return [
        Row(
            what=f"{kind.what}: time without service, median",
            value=statistics.median(told.gaps),
            unit="s",
            rounds=times,
        ),
        Row(
            what="the same, longest",
            value=max(told.gaps),
            unit="s",
            floor_is=f"a lease of {LEASE_S} s",
            floor=float(LEASE_S),
            rounds=times,
            goals=[Goal(kind.bound, of="value")],
        ),
        _count(f"commands lost, of {told.commands}", told.lost, times),
        _count("double starts", told.double, times),
    ]


def _count(what: str, value: int, times: int) -> Row:
    return Row(what=what, value=value, unit="", rounds=times, goals=[Goal(0, of="value")])


async def _round(times: int, sign: signal.Signals, apart: bool) -> Told:
    async with (
        nats_server() as server,
        scratch() as folder,
        linked(server) as nc,
        _agent(server, folder),
    ):
        person = Person(SlotbusClient(nc))
        told = Told(gaps=[])
        async with contextlib.AsyncExitStack() as stack:
            leader = await stack.enter_async_context(_controller(server, folder, apart))
            await _until_nodes(SlotbusClient(nc))
            working = asyncio.create_task(person.work())
            for _ in range(times):
                standby = await stack.enter_async_context(_controller(server, folder, apart))
                await standby.warm()
                told.gaps.append(await _end(nc, leader, sign))
                leader = standby
            await person.stop(working)
            await person.judge(nc, told)
        return told


async def _end(nc: Client, leader: Controller, sign: signal.Signals) -> float:
    """Ends a leader while somebody asks all the time; seconds without an answer."""
    prober = Prober(nc)
    asking = asyncio.create_task(prober.run())
    await prober.answered(20)
    leader.process.send_signal(sign)
    await asyncio.to_thread(leader.process.wait, DEADLINE_S)
    await prober.answered(200)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    return prober.longest_s


class Prober:
    """Asks the same small question again and again, one at a time."""

    def __init__(self, nc: Client) -> None:
        self.longest_s = 0.0
        self._nc = nc
        self._count = 0
        self._more = asyncio.Event()

    async def run(self) -> None:
        subject, last = Subjects().query("leader"), time.perf_counter()
        while True:
            with contextlib.suppress(nats.errors.Error):
                reply = await self._nc.request(subject, b"", timeout=PROBE_TIMEOUT_S)
                if b'"error"' not in reply.data:
                    now = time.perf_counter()
                    self.longest_s, last = max(self.longest_s, now - last), now
                    self._count += 1
                    self._more.set()
            await asyncio.sleep(0.001)

    async def answered(self, count: int) -> None:
        """Waits for so many answers more."""
        wanted = self._count + count
        async with asyncio.timeout(DEADLINE_S):
            while self._count < wanted:
                self._more.clear()
                await self._more.wait()


class Person:
    """Starts jobs, and stops every second one, whoever leads."""

    def __init__(self, bus: SlotbusClient) -> None:
        self._bus = bus
        self._started: set[str] = set()
        self._stopped: set[str] = set()
        self._commands: set[str] = set()
        self._ending = False

    async def work(self) -> None:
        while not self._ending:
            job_id = f"job-{secrets.token_hex(4)}"
            self._commands |= {f"start-{job_id}", f"stop-{job_id}"}
            await self._bus.start(job_id=job_id, slots=1, command_id=f"start-{job_id}")
            self._started.add(job_id)
            if len(self._started) % 2 or len(self._started) > 40:
                await self._bus.stop(job_id, force=True, command_id=f"stop-{job_id}")
                self._stopped.add(job_id)
            else:
                self._commands.discard(f"stop-{job_id}")

    async def stop(self, working: asyncio.Task[None]) -> None:
        """Lets the last command end."""
        self._ending = True
        async with asyncio.timeout(DEADLINE_S):
            await working

    async def judge(self, nc: Client, told: Told) -> None:
        """Holds what was answered against the log and the process table."""
        taken: Counter[str] = Counter()
        done: Counter[str] = Counter()
        placed: Counter[str] = Counter()
        log = JetStreamLog(nc, Subjects(), create=False)
        async for records in log.read():
            for record in records:
                for fact in record.events:
                    if isinstance(fact, CommandTaken):
                        taken[fact.command_id] += 1
                    elif isinstance(fact, CommandDone):
                        done[fact.command_id] += 1
                    elif isinstance(fact, WorkerAssigned):
                        placed[fact.job_id] += 1
        living = Counter(await asyncio.to_thread(_jobs_of_processes))
        told.commands = len(self._commands)
        told.lost = sum(done[command] != 1 for command in self._commands)
        told.lost += sum(living[job] == 0 for job in self._started - self._stopped)
        told.lost += sum(living[job] > 0 for job in self._stopped)
        told.double = sum(taken[command] > 1 for command in self._commands)
        told.double += sum(count > 1 for count in placed.values())
        told.double += sum(count > 1 for count in living.values())


def _jobs_of_processes() -> list[str]:
    """The jobs of our workers in the process table, one for each process."""
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if (folder / "cmdline").read_bytes() == WORKER.encode().replace(
                    b" ", b"\0"
                ) + b"\0":
                    environ = (folder / "environ").read_bytes().split(b"\0")
                    found += [
                        each.partition(b"=")[2].decode()
                        for each in environ
                        if each.startswith(b"SLOTBUS_JOB_ID=")
                    ]
    return found


class Controller:
    """One as a program, with its pages."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self._url = f"http://127.0.0.1:{port}/metrics"

    async def warm(self) -> None:
        """Waits until it stands by with the log folded."""
        async with asyncio.timeout(DEADLINE_S):
            while await asyncio.to_thread(self._position) <= 0:  # noqa: ASYNC110  remote
                await asyncio.sleep(0.05)

    def _position(self) -> float:
        try:
            with urllib.request.urlopen(self._url, timeout=2) as page:
                lines: list[str] = page.read().decode().splitlines()
        except (urllib.error.URLError, OSError):
            return 0.0
        name = "slotbus_standby_position "
        return next((float(line.split()[1]) for line in lines if line.startswith(name)), 0.0)


@asynccontextmanager
async def _controller(
    server: EmbeddedServer, folder: Path, apart: bool
) -> AsyncIterator[Controller]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    entry = ("-c", ELSEWHERE) if apart else ("-m", "controller.entry")
    command = [
        *(sys.executable, "-P", *entry, "controller", "--scheduler", "node"),
        *("--server", server.url, "--http", f"127.0.0.1:{port}", "--worker-command", WORKER),
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SLOTBUS_CFG_LEASE_TTL_S": str(LEASE_S)}
    with (folder / "controllers.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
        )
    try:
        yield Controller(process, port)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


@asynccontextmanager
async def _agent(server: EmbeddedServer, folder: Path) -> AsyncIterator[None]:
    """One node, whose supervisor ends with the block, and its workers."""
    state = folder / "n1"
    arguments = ("--node-id", "n1", "--slots", "1000", "--server", server.url, "--http", "off")
    try:
        async with program(
            folder / "n1.log",
            *("-m", "controller.entry", "agent", *arguments, "--state-dir", str(state)),
        ):
            yield
    finally:
        with contextlib.suppress(SupervisorGone, OSError, TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                await (await SupervisorClient.connect(state)).shutdown(0.0)


async def _until_nodes(bus: SlotbusClient) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(SlotbusError):
                if await bus.nodes():
                    return
            await asyncio.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args()
    failed = 0
    for kind in options.kinds or KINDS:
        for row in asyncio.run(measured(kind, options.times)):
            met = {None: "", True: "  met", False: "  MISSED"}[row.met]
            goals = " and ".join(map(str, row.goals))
            sys.stdout.write(f"{row.what}: {row.value:.4g} {row.unit}  {goals}{met}\n")
            failed += row.met is False
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
