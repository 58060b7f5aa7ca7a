"""Recording: what it costs a controller at full load, in files and from outside.

What lives here: two controllers as programs of their own, of which one records; commands over
NATS as fast as they are answered; at last, whether what was recorded leads to the log. What may
not: the cost of a replay (``bench.replay``).

Throughput is counted per CPU second of the controller, its writing thread included: on few
cores the server and the sender would be measured too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import nats.errors
import psutil
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.measure import ROUNDS, Goal, Pair, Row, compare
from bench.rig import DEADLINE_S, linked, nats_server, program, scratch
from controller.embedded import EmbeddedServer
from events.jetstream import JetStreamLog
from events.log import encode_record
from events.messages import CordonReq, UncordonReq
from events.subjects import Subjects
from events.tap import TapInbox
from schedulers.files import replay_file

COMMANDS: Final = 5_000
OPEN: Final = 1_000
"""Commands without an answer at the same time."""

NODE: Final = "local"
FOLDER: Final = "recordings"


class Led(Struct, frozen=True):
    """A controller that runs, and where it listens."""

    subjects: Subjects
    process: subprocess.Popen[bytes]


async def rows() -> list[Row]:
    async with (
        nats_server() as server,
        scratch() as folder,
        linked(server) as nc,
        _controller(server, nc, folder, "plain") as plain,
        _controller(server, nc, folder, "taped", "--record", str(folder / FOLDER)) as taped,
    ):
        numbers = itertools.count()
        for led in (plain, taped):
            await _rate(nc, led, next(numbers))  # everything is imported after that
        files: list[Pair] = []
        outside: list[Pair] = []
        for _ in range(ROUNDS):
            bare = await _rate(nc, plain, next(numbers))
            files.append(Pair(await _rate(nc, taped, next(numbers)), bare))
            async with _listening(nc, plain):
                outside.append(Pair(await _rate(nc, plain, next(numbers)), bare))
        await until_recorded(nc, taped.subjects, folder / FOLDER)
    goal = [Goal(0.9, at_least=True)]
    unit = "a CPU second"
    without = "the same without recording"
    return [
        compare("commands over NATS, recorded into a file", files, unit, without, goal),
        compare("commands over NATS, recorded from outside", outside, unit, without, goal),
    ]


@asynccontextmanager
async def _controller(
    server: EmbeddedServer, nc: Client, folder: Path, root: str, *more: str
) -> AsyncIterator[Led]:
    common = ("--server", server.url, "--http", "off", "--log-level", "warning")
    entry = ("-m", "controller.entry", "controller", "--scheduler", "process", "--root", root)
    state = ("--state-dir", str(folder / root))
    async with program(folder / f"{root}.log", *entry, *common, *state, *more) as process:
        led = Led(Subjects(root), process)
        await _until_leading(nc, led)
        yield led


async def _until_leading(nc: Client, led: Led) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(nats.errors.Error):
                body = msgspec.json.encode(UncordonReq(node_id=NODE))
                answer = await nc.request(led.subjects.cmd("uncordon"), body, timeout=1.0)
                if b'"error"' not in answer.data:
                    return
            await asyncio.sleep(0.05)


async def _rate(nc: Client, led: Led, number: int) -> float:
    """Commands answered for each CPU second of the controller."""
    inbox, room, done = nc.new_inbox(), asyncio.Semaphore(OPEN), asyncio.Event()
    answered = 0

    async def heard(message: Msg) -> None:
        nonlocal answered
        assert b'"error"' not in message.data, message.data
        answered += 1
        room.release()
        if answered == COMMANDS:
            done.set()

    subscription = await nc.subscribe(inbox, cb=heard)
    process = psutil.Process(led.process.pid)
    before = process.cpu_times()
    async with asyncio.timeout(DEADLINE_S):
        for index in range(COMMANDS):
            await room.acquire()
            kind, verb = (CordonReq, "cordon") if index % 2 else (UncordonReq, "uncordon")
            command = kind(node_id=NODE, command_id=f"c-{number}-{index}")
            await nc.publish(led.subjects.cmd(verb), msgspec.json.encode(command), reply=inbox)
        await done.wait()
    after = process.cpu_times()
    await subscription.unsubscribe()
    return COMMANDS / (after.user + after.system - before.user - before.system)


@asynccontextmanager
async def _listening(nc: Client, led: Led) -> AsyncIterator[None]:
    """A recorder from outside that asks in time, and does nothing with what it gets."""

    async def ask(hold_s: float) -> None:
        request = TapInbox(tap_id="bench", hold_s=hold_s, opening=hold_s > 0)
        await nc.request(led.subjects.tap, msgspec.json.encode(request), timeout=DEADLINE_S)

    await ask(60.0)
    try:
        yield
    finally:
        await ask(0.0)


async def until_recorded(nc: Client, subjects: Subjects, folder: Path) -> None:
    """Waits until the files lead to the log. Raises RuntimeError where it is another one."""
    log = JetStreamLog(nc, subjects, create=False)
    wanted = [encode_record(record) async for batch in log.read() for record in batch]
    await log.close()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            played = await asyncio.to_thread(replay_file, *sorted(folder.iterdir()))
            if len(played.records) >= len(wanted):
                break
            await asyncio.sleep(0.2)
    found = [encode_record(record) for record in played.records[: len(wanted)]]
    if found != wanted or played.missing:
        raise RuntimeError(f"the recording in {folder} does not lead to the log")
