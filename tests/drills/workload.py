"""The clients of a drill: commands without a pause, each until it has its outcome.

What lives here: what is asked for, and what was answered. What may not: judging it.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any, Final

import msgspec

from events.client import SlotbusClient
from events.errors import SlotbusError
from events.messages import (
    Command,
    CordonReq,
    SchedulerConfig,
    StartPipelineReq,
    StopWorkersReq,
    UncordonReq,
)
from tests.drills.cluster import NODES
from tests.drills.story import Story
from tests.drills.table import MARK
from tests.support.waiting import background

PATIENCE_S: Final = 90.0
"""A command that has no outcome by then is lost: no trouble of a drill lasts so long."""

WAIT_S: Final = 3.0
MOST_SLOTS: Final = 4
PAUSE_S: Final = (0.02, 0.4)

_WITH_CHILD: Final = "sleep 600 & wait"
_DEAF: Final = "trap '' TERM; sleep 600 & while :; do wait; done"
_SHORT: Final = "sleep 0.7; exit {code}"


class Client:
    """Starts and stops its own two jobs, again and again. It pauses where it is told to."""

    def __init__(self, bus: SlotbusClient, name: str, mark: str, seed: int, story: Story) -> None:
        self.name = name
        self.jobs = [f"{name}-a", f"{name}-b"]
        self.outcomes: dict[str, dict[str, Any]] = {}
        """What was answered to each command that has its outcome."""
        self.asked: set[str] = set()
        self.active = asyncio.Event()
        self.resting = asyncio.Event()
        self._bus = bus
        self._mark = mark
        self._random = Random(seed)
        self._story = story
        self._count = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            if not self.active.is_set():
                self.resting.set()
                await self.active.wait()
                self.resting.clear()
            await self.give(self._command())
            await asyncio.sleep(self._random.uniform(*PAUSE_S))

    async def give(self, command: Command) -> None:
        """Asks under one command_id until there is an outcome, a refusal too."""
        assert command.command_id is not None
        self.asked.add(command.command_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while loop.time() < deadline:
            try:
                body = await self._bus.send(command)
            except SlotbusError as error:
                if not error.retriable:
                    self.outcomes[command.command_id] = error.body()
                    return
                await asyncio.sleep(0.05)
            else:
                self.outcomes[command.command_id] = msgspec.json.decode(body)
                return
        self._story.violation(
            "no accepted command is lost",
            f"{command.command_id} was answered by nobody for {PATIENCE_S:g} s",
        )

    async def stop_all(self) -> None:
        """Stops both jobs; those that never were are unknown."""
        for job_id in self.jobs:
            await self.give(self._stop(job_id, force=False))

    def _command(self) -> Command:
        job_id = self._random.choice(self.jobs)
        (what,) = self._random.choices(["start", "stop", "kill", "cordon"], [10, 5, 4, 1])
        if what == "start":
            return self._start(job_id)
        if what == "cordon":
            return self._cordon()
        return self._stop(job_id, force=what == "kill")

    def _start(self, job_id: str) -> StartPipelineReq:
        script = self._random.choice(
            [_WITH_CHILD, _WITH_CHILD, _DEAF, _SHORT.format(code=self._random.choice([0, 3]))]
        )
        return StartPipelineReq(
            job_id=job_id,
            slots=self._random.randint(1, MOST_SLOTS),
            env_vars={MARK: self._mark},
            scheduler_config=SchedulerConfig(
                command=["sh", "-c", script], spread=self._random.choice(["pack", "even"])
            ),
            command_id=self._next_id(),
            wait_s=WAIT_S,
        )

    def _stop(self, job_id: str, *, force: bool) -> StopWorkersReq:
        return StopWorkersReq(
            job_id=job_id,
            force=force,
            grace_s=self._random.choice([0.3, 1.0]),
            command_id=self._next_id(),
            wait_s=WAIT_S,
        )

    def _cordon(self) -> CordonReq | UncordonReq:
        node_id = self._random.choice(NODES)
        if self._random.random() < 0.3:
            return CordonReq(node_id=node_id, command_id=self._next_id())
        return UncordonReq(node_id=node_id, command_id=self._next_id())

    def _next_id(self) -> str:
        self._count += 1
        return f"{self.name}-{self._count}"


class Crowd:
    """All clients of a drill."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        self._tasks = [asyncio.create_task(one.run(), name=one.name) for one in self.clients]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def act(self) -> None:
        for client in self.clients:
            client.active.set()

    async def rest(self) -> None:
        """Returns when each has its last outcome. Whoever failed raises here."""
        for client in self.clients:
            client.active.clear()
        async with background(self._all_rest()) as resting:
            await asyncio.wait([resting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()

    async def _all_rest(self) -> None:
        for client in self.clients:
            await client.resting.wait()

    async def stop_all(self) -> None:
        """Stops all jobs, while everybody rests."""
        await asyncio.gather(*(client.stop_all() for client in self.clients))

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        return {k: v for client in self.clients for k, v in client.outcomes.items()}
