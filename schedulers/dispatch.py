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

import structlog

from events.errors import NotLeader, SlotbusError
from schedulers.backend import AT_ONCE, TRY_S
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
from schedulers.launcher import Fenced, LaunchDoubtful, Launcher, LaunchRefused

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
ACKNOWLEDGE_TRIES: Final = 5
"""After these the end is reported again some day, and acknowledged then."""

LISTS_AT_ONCE: Final = 256
"""Inventories that are asked for at a time: a new leader, or a whole fleet that registers again,
would make thousands of requests in one turn of the loop."""

log = structlog.get_logger("slotbus.dispatch")


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
        at_once: int = AT_ONCE,
        try_s: float = TRY_S,
        jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.5),
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._launcher = launcher
        self._wanted = wanted
        self._tell = tell
        self._launch_timeout_s = launch_timeout_s
        self._at_once = at_once
        self._try_s = try_s
        self._jitter = jitter
        self._bounds: dict[str, asyncio.Semaphore] = {}
        self._listing = 0
        """Inventories that are being taken."""
        self._later: dict[str, TakeInventory] = {}
        """Those to be taken when one of them is done."""
        self._running: dict[str, tuple[Effect, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self, effect: Effect) -> None:
        """Begins to carry an effect out; one already under way is not begun twice, and a
        stop takes the place of its worker's launch."""
        key = _key(effect)
        before = self._running.get(key)
        if before is not None:
            if not _replaces(effect, before[0]):
                return
            before[1].cancel()
        self._idle.clear()
        if isinstance(effect, TakeInventory):
            if before is None and self._listing >= LISTS_AT_ONCE:
                self._later[key] = effect
                return
            self._later.pop(key, None)
            self._listing += 1
        task = asyncio.create_task(self._run(effect), name=f"{type(effect).__name__} {key}")
        self._running[key] = (effect, task)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(effect, done))

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
        self._later.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, effect: Effect, task: asyncio.Task[None]) -> None:
        key = _key(effect)
        self._tasks.discard(task)
        if key in self._running and self._running[key][1] is task:
            del self._running[key]
        if isinstance(effect, TakeInventory):
            self._listing -= 1
            while self._later and self._listing < LISTS_AT_ONCE:
                self.start(self._later.pop(next(iter(self._later))))
        if not self._running:
            self._bounds.clear()
            self._idle.set()

    async def _run(self, effect: Effect) -> None:
        """Whatever happens, the engine hears of it: nothing is retried by silence."""
        try:
            outcome = await self._carry_out(effect)
        except Exception as error:
            self.outcomes["Fault"] += 1
            log.exception("effect failed", effect=type(effect).__name__)
            outcome = _after_fault(effect, f"a fault of slotbus: {error!r}")
        if outcome is not None:
            self.outcomes[type(outcome).__name__] += 1
            self._tell(outcome)

    async def _carry_out(self, effect: Effect) -> Outcome | None:
        match effect:
            case Launch():
                return await self._launch(effect)
            case Stop():
                return await self._stop(effect)
            case TakeInventory():
                return await self._take_inventory(effect)
            case Acknowledge():
                await self._acknowledge(effect)
                return None

    def _bound(self, node_id: str) -> asyncio.Semaphore:
        return self._bounds.setdefault(node_id, asyncio.Semaphore(self._at_once))

    async def _launch(self, effect: Launch) -> Outcome | None:
        what = effect.assignment
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        pause = FIRST_PAUSE_S
        while True:
            async with self._bound(what.node_id):
                if not self._wanted(effect):
                    return None
                deadline = deadline or loop.time() + self._launch_timeout_s
                try:
                    ack = await self._launcher.launch(what, self._try_s)
                    return Launched(what.worker_id, what.incarnation, pid=ack.pid, seq=ack.seq)
                except LaunchRefused as error:
                    return self._not_again(what.worker_id, error)
                except LaunchDoubtful as error:
                    return LaunchUncertain(what.worker_id, error.message)
                except Fenced:
                    # An earlier try may have started it: the node's inventory will tell.
                    self.outcomes["Fenced"] += 1
                    return None
                except SlotbusError as error:
                    if loop.time() + pause >= deadline:
                        return LaunchUncertain(what.worker_id, error.message)
            pause = await self._back_off(pause)

    def _not_again(self, worker_id: str, refusal: LaunchRefused) -> Outcome | None:
        """An earlier try whose answer was lost may have been obeyed: then the worker's end
        tells, with its exit; one that was told already, a stop finds out."""
        if not refusal.facts.get("ran"):
            return LaunchFailed(worker_id, refusal.message)
        self.outcomes["RanAlready"] += 1
        if refusal.facts.get("told"):
            return LaunchUncertain(worker_id, refusal.message)
        return None

    async def _stop(self, effect: Stop) -> Outcome | None:
        order = effect.order
        pause = FIRST_PAUSE_S
        while True:
            async with self._bound(order.node_id):
                if not self._wanted(effect):
                    return None
                try:
                    answer = await self._launcher.signal(order, self._try_s)
                    return StopAnswered(
                        order.worker_id, answer.state, order.node_id, told=answer.told
                    )
                except (Fenced, LaunchRefused, LaunchDoubtful):
                    # Another incarnation or a newer leader is there; its inventory will tell.
                    self.outcomes["Fenced"] += 1
                    return None
                except SlotbusError:
                    self.outcomes["StopRetried"] += 1
            pause = await self._back_off(pause)

    async def _take_inventory(self, effect: TakeInventory) -> Outcome | None:
        try:
            if not self._wanted(effect):
                raise NotLeader("the lead is over")
            taken = await self._launcher.inventory(
                effect.node_id, effect.incarnation, effect.epoch, self._try_s
            )
        except SlotbusError as error:
            return InventoryFailed(effect.node_id, error.message)
        return InventoryTaken(effect.node_id, taken)

    async def _acknowledge(self, effect: Acknowledge) -> None:
        pause = FIRST_PAUSE_S
        for _ in range(ACKNOWLEDGE_TRIES):
            async with self._bound(effect.node_id):
                if not self._wanted(effect):
                    return
                try:
                    await self._launcher.acknowledge(effect.node_id, effect.worker_id)
                    return
                except SlotbusError:
                    self.outcomes["AcknowledgeRetried"] += 1
            pause = await self._back_off(pause)

    async def _back_off(self, pause: float) -> float:
        """Sleeps about ``pause`` seconds, and says how long to sleep next time."""
        await asyncio.sleep(pause * self._jitter())
        return min(pause * 2, LONGEST_PAUSE_S)


def _key(effect: Effect) -> str:
    match effect:
        case Launch():
            return f"w:{effect.assignment.worker_id}"
        case Stop():
            return f"w:{effect.order.worker_id}"
        case Acknowledge():
            return f"a:{effect.worker_id}"
        case TakeInventory():
            return f"n:{effect.node_id}"


def _replaces(new: Effect, old: Effect) -> bool:
    match new, old:
        case Stop(), Launch():
            return True
        case Stop(), Stop():
            before, after = old.order, new.order
            return (after.force, after.incarnation) != (before.force, before.incarnation)
        case Launch(), Launch():
            return new.assignment.incarnation != old.assignment.incarnation
        case TakeInventory(), TakeInventory():
            return new != old
        case _:
            return False


def _after_fault(effect: Effect, reason: str) -> Outcome | None:
    match effect:
        case Launch():
            return LaunchUncertain(effect.assignment.worker_id, reason)
        case TakeInventory():
            return InventoryFailed(effect.node_id, reason)
        case _:
            return None
