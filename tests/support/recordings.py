"""Recording from outside, for tests: begun, ended, and looked at while it goes on.

What lives here: a recorder in this process, and what its file leads to so far. What may not: who
publishes what is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.client import Client

from controller.outside import Outside
from controller.recordsettings import MIB, RecordSettings
from events.client import SlotbusClient
from events.subjects import Subjects
from schedulers.files import replay_file
from tests.support.waiting import background


class Recording:
    """A recorder from outside, with what it said."""

    def __init__(self, bus: SlotbusClient, settings: RecordSettings) -> None:
        self.said: list[str] = []
        self.begun = asyncio.Event()
        self.stop = asyncio.Event()
        self.outside = Outside(
            bus, settings, said=self.said.append, begun=self.begun.set, absent_s=0.5
        )


@asynccontextmanager
async def recording(
    nc: Client, subjects: Subjects, path: Path, *, file_bytes: int = MIB, total_bytes: int = MIB
) -> AsyncIterator[Recording]:
    """Records into a file during a block of code; begun when that begins."""
    made = Recording(
        SlotbusClient(nc, subjects.root),
        RecordSettings(
            folder=path.parent,
            name=path.name,
            mask=(),
            file_bytes=file_bytes,
            total_bytes=total_bytes,
        ),
    )
    async with background(made.outside.run(made.stop)) as task:
        async with asyncio.timeout(20):
            await asyncio.wait(
                {task, asyncio.ensure_future(made.begun.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
        assert made.begun.is_set(), made.said
        yield made
        made.stop.set()
        async with asyncio.timeout(20):
            await task


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def reached(path: Path, position: int) -> bool:
    """Whether what is in the file leads there."""
    return path.exists() and replay_file(path).position == position


def knows(path: Path, job_id: str) -> bool:
    """Whether what is in the file leads to such a job."""
    return path.exists() and job_id in replay_file(path).ledger.jobs
