"""The dispatcher: carries effects out, side by side, and brings their outcomes back.

What lives here: one task per worker or node at a time, retries with back-off and jitter,
bounds on what runs at once. What may not: decisions; an outcome is a message like any
other.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from events.errors import NotLeader
from schedulers.decide.messages import (
    Acknowledge,
    Effect,
    InventoryFailed,
    InventoryTaken,
    Launch,
    Launched,
    LaunchFailed,
    LaunchUncertain,
    Outcome,
    Stop,
    StopAnswered,
    TakeInventory,
)
from schedulers.launcher import Fenced, Launcher, LaunchRefused, Unreachable

AT_ONCE: Final = 128
"""Effects of one kind that are under way at the same time; the others wait."""

TRY_S: Final = 3.0
"""Deadline of one try, in seconds."""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0


class Dispatcher:
    """Owns the tasks that talk to a launcher.

    ``wanted(effect)``: whether the ledger still wants it and this controller may still
    act; asked before every try. ``tell(outcome)`` puts the outcome into the inbox.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        wanted: Callable[[Effect], bool],
        tell: Callable[[Outcome], None],
        launch_timeout_s: float,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._launcher = launcher
        self._wanted = wanted
        self._tell = tell
        self._launch_timeout_s = launch_timeout_s
        self._bounds: dict[type[Effect], asyncio.Semaphore] = {
            kind: asyncio.Semaphore(AT_ONCE) for kind in (Launch, Stop, TakeInventory)
        }
        self._running: dict[str, tuple[Effect, asyncio.Task[None]]] = {}
        self._acknowledging: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self, effect: Effect) -> None:
        """Begins to carry an effect out; one already under way is not begun twice, and a
        stop takes the place of its worker's launch."""
        if isinstance(effect, Acknowledge):
            task = asyncio.create_task(self._acknowledge(effect))
            self._acknowledging.add(task)
            task.add_done_callback(self._acknowledging.discard)
            return
        key = _key(effect)
        before = self._running.get(key)
        if before is not None:
            if not _replaces(effect, before[0]):
                return
            before[1].cancel()
        self._idle.clear()
        task = asyncio.create_task(self._run(effect), name=f"{type(effect).__name__} {key}")
        self._running[key] = (effect, task)
        task.add_done_callback(lambda done: self._ended(key, done))

    async def until_idle(self, timeout_s: float) -> bool:
        """Waits until nothing is under way; False when that took longer."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Gives up what is under way; nothing of it goes out afterwards."""
        tasks = [task for _, task in self._running.values()] + list(self._acknowledging)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        if key in self._running and self._running[key][1] is task:
            del self._running[key]
        if not self._running:
            self._idle.set()

    async def _run(self, effect: Effect) -> None:
        async with self._bounds[type(effect)]:
            match effect:
                case Launch():
                    outcome: Outcome | None = await self._launch(effect)
                case Stop():
                    outcome = await self._stop(effect)
                case TakeInventory():
                    outcome = await self._take_inventory(effect)
                case _:
                    outcome = None
        if outcome is not None:
            self.outcomes[type(outcome).__name__] += 1
            self._tell(outcome)

    async def _launch(self, effect: Launch) -> Outcome | None:
        what = effect.assignment
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._launch_timeout_s
        pause = FIRST_PAUSE_S
        while self._wanted(effect):
            try:
                ack = await self._launcher.launch(what, TRY_S)
                return Launched(what.worker_id, what.incarnation, pid=ack.pid, seq=ack.seq)
            except LaunchRefused as error:
                return LaunchFailed(what.worker_id, error.message)
            except Fenced:
                # An earlier try may have started it: the node's inventory will tell.
                self.outcomes["Fenced"] += 1
                return None
            except Unreachable as error:
                if loop.time() >= deadline:
                    return LaunchUncertain(what.worker_id, error.message)
            pause = await _back_off(pause)
        return None

    async def _stop(self, effect: Stop) -> Outcome | None:
        pause = FIRST_PAUSE_S
        while self._wanted(effect):
            try:
                answer = await self._launcher.signal(effect.order, TRY_S)
                return StopAnswered(effect.order.worker_id, answer.state)
            except (Fenced, LaunchRefused):
                # Another incarnation or a newer leader is there; its inventory will tell.
                self.outcomes["Fenced"] += 1
                return None
            except Unreachable:
                pause = await _back_off(pause)
        return None

    async def _take_inventory(self, effect: TakeInventory) -> Outcome | None:
        try:
            if not self._wanted(effect):
                raise NotLeader("the lead is over")
            taken = await self._launcher.inventory(
                effect.node_id, effect.incarnation, effect.epoch, TRY_S
            )
        except (Fenced, LaunchRefused, Unreachable, NotLeader) as error:
            return InventoryFailed(effect.node_id, error.message)
        return InventoryTaken(effect.node_id, taken)

    async def _acknowledge(self, effect: Acknowledge) -> None:
        try:
            await self._launcher.acknowledge(effect.node_id, effect.worker_id)
        except Unreachable:
            # It will be reported again, and acknowledged then.
            self.outcomes["AcknowledgeFailed"] += 1


def _key(effect: Effect) -> str:
    match effect:
        case Launch():
            return f"w:{effect.assignment.worker_id}"
        case Stop():
            return f"w:{effect.order.worker_id}"
        case _:
            return f"n:{effect.node_id}"


def _replaces(new: Effect, old: Effect) -> bool:
    if isinstance(new, Stop):
        return isinstance(old, Launch) or (
            isinstance(old, Stop)
            and (new.order.force, new.order.incarnation) != (old.order.force, old.order.incarnation)
        )
    if isinstance(new, Launch):
        return isinstance(old, Launch) and new.assignment.incarnation != old.assignment.incarnation
    return isinstance(old, TakeInventory) and new != old


async def _back_off(pause: float) -> float:
    """Sleeps about ``pause`` seconds, and says how long to sleep next time."""
    await asyncio.sleep(pause * random.uniform(0.5, 1.5))
    return min(pause * 2, LONGEST_PAUSE_S)
