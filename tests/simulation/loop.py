"""One event loop for many processes: virtual time, and processes that stand still or die.

What lives here: the loop, and ``Proc``, to which every callback and timer belongs. What may
not: anything about slotbus or NATS.

A frozen process gets no turn; when it goes on it first hears what arrived, then what was due,
as after SIGCONT. A dead one never gets a turn again, not even to tidy up.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BEGIN_S: Final = 1_000.0
"""The loop's time at the beginning: machines have been up for a while."""


class State(Enum):
    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Stuck(RuntimeError):
    """Nothing is due and nothing comes: what is awaited will never happen."""


class Proc:
    """One process of the story. ``wall_offset`` in seconds: how wrong its wall clock is."""

    def __init__(self, loop: SimLoop, name: str, seed: str, machine: object = None) -> None:
        self.loop = loop
        self.name = name
        self.rng = Random(seed)
        self.machine = machine
        self.wall_offset = 0.0
        self.state = State.RUNNING
        self.arrived: list[asyncio.Handle] = []
        self.due: list[asyncio.Handle] = []
        self.context: Context = copy_context()
        self.context.run(OWNER.set, self)

    def post(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> asyncio.Handle:
        """Has ``callback`` run in this process, soon."""
        return self.loop.call_soon(callback, *args, context=self.context)

    def post_at(
        self, at: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts
    ) -> asyncio.Handle:
        """As ``post``, at a time; what arrives from outside, not a timer of the process."""
        return self.loop.push(at, callback, args, self.context, outside=True)

    def spawn(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Runs a coroutine in this process."""
        return self.loop.create_task(work, name=name or self.name, context=self.context)

    def freeze(self) -> None:
        if self.state is State.RUNNING:
            self.state = State.FROZEN

    def thaw(self) -> None:
        if self.state is State.FROZEN:
            self.state = State.RUNNING
            for handle in (*self.arrived, *self.due):
                self.loop.ready.append((self, handle))
            self.arrived, self.due = [], []

    def kill(self) -> None:
        self.state = State.DEAD


OWNER: ContextVar[Proc | None] = ContextVar("owner", default=None)


def current() -> Proc:
    """The process that runs now."""
    proc = OWNER.get()
    assert proc is not None, "no process runs"
    return proc


class SimTask(asyncio.Task[T]):
    """Hashed by number, so that sets of tasks are gone through in the same order each time."""

    number: int

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[T]):
    number: int

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    """``turns`` counts the callbacks that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[tuple[Proc | None, asyncio.Handle]] = deque()
        self.timers: list[tuple[float, int, Proc | None, asyncio.TimerHandle, bool]] = []
        self.tasks: dict[int, SimTask[Any]] = {}
        self.turns = 0
        self._now = BEGIN_S
        self._numbers = 0

    def time(self) -> float:
        return self._now

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def get_debug(self) -> bool:
        return False

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = events.Handle(callback, args, self, context)
        owner = OWNER.get() if context is None else context.get(OWNER)
        self.ready.append((owner, handle))
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.push(when, callback, args, context, outside=False)

    def push(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        *,
        outside: bool,
    ) -> asyncio.TimerHandle:
        """``outside``: it arrives at its process, rather than being due in it."""
        handle = events.TimerHandle(when, callback, args, self, context)
        owner = OWNER.get() if context is None else context.get(OWNER)
        heapq.heappush(self.timers, (when, self._number(), owner, handle, outside))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return None

    def create_future(self) -> asyncio.Future[Any]:
        future: SimFuture[Any] = SimFuture(loop=self)
        future.number = self._number()
        return future

    def create_task(  # type: ignore[override]  # generators are no coroutines any more
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        number = self._number()
        made: SimTask[T] = SimTask.__new__(SimTask)
        made.number = number  # before asyncio puts it into its sets
        SimTask.__init__(made, coro, loop=self, name=name or f"task {number}", context=context)
        self.tasks[number] = made
        if not number % 64:
            self._forget_done()
        return made

    def _forget_done(self) -> None:
        for number in [number for number, task in self.tasks.items() if task.done()]:
            del self.tasks[number]

    def _run_once(self) -> None:
        ready, timers = self.ready, self.timers
        if not ready:
            while timers and timers[0][3].cancelled():
                heapq.heappop(timers)
            if not timers and not self._stopping:  # type: ignore[attr-defined]
                raise Stuck("nothing is due and nothing comes: what is awaited never happens")
            if timers:
                self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, owner, timer, outside = heapq.heappop(timers)
            if timer.cancelled():
                continue
            if owner is None or owner.state is State.RUNNING:
                ready.append((owner, timer))
            elif outside:
                owner.arrived.append(timer)
            else:
                owner.due.append(timer)
        for _ in range(len(ready)):
            owner, handle = ready.popleft()
            if handle.cancelled():
                continue
            if owner is not None and owner.state is not State.RUNNING:
                owner.arrived.append(handle)
                continue
            self.turns += 1
            handle._run()
