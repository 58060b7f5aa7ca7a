"""The clients of a drill: commands without a pause, each until it has its outcome.

What lives here: what is asked for, and what was answered. What may not: judging it.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import msgspec

from events.client import SlotbusClient
from events.errors import SlotbusError
from events.messages import (
    Command,
    CordonReq,
    DrainReq,
    SchedulerConfig,
    StartPipelineReq,
    StopWorkersReq,
    UncordonReq,
)
from events.policies import RestartOptions
from tests.drills.cluster import NODES
from tests.drills.story import Story
from tests.drills.table import MARK
from tests.support.waiting import background

PATIENCE_S: Final = 90.0
"""A command that has no outcome by then is lost: no trouble of a drill lasts so long."""

WAIT_S: Final = 3.0
MOST_SLOTS: Final = 4
PAUSE_S: Final = (0.02, 0.4)
QUEUED: Final = 0.15
"""So many of the commands are left in the queue."""

DRAIN_S: Final = 2.0
NOT_AFTER_S: Final = 12.0
"""A start that waits for slots is given up by then."""

LEASES_S: Final = (None, None, 4.0)
RESTART: Final = RestartOptions(first_s=0.5, longest_s=2.0, limit=3)

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
        self.queued: set[str] = set()
        """Commands that the queue has taken: their outcomes are in the log alone."""
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
            command = self._command()
            if self._random.random() < QUEUED:
                await self.leave(command)
            else:
                await self.give(command)
            await asyncio.sleep(self._random.uniform(*PAUSE_S))

    async def leave(self, command: Command) -> None:
        """Leaves it in the queue, again under one command_id until that is sure."""
        assert command.command_id is not None
        self.asked.add(command.command_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while loop.time() < deadline:
            try:
                await self._bus.leave(command)
            except SlotbusError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.05)
            else:
                self.queued.add(command.command_id)
                return
        self._story.violation(
            "the queue takes commands", f"{command.command_id} was not stored in {PATIENCE_S:g} s"
        )

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
        (what,) = self._random.choices(["start", "stop", "kill", "node"], [10, 5, 4, 1.5])
        if what == "start":
            return self._start(job_id)
        if what == "node":
            return self._about_a_node()
        return self._stop(job_id, force=what == "kill")

    def _start(self, job_id: str) -> StartPipelineReq:
        chance = self._random
        script = chance.choice(
            [_WITH_CHILD, _WITH_CHILD, _DEAF, _SHORT.format(code=chance.choice([0, 3]))]
        )
        waits = chance.random() < 0.2
        not_after = datetime.now(UTC) + timedelta(seconds=NOT_AFTER_S)
        return StartPipelineReq(
            job_id=job_id,
            slots=chance.randint(1, MOST_SLOTS),
            env_vars={MARK: self._mark},
            scheduler_config=SchedulerConfig(
                command=["sh", "-c", script],
                spread=chance.choice(["pack", "even"]),
                stop_after_s=chance.choice(LEASES_S),
            ),
            on_shortage="wait" if waits else "fail",
            not_after=not_after if waits else None,
            on_failure=chance.choice(["report", "restart"]),
            on_lost=chance.choice(["report", "restart"]),
            on_drain=chance.choice(["stop", "move"]),
            restart=RESTART,
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

    def _about_a_node(self) -> CordonReq | UncordonReq | DrainReq:
        node_id = self._random.choice(NODES)
        (what,) = self._random.choices(["cordon", "uncordon", "drain"], [2, 8, 2])
        if what == "cordon":
            return CordonReq(node_id=node_id, command_id=self._next_id())
        if what == "uncordon":
            return UncordonReq(node_id=node_id, command_id=self._next_id())
        return DrainReq(
            node_id=node_id,
            deadline_s=DRAIN_S,
            force=self._random.random() < 0.3,
            command_id=self._next_id(),
            wait_s=WAIT_S,
        )

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
    def queued(self) -> set[str]:
        return {command_id for client in self.clients for command_id in client.queued}

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        return {k: v for client in self.clients for k, v in client.outcomes.items()}
