"""The audit in production: the laws, checked over the real log while it grows.

What lives here: a task beside the engine that reads the log from its beginning and goes on
behind it, slowly enough to be in nobody's way. What may not: the laws (``events.audit``),
and any consequence but a loud line and a counter: what is wrong is for a person to judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from typing import Final

import structlog

from events.audit import Auditor, Violation
from events.auditing import audit_from
from events.facts import Record
from events.ids import START, Position
from events.log import EventLog, LogPurged
from events.recall import oldest
from events.snapshots import (
    SnapshotFailed,
    SnapshotStore,
    SnapshotUnreadable,
    fits,
    pieces,
)

SLICE_RECORDS: Final = 10
"""Checked in one go, about a millisecond; then the loop gets a turn."""

SHARE: Final = 0.1
"""Of the loop's time, at the most."""

LOOK_S: Final = 1.0
"""Between two looks at whether the log has grown."""

NO_SNAPSHOTS: Final = 0
"""Whole snapshots are compared by ``slotbus audit`` and in tests: a large ledger's would hold
up the loop."""

_log = structlog.get_logger("slotbus.audit")


class LiveAudit:
    """``run`` is a task of the owner; ``grown`` is for the engine's observers. Violations
    are counted by law in ``violations``, which outlives leaderships."""

    def __init__(
        self, log: EventLog, violations: Counter[int], store: SnapshotStore | None = None
    ) -> None:
        self.position = START
        """Checked up to here."""
        self._source = log
        self._store = store
        self._violations = violations
        self._end = START
        self._more = asyncio.Event()

    def grown(self, position: Position, _record: Record) -> None:
        """The log ends here now."""
        self._end = position
        self._more.set()

    async def run(self) -> None:
        """Checks, until cancelled: from the log's beginning, or where that is purged from the
        oldest snapshot on. Raises LogError."""
        auditor, self.position = Auditor(snapshot_every=NO_SNAPSHOTS), START
        while True:
            try:
                await self._catch_up(auditor)
            except LogPurged as error:
                auditor = await self._from_snapshot(error)
                continue
            if self.position >= self._end:
                self._more.clear()
                await self._more.wait()
            await asyncio.sleep(LOOK_S)

    async def _from_snapshot(self, error: LogPurged) -> Auditor:
        ledger = None if self._store is None else await oldest(self._source, self._store)
        if ledger is None:
            raise error
        self.position = Position(ledger.position)
        _log.info("the audit begins with a snapshot", position=self.position)
        return audit_from(ledger, snapshot_every=NO_SNAPSHOTS)

    async def _catch_up(self, auditor: Auditor) -> None:
        loop = asyncio.get_running_loop()
        kept = await self._kept()
        async with contextlib.aclosing(self._source.read(self.position)) as reading:
            async for records in reading:
                for first in range(0, len(records), SLICE_RECORDS):
                    began = loop.time()
                    for record in records[first : first + SLICE_RECORDS]:
                        self.position = Position(self.position + 1)
                        for violation in auditor.observe(self.position, record):
                            self._tell(violation)
                        if self.position in kept:
                            await self._compare(auditor)
                    await asyncio.sleep((loop.time() - began) * (1 / SHARE - 1))

    async def _kept(self) -> set[Position]:
        """Where there are snapshots to compare with what the log folds to."""
        try:
            return set() if self._store is None else set(await self._store.positions())
        except SnapshotFailed:
            return set()  # it is looked for again when the log has grown

    async def _compare(self, auditor: Auditor) -> None:
        """Law 4, for a snapshot that a start would trust; in small steps."""
        assert self._store is not None
        try:
            head = await self._store.head(self.position)
        except (SnapshotUnreadable, SnapshotFailed):
            return  # a start would pass over it
        hashed = hashlib.sha256()
        for number, piece in enumerate(pieces(auditor.ledger.state)):
            hashed.update(piece)
            if number % SLICE_RECORDS == 0:
                await asyncio.sleep(0)
        if fits(head, auditor.ledger) and hashed.hexdigest() != head.digest:
            text = f"the snapshot at record {self.position} is not what the log folds to"
            self._tell(Violation(4, self.position, text, {}))

    def _tell(self, violation: Violation) -> None:
        self._violations[violation.law] += 1
        _log.error(
            "a law is broken",
            law=violation.law,
            position=violation.position,
            what=violation.sentence,
            **violation.facts,
        )
