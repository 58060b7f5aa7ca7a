"""The example pipeline on a real NATS server, as the processes that workers are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller.demo.feeder import Feeder
from controller.demo.pipeline import EXIT_MISUSE, Program, Result
from controller.demo.windows import merge_all
from controller.embedded import EmbeddedServer
from events.subjects import Subjects

DEADLINE_S = 30.0


@asynccontextmanager
async def worker(number: int, slots: int, program: Program) -> AsyncIterator[Process]:
    """One worker process, ready to receive; killed at the end if it still runs."""
    environ = {
        **os.environ,
        "SLOTBUS_JOB_ID": "dairy",
        "SLOTBUS_RUN_ID": "1",
        "SLOTBUS_WORKER_ID": f"w-{number}",
        "SLOTBUS_SLOTS": str(slots),
        "SLOTBUS_PROGRAM": msgspec.json.encode(program).decode(),
    }
    command = (sys.executable, "-m", "controller.demo.pipeline")
    process = await asyncio.create_subprocess_exec(
        *command, env=environ, stdout=PIPE, stderr=STDOUT
    )
    try:
        assert process.stdout is not None
        first = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
        assert first.decode() == f"dairy run 1: {slots} slots on {program.subject}\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def end(process: Process) -> str:
    """Sends TERM and returns what the worker said after its first line."""
    process.send_signal(signal.SIGTERM)
    output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 0, output
    return output.decode()


class Collector:
    """Every result of a pipeline, as it comes."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self._came = asyncio.Event()

    async def on_message(self, message: Msg) -> None:
        self.results.append(msgspec.json.decode(message.data, type=Result))
        self._came.set()

    async def until_counted(self, readings: int) -> None:
        """Returns when the results hold at least so many readings."""
        async with asyncio.timeout(DEADLINE_S):
            while sum(result.part.count for result in self.results) < readings:
                self._came.clear()
                await self._came.wait()


async def test_two_workers_count_every_reading_once_and_end_cleanly(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> None:
    program = Program(
        server=nats_server.url,
        subject=f"{subjects.root}.in",
        results=f"{subjects.root}.out",
        window_s=0.5,
        lateness_s=0.2,
    )
    collector = Collector()
    await nc.subscribe(program.results, cb=collector.on_message)
    feeder = Feeder(nc, program.subject, rate=400)
    async with worker(1, 4, program) as one, worker(2, 2, program) as two:
        await feeder.run(seconds=2.0)
        assert feeder.sent > 0
        said = await end(one) + await end(two)
    await collector.until_counted(feeder.sent)

    whole = merge_all(result.part for result in collector.results)
    expected = feeder.expected(1, feeder.sent, window_ms=500)
    assert {key: part.count for key, part in whole.items()} == {
        key: part.count for key, part in expected.items()
    }
    for key, part in expected.items():
        assert (whole[key].low, whole[key].high) == (part.low, part.high)
        assert abs(whole[key].mean - part.mean) < 1e-9
    shares = {(result.worker_id, result.slot) for result in collector.results}
    assert shares == {("w-1", slot) for slot in range(4)} | {("w-2", slot) for slot in range(2)}
    assert "unreadable" not in said


async def test_a_pause_publishes_what_is_open_and_rubbish_is_counted(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> None:
    program = Program(
        server=nats_server.url,
        subject=f"{subjects.root}.in",
        results=f"{subjects.root}.out",
        window_s=60,
        idle_s=0.2,
    )
    collector = Collector()
    await nc.subscribe(program.results, cb=collector.on_message)
    async with worker(1, 1, program) as only:
        await nc.publish(program.subject, b"not a reading")
        await Feeder(nc, program.subject, rate=100).run(seconds=0.2)
        await collector.until_counted(1)
        assert "1 unreadable" in await end(only)


async def test_a_worker_without_nats_says_so_and_fails() -> None:
    environ = {**os.environ, "SLOTBUS_PROGRAM": '{"server": "nats://127.0.0.1:1"}'}
    command = (sys.executable, "-m", "controller.demo.pipeline")
    process = await asyncio.create_subprocess_exec(
        *command, env=environ, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == EXIT_MISUSE
    assert "no connection to nats://127.0.0.1:1" in output.decode().splitlines()[-1]


async def test_the_feeder_runs_by_hand(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> None:
    received: list[bytes] = []

    async def on_message(message: Msg) -> None:
        received.append(message.data)

    await nc.subscribe(subjects.root, cb=on_message)
    await nc.flush()
    options = ("--server", nats_server.url, "--subject", subjects.root, "--seconds", "0.5")
    command = (sys.executable, "-m", "controller.demo.feeder", "--rate", "200", *options)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    await nc.flush()
    assert process.returncode == 0
    said = output.decode().splitlines()
    assert said[0] == f"sending 200 readings a second on {subjects.root}"
    assert said[-1] == f"sent {len(received)} readings"
    assert len(received) > 0
