"""The line of one program to NATS: a proxy that can lose, hold and watch single messages.

What lives here: switches for a whole line, and trips, which catch one message on its way so
that something can happen just then. What may not: what happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

from tests.drills.frames import Frame, Framer, Way
from tests.support.proxy import Proxy

HELD_MOST_S: Final = 30.0
"""Nobody holds a message for longer, whatever goes wrong."""

READ_BYTES: Final = 65_536

Test: TypeAlias = Callable[[Frame], bool]
Witness: TypeAlias = Callable[[Way, Frame], None]


class Trip:
    """A message that is to be caught. Until ``release`` the line stands still that way."""

    def __init__(self, way: Way, test: Test) -> None:
        self.way = way
        self.test = test
        self.caught: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._released = asyncio.Event()
        self._forward = True

    def release(self, *, forward: bool) -> None:
        """``forward``: the message goes on; else it is lost."""
        self._forward = forward
        self._released.set()

    async def hold(self, frame: Frame) -> bool:
        """Whether it goes on, once that is decided."""
        if not self.caught.done():
            self.caught.set_result(frame)
        with suppress(TimeoutError):
            async with asyncio.timeout(HELD_MOST_S):
                await self._released.wait()
        return self._forward


class Line(Proxy):
    """``muted``: ways on which everything is lost while the connection stays (half open).
    ``stalled``: everything is held. ``delay_s``: how late what is read goes on. ``lost``:
    tests of messages that never arrive. ``witnesses`` see what was passed on."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.muted: set[Way] = set()
        self.delay_s = 0.0
        self.lost: list[Test] = []
        self.witnesses: list[Witness] = []
        self._trips: list[Trip] = []

    @property
    def stalled(self) -> bool:
        return not self.passing.is_set()

    @stalled.setter
    def stalled(self, on: bool) -> None:
        (self.passing.clear if on else self.passing.set)()

    def heal(self) -> None:
        """All switches back. Who was on a muted line has lost messages and can't know it, so
        connections are broken then: TCP itself would never give up some of them in time."""
        was_lossy = bool(self.muted)
        self.muted.clear()
        self.lost.clear()
        self.delay_s = 0.0
        self.refusing = self.stalled = False
        if was_lossy:
            self.drop()

    @asynccontextmanager
    async def trip(self, way: Way, test: Test) -> AsyncIterator[Trip]:
        """Catches the next such message, during a block of code."""
        trip = Trip(way, test)
        self._trips.append(trip)
        try:
            yield trip
        finally:
            trip.release(forward=trip._forward)
            with suppress(ValueError):
                self._trips.remove(trip)

    async def pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        way, framer = Way.UP if to_server else Way.DOWN, Framer()
        try:
            while data := await source.read(READ_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                for frame in framer.feed(data):
                    if await self._passes(way, frame):
                        sink.write(frame.raw)
                        for witness in self.witnesses:
                            witness(way, frame)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()

    async def _passes(self, way: Way, frame: Frame) -> bool:
        await self.passing.wait()
        if way in self.muted or any(test(frame) for test in self.lost):
            return False
        for trip in self._trips:
            if trip.way is way and trip.test(frame):
                self._trips.remove(trip)
                return await trip.hold(frame)
        return True
