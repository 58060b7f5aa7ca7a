"""People: commands through the real client, each repeated until it has an outcome.

What lives here: what was asked for, and what was answered. What may not: what is asked when
(``workload``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from events.client import SlotbusClient
from events.connection import ConnectionFailed
from events.errors import SlotbusError
from events.messages import Command
from tests.simulation.loop import Proc
from tests.simulation.parties import SERVER

if TYPE_CHECKING:
    from tests.simulation.world import World

AGAIN_S: Final = (0.2, 1.0)


class Asked(Struct):
    """A command of somebody's. ``answer``: the last word on it: ``ok``, or a code."""

    command: Command
    answer: str = ""
    queued: bool = False


class People:
    """All in one process, with one connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: dict[str, Asked] = {}
        self.proc: Proc = world.proc("people", None)
        self._bus: SlotbusClient | None = None
        self._connected = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._tasks.append(self.proc.spawn(self._connect()))

    async def _connect(self) -> None:
        while True:
            try:
                self._bus = await SlotbusClient.connect(SERVER)
            except ConnectionFailed:
                await asyncio.sleep(1.0)
            else:
                self._connected.set()
                return

    def command(self, command: Command) -> None:
        """Somebody gives a command, or gives it once more."""
        assert command.command_id is not None
        self.asked.setdefault(command.command_id, Asked(command))
        self._tasks.append(self.proc.spawn(self._until_answered(command)))

    async def _until_answered(self, command: Command) -> None:
        command_id = command.command_id or ""
        await self._connected.wait()
        assert self._bus is not None
        while True:
            try:
                await self._bus.send(command)
                answer = "ok"
            except SlotbusError as error:
                answer = error.code
                if error.retriable:
                    await asyncio.sleep(self.proc.rng.uniform(*AGAIN_S))
                    continue
            self.world.answered(command_id, answer)
            self.asked[command_id].answer = answer
            return

    def leave(self, command: Command) -> None:
        """Somebody leaves a command in the queue."""
        assert command.command_id is not None
        self.asked[command.command_id] = Asked(command, queued=True)
        self._tasks.append(self.proc.spawn(self._until_left(command)))

    async def _until_left(self, command: Command) -> None:
        await self._connected.wait()
        assert self._bus is not None
        while True:
            try:
                await self._bus.leave(command)
            except SlotbusError as error:
                if error.retriable:
                    await asyncio.sleep(self.proc.rng.uniform(*AGAIN_S))
                    continue
                self.world.laws.say(f"the queue does not take a command: {error.message}")
            break
        self.world.answered(command.command_id or "", "queued")
        self.asked[command.command_id or ""].answer = "queued"

    def unanswered(self) -> list[str]:
        return [command_id for command_id, asked in self.asked.items() if not asked.answer]
