"""An event log with snapshots on a real server, and a leader's retention over it.

What lives here: making one from a small fleet's life. What may not: what is expected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct
from nats.aio.client import Client

from controller.archive import Archive
from controller.retention import Keeping, Retention
from controller.snapshotting import SnapshotStats
from events.jetstream import JetStreamLog
from events.jetstream_snapshots import JetStreamSnapshots
from events.ledger import Ledger
from events.recall import fold
from events.snapshots import take
from events.subjects import Subjects
from tests.support.lives import a_life
from tests.support.records import append

RECORDS = a_life(jobs=80)
WHOLE = Ledger()
fold(WHOLE, RECORDS)


class Kept(Struct):
    """A JetStream log with snapshots, a leader's retention over it, and its ledger."""

    log: JetStreamLog
    store: JetStreamSnapshots
    retention: Retention
    stats: SnapshotStats
    ledger: Ledger
    left_s: float = 10.0


@asynccontextmanager
async def kept(
    nc: Client,
    subjects: Subjects,
    *,
    share: float,
    archive: Archive | None = None,
    positions: tuple[int, ...] = (50, 100, 150, 200),
) -> AsyncIterator[Kept]:
    """All RECORDS in messages of one each; the log may have a ``share`` of its bytes."""
    log, store = JetStreamLog(nc, subjects), JetStreamSnapshots(nc, subjects)
    for at, record in enumerate(RECORDS):
        await append(log, [record], at)
    for position in positions:
        before = Ledger()
        fold(before, RECORDS[:position])
        await store.keep(take(before))
    stats, ledger = SnapshotStats(), Ledger()
    fold(ledger, RECORDS)
    limit = int((await log.extent()).bytes * share)
    made = Kept(log, store, None, stats, ledger)  # type: ignore[arg-type]
    made.retention = Retention(
        log,
        store,
        Keeping(kept=2, log_bytes=limit),
        archive=archive,
        may_act=lambda: made.left_s,
        stats=stats,
    )
    yield made
