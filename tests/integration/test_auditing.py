"""The audit beside a running engine: it follows the log and tells what is broken."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from controller.auditing import LiveAudit
from events.facts import LeaderStarted, NodeRegistered, Record, WorkerEnded
from events.ids import START, Position
from events.ledger import Ledger
from events.log import LogPurged, MemoryLog
from events.recall import fold
from events.snapshots import MemorySnapshots, take
from events.states import WorkerState
from tests.support.lives import a_life
from tests.support.records import Beheaded
from tests.support.waiting import background, until

AT = datetime(2026, 1, 1, tzinfo=UTC)
LED = Record(
    at=AT, epoch=1, cause="leader", events=[LeaderStarted(epoch=1, cluster="c", scheduler="node")]
)
NODE = Record(
    at=AT,
    epoch=1,
    cause="register n",
    events=[NodeRegistered(node_id="n", incarnation="i", task_slots=1)],
)
BROKEN = Record(
    at=AT, epoch=1, cause="test", events=[WorkerEnded(worker_id="w", state=WorkerState.FAILED)]
)


async def test_it_reads_what_is_there_and_follows() -> None:
    log, violations = MemoryLog(), Counter[int]()
    await log.append([LED], expected=START, timeout_s=1)
    audit = LiveAudit(log, violations)
    async with background(audit.run()):
        await until(lambda: audit.position == 1)
        await log.append([NODE] * 30, expected=Position(1), timeout_s=1)
        audit.grown(Position(31), NODE)
        await until(lambda: audit.position == 31)
        assert not violations
        await log.append([BROKEN], expected=Position(31), timeout_s=1)
        audit.grown(Position(32), BROKEN)
        await until(lambda: audit.position == 32)
        assert violations[5] == 1


async def test_it_begins_anew_when_it_is_run_again() -> None:
    log, violations = MemoryLog(), Counter[int]()
    await log.append([LED, NODE], expected=START, timeout_s=1)
    audit = LiveAudit(log, violations)
    for _ in range(2):
        async with background(audit.run()):
            await until(lambda: audit.position == 2)
    assert not violations


async def test_behind_a_purge_it_begins_with_the_oldest_snapshot_of_this_log() -> None:
    records, violations = a_life(jobs=12), Counter[int]()
    log, store = Beheaded(), MemorySnapshots()
    await log.append(records, expected=START, timeout_s=1)
    ledger = Ledger()
    fold(ledger, records[:18])
    await store.keep(take(ledger))  # its record is gone
    fold(ledger, records[18:25])
    await store.keep(take(ledger))
    audit = LiveAudit(log, violations, store)
    async with background(audit.run()):
        await until(lambda: audit.position == len(records))
        assert not violations
        wrong = replace(BROKEN, at=records[-1].at, epoch=records[-1].epoch)
        await log.append([wrong], expected=Position(len(records)), timeout_s=1)
        audit.grown(Position(len(records) + 1), wrong)
        await until(lambda: audit.position == len(records) + 1)
        assert violations == {5: 1, 4: 1}


async def test_without_a_snapshot_of_what_was_purged_it_fails_and_may_be_run_again() -> None:
    records = a_life(jobs=12)
    log = Beheaded()
    await log.append(records, expected=START, timeout_s=1)
    with pytest.raises(LogPurged):
        await LiveAudit(log, Counter(), MemorySnapshots()).run()


async def test_a_kept_snapshot_that_is_not_what_the_log_folds_to_is_told() -> None:
    records, violations = a_life(jobs=12), Counter[int]()
    log, store = MemoryLog(), MemorySnapshots()
    await log.append(records, expected=START, timeout_s=1)
    for position in (10, 20, 30):
        ledger = Ledger()
        fold(ledger, records[:position])
        if position == 20:
            ledger.state.highest_run["job-000001"] = 7
        await store.keep(take(ledger))
    audit = LiveAudit(log, violations, store)
    async with background(audit.run()):
        await until(lambda: audit.position == len(records))
    assert violations == {4: 1}
