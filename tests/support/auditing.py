"""The laws, checked at the end of every test on every log that an engine of it wrote; and
what entered the engine, played again.

What lives here: a log that remembers what passed through it, the fixture that puts it around
each engine's own, and the audit of a controller in another process. What may not: laws
(``events.audit``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import cast

import msgspec
import pytest

from events.audit import Violation, audit
from events.facts import Record
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.ledger import Ledger
from events.log import EventLog, LogPurged
from events.subjects import Subjects
from schedulers.leading import Leading
from schedulers.recorders import MemoryRecorder, Recorders
from schedulers.replaying import replay
from tests.support.nats import connected


class WatchedLog:
    """An ``EventLog`` around another, which keeps a copy of all that was read from the
    beginning or appended through it. Copies are bytes, as they are stored."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.lines: list[bytes] = []
        self.written = False
        self.whole = True
        """Whether the lines are all there ever were; what was purged is empty."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        end = int(after)
        async with aclosing(self._log.read(after)) as batches:
            async for batch in batches:
                if end <= len(self.lines):
                    self.lines[end:] = [msgspec.json.encode(record) for record in batch]
                end += len(batch)
                yield batch

    async def append(
        self, records: Sequence[Record], *, expected: Position, timeout_s: float
    ) -> None:
        lines = [msgspec.json.encode(record) for record in records]
        if expected > len(self.lines):
            await self._fill()
        await self._log.append(records, expected=expected, timeout_s=timeout_s)
        self.lines[expected:] = lines
        self.written = True

    async def _fill(self) -> None:
        """Reads what the engine did not, since its ledger came from somewhere else."""
        try:
            await self._read_behind(START)
        except LogPurged as error:
            self.whole = False
            begin = error.facts["first"]
            assert isinstance(begin, int)
            self.lines = [b""] * (begin - 1)
            await self._read_behind(Position(begin - 1))

    async def _read_behind(self, after: Position) -> None:
        async with aclosing(self.read(after)) as batches:
            async for _ in batches:
                pass

    async def close(self) -> None:
        await self._log.close()

    def records(self) -> list[Record]:
        return [msgspec.json.decode(line, type=Record) for line in self.lines]


class Watched(msgspec.Struct, frozen=True):
    """An engine, and everything that entered it."""

    engine: Leading
    recorder: MemoryRecorder


class Watch:
    """The engines that a test started, each with its log as it saw it."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []

    def add(self, engine: Leading) -> None:
        """Before an engine reads its log for the first time."""
        if not isinstance(engine.log, WatchedLog):
            engine.log = WatchedLog(engine.log)
            recorder = MemoryRecorder()
            given = engine.tape.recorder
            engine.record(recorder if given is None else Recorders(recorder, given))
            self.watched.append(Watched(engine, recorder))

    def check(self) -> None:
        """An engine that refused the log it found has written nothing to answer for."""
        for watched in self.watched:
            log = cast(WatchedLog, watched.engine.log)
            if log.written:
                if log.whole:
                    check_records(log.records())
                    check_ledger(watched.engine.ledger, log.records())
                check_replay(watched.recorder, log.lines)


def check_replay(recorder: MemoryRecorder, lines: list[bytes]) -> None:
    """What entered leads to exactly the records that were written; one that can't be written
    down (a test's own, made in Python) leaves a gap. No hidden input."""
    for stretch in replay(recorder.recording()).stretches:
        written = lines[stretch.after : stretch.position]
        assert [msgspec.json.encode(record) for record in stretch.records] == written


def check_records(records: list[Record]) -> None:
    """Fails with a sentence for every law that a whole log breaks; outcomes that were due
    by its last record are overdue."""
    found = audit(records, records[-1].at if records else None)
    assert not found, told(found)


def check_ledger(ledger: Ledger, records: list[Record]) -> None:
    """Law 4: an engine's ledger is what its log says. One that decided more than was stored
    when it ended can't be compared."""
    if ledger.position != len(records):
        return
    fresh = Ledger()
    for record in records:
        fresh.apply(record)
    assert ledger.snapshot() == fresh.snapshot(), "the engine's ledger is not what its log says"


def told(found: list[Violation]) -> str:
    return "\n".join(f"law {v.law} at record {v.position}: {v.sentence}" for v in found)


async def audit_server(url: str, root: str) -> int:
    """Checks the log that a controller, in whatever process, wrote to a server; how many
    records it has."""
    async with connected(url) as client:
        log = JetStreamLog(client, Subjects(root), create=False)
        records = [record async for batch in log.read() for record in batch]
        await log.close()
    check_records(records)
    return len(records)


@pytest.fixture(autouse=True)
def laws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Every engine that a test starts is watched; at the end its log keeps the laws."""
    watch = Watch()
    plain_start = Leading.start

    async def start(engine: Leading) -> None:
        watch.add(engine)
        await plain_start(engine)

    monkeypatch.setattr(Leading, "start", start)
    yield watch
    watch.check()
