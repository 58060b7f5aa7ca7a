"""What happens at a chosen point of the flow: between append and effect, spawn and report.

What lives here: the points, each a message or its answer caught on a line, and what is done
while it is held. What may not: faults that need no moment (``faults``).
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, TypeAlias

from msgspec import Struct

from schedulers.supervisor.process_tree import send_signal
from tests.drills.cluster import CONTROLLERS, LEASE_S, NODES
from tests.drills.faults import Fault
from tests.drills.frames import Frame, Way
from tests.drills.line import Trip
from tests.drills.stage import Stage

WAIT_S: Final = 4.0
"""For the flow to come to the point; else it is left out."""

ANSWER_S: Final = 4.0
SUCCESSOR_S: Final = 4 * LEASE_S

Do: TypeAlias = Callable[[Stage, str], Awaitable[None]]
"""What is done to the program (by its name) whose message is held."""


class Point(Struct, frozen=True):
    """``who``: on whose lines. ``answer``: not the message is caught, but its answer.
    ``forward``: what was caught goes on afterwards. ``kills``: what is done is a SIGKILL."""

    kind: str
    who: tuple[str, ...]
    way: Way
    subject: re.Pattern[str]
    do: Do
    answer: bool = False
    forward: bool = False
    kills: bool = True

    async def play(self, stage: Stage) -> str | None:
        """As a fault's."""
        async with AsyncExitStack() as stack:
            held = await self._message(stage, stack)
            if held is None:
                return None
            name, trip = held.name, held.trip
            if self.answer:
                answer = await self._answer(stage, stack, held)
                if answer is None:
                    return None
                trip = answer
            await self.do(stage, name)
            trip.release(forward=self.forward)
        if name in (*CONTROLLERS, *NODES):
            await stage.come_back(name)
        return name

    async def _message(self, stage: Stage, stack: AsyncExitStack) -> _Held | None:
        def test(frame: Frame) -> bool:
            return self.subject.fullmatch(frame.subject) is not None

        trips = {
            name: await stack.enter_async_context(stage.cluster.lines[name].trip(self.way, test))
            for name in self.who
        }
        await asyncio.wait(
            [trip.caught for trip in trips.values()],
            timeout=WAIT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        caught = [name for name, trip in trips.items() if trip.caught.done()]
        for name in set(trips) - set(caught[:1]):
            trips[name].release(forward=True)
        return _Held(caught[0], trips[caught[0]]) if caught else None

    async def _answer(self, stage: Stage, stack: AsyncExitStack, held: _Held) -> Trip | None:
        asked = held.trip.caught.result().reply
        back = Way.DOWN if self.way is Way.UP else Way.UP
        trip = await stack.enter_async_context(
            stage.cluster.lines[held.name].trip(back, lambda frame: frame.subject == asked)
        )
        held.trip.release(forward=True)
        await asyncio.wait([trip.caught], timeout=ANSWER_S)
        return trip if trip.caught.done() else None


class _Held(Struct):
    name: str
    trip: Trip


async def kill_it(stage: Stage, name: str) -> None:
    stage.cluster.signal(name, signal.SIGKILL)


async def kill_its_supervisor(stage: Stage, name: str) -> None:
    process = await stage.cluster.supervisor(name)
    if process is not None:
        send_signal(process, signal.SIGKILL)


async def kill_the_leader(stage: Stage, name: str) -> None:
    await stage.kill(stage.leader)


async def kill_its_newest_worker(stage: Stage, name: str) -> None:
    workers = (await stage.cluster.look()).workers()
    mains = [m for ms in workers.values() for m in ms if m.leads and m.node_id == name]
    if mains:
        send_signal(max(mains, key=lambda m: m.id.start).id, signal.SIGKILL)


async def kill_the_server(stage: Stage, name: str) -> None:
    await stage.cluster.restart_server(kill=True, away_s=0.0)


async def outlive_it(stage: Stage, name: str) -> None:
    """It is frozen until another leads; then it wakes, and what it had said arrives."""
    process = stage.cluster.pid(name)
    if process is None:
        return
    send_signal(process, signal.SIGSTOP)
    leaders = stage.laws.books.leaders
    await stage.laws.until_in_log(lambda: stage.laws.books.leaders > leaders, SUCCESSOR_S)
    await asyncio.sleep(stage.random.uniform(0.2, 1.5))
    send_signal(process, signal.SIGCONT)


_APPEND: Final = re.compile(r"slotbus\.eventlog")
_START: Final = re.compile(r"slotbus\.agent\.[^.]+\.start")
_STOP: Final = re.compile(r"slotbus\.agent\.[^.]+\.stop")
_FINISHED: Final = re.compile(r"slotbus\.node\.[^.]+\.finished")
_REGISTER: Final = re.compile(r"slotbus\.node\.[^.]+\.register")
_UP, _DOWN = Way.UP, Way.DOWN

POINTS: Final = (
    Point("leader dies, append unsent", CONTROLLERS, _UP, _APPEND, kill_it),
    Point("leader dies, append stored", CONTROLLERS, _UP, _APPEND, kill_it, answer=True),
    Point("leader dies, start unsent", CONTROLLERS, _UP, _START, kill_it),
    Point("leader dies, start sent", CONTROLLERS, _UP, _START, kill_it, forward=True),
    Point("leader dies, start answered", CONTROLLERS, _UP, _START, kill_it, answer=True),
    Point("leader dies, stop unsent", CONTROLLERS, _UP, _STOP, kill_it),
    Point("leader dies, stop sent", CONTROLLERS, _UP, _STOP, kill_it, forward=True),
    Point("leader dies at a registration", NODES, _UP, _REGISTER, kill_the_leader),
    Point("agent dies before a start", NODES, _DOWN, _START, kill_it),
    Point("agent dies between spawn and answer", NODES, _DOWN, _START, kill_it, answer=True),
    Point("agent dies, end unsaid", NODES, _UP, _FINISHED, kill_it),
    Point("agent dies, end said", NODES, _UP, _FINISHED, kill_it, answer=True),
    Point(
        "supervisor dies between spawn and answer",
        NODES,
        _DOWN,
        _START,
        kill_its_supervisor,
        answer=True,
        forward=True,
    ),
    Point(
        "worker dies between spawn and answer",
        NODES,
        _DOWN,
        _START,
        kill_its_newest_worker,
        answer=True,
        forward=True,
    ),
    Point("server dies, append unsent", CONTROLLERS, _UP, _APPEND, kill_the_server),
    Point("server dies, append stored", CONTROLLERS, _UP, _APPEND, kill_the_server, answer=True),
    Point(
        "leader outlived, start late",
        CONTROLLERS,
        _UP,
        _START,
        outlive_it,
        forward=True,
        kills=False,
    ),
    Point(
        "leader outlived, append late",
        CONTROLLERS,
        _UP,
        _APPEND,
        outlive_it,
        forward=True,
        kills=False,
    ),
)

AT_POINTS: Final = tuple(Fault(p.kind, p.play, 0.8, kills=p.kills) for p in POINTS)
