"""What the demo plays on: a running slotbus, a feed, the results, and eyes on the events.

What lives here: the means of the scenario, and waiting with a deadline. What may not: the
scenario itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from nats.aio.client import Client

from controller.demo import pipeline
from controller.demo.feeder import Feeder
from controller.demo.processes import Processes
from controller.demo.results import Results
from controller.demo.show import Show
from controller.demo.story import tell
from events.asking import Patience
from events.client import SlotbusClient
from events.errors import SlotbusError
from events.facts import AnyFact
from events.following import EventRecord, NoEvents

JOB: Final = "dairy"
NODES: Final = ("n1", "n2", "n3")
NODE_SLOTS: Final = 4
JOB_SLOTS: Final = 6
EXPIRY_S: Final = 3.0
"""Short, for spectators; slotbus's own default is 30 s."""
HEARTBEAT_S: Final = 0.5
RATE: Final = 240.0
WINDOW_S: Final = 1.0
SUBJECT: Final = "demo.readings"
RESULTS: Final = "demo.results"
POLL_S: Final = 0.1
QUERY_S: Final = 5.0

T = TypeVar("T")


class DemoFailed(Exception):
    """The demo can't go on; says why."""


class Stage:
    """All that a scenario uses. Made by `open_stage`."""

    def __init__(
        self,
        show: Show,
        folder: Path,
        processes: Processes,
        bus: SlotbusClient,
        nc: Client,
        metrics_url: str,
    ) -> None:
        self.show = show
        self.folder = folder
        self.processes = processes
        self.bus = bus
        self.nc = nc
        self.metrics_url = metrics_url
        self.feeder = Feeder(nc, SUBJECT, RATE)
        self.results = Results(int(WINDOW_S * 1000), show.result)
        self.seen: list[EventRecord] = []
        self.killed: set[str] = set()
        """Nodes that the demo itself has killed."""
        self._saw = asyncio.Event()

    def state_dir(self, node_id: str) -> Path:
        return self.folder / node_id

    async def until(
        self, what: str, probe: Callable[[], Awaitable[T | None]], timeout_s: float
    ) -> T:
        """Asks again and again until the probe gives something. Raises DemoFailed when the time
        is over, or one of our processes has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._all_must_run()
                    try:
                        if (found := await probe()) is not None:
                            return found
                    except SlotbusError as error:
                        if not error.retriable:
                            raise
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise DemoFailed(f"{what}: not within {timeout_s:g} s") from error

    async def until_seen(
        self, what: str, chosen: Callable[[AnyFact], bool], timeout_s: float
    ) -> EventRecord:
        """The first event record with a fact like this, past ones too. Raises DemoFailed."""
        looked = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for record in self.seen[looked:]:
                        looked += 1
                        if any(chosen(fact) for fact in record.events):
                            return record
                    self._saw.clear()
                    await self._saw.wait()
        except TimeoutError as error:
            raise DemoFailed(f"{what}: no such event within {timeout_s:g} s") from error

    async def until_all_seen(self, last: int, timeout_s: float) -> set[int]:
        """Waits for the event of every record up to `last`; the positions still missing when
        the time is over."""
        missing = set(range(1, last + 1)) - {record.position for record in self.seen}
        try:
            async with asyncio.timeout(timeout_s):
                while missing:
                    self._saw.clear()
                    await self._saw.wait()
                    missing -= {record.position for record in self.seen}
        except TimeoutError:
            return missing
        return missing

    async def follow(self) -> None:
        """Shows every event as it is published; runs until it is cancelled."""
        while True:
            try:
                async with contextlib.aclosing(self.bus.events(follow=True)) as records:
                    async for record in records:
                        self.seen.append(record)
                        self._saw.set()
                        for sentence in tell(record.events):
                            self.show.event(record.position, sentence)
            except NoEvents:  # the first controller makes the stream
                await asyncio.sleep(POLL_S)

    async def feed(self) -> None:
        """Sends readings until the feeder is stopped."""
        await self.feeder.run()

    def _all_must_run(self) -> None:
        for name, said in self.processes.ended().items():
            raise DemoFailed(f"{name} has ended:\n{said}")


@asynccontextmanager
async def open_stage(
    show: Show, folder: Path, processes: Processes, server: str, metrics_url: str
) -> AsyncIterator[Stage]:
    """Connects, and follows events from here on. Raises SlotbusError."""
    patience = Patience(absent_s=POLL_S, query_s=QUERY_S)  # `until` is patient
    async with SlotbusClient.connect(server, name="slotbus demo", patience=patience) as bus:
        nc = await pipeline.connect(server)
        stage = Stage(show, folder, processes, bus, nc, metrics_url)
        await nc.subscribe(RESULTS, cb=stage.results.on_message)
        tasks = [asyncio.create_task(stage.follow(), name="demo events")]
        try:
            yield stage
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await nc.close()
        for end in ends:
            if isinstance(end, SlotbusError):
                raise end
