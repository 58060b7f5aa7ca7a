"""What a supervisor remembers: the fold of its journal, its bounds, its lock. No processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.states import WorkerState
from schedulers.supervisor.api import StateDirBusy
from schedulers.supervisor.journal import (
    NAME,
    Acknowledged,
    Ended,
    Entry,
    EpochSeen,
    Launching,
    Opened,
    Running,
    SeqReserved,
    Stopping,
    Tombstone,
)
from schedulers.supervisor.memory import SPARE_LINES, Memory
from schedulers.supervisor.state import MAX_TOMBSTONES, SEQ_BLOCK, State
from tests.support.supervision import STAMP


def launching(worker_id: str) -> Launching:
    return Launching(worker_id=worker_id, job_id="j", run_id=1, slots=1, stamp=STAMP)


def running(worker_id: str) -> Running:
    return Running(worker_id=worker_id, pid=100, start=200, boot="b")


def ended(worker_id: str) -> Ended:
    return Ended(worker_id=worker_id, state=WorkerState.FAILED, exit_code=2, reason="why")


HISTORY: list[Entry] = [
    Opened(supervisor_id="id"),
    EpochSeen(epoch=5),
    EpochSeen(epoch=3),
    SeqReserved(upto=20),
    *[launching(name) for name in ("told", "broken", "b", "a", "alive", "starting")],
    Tombstone(worker_id="broken", reason="no such program"),
    *[running(name) for name in ("told", "b", "a", "alive")],
    Stopping(worker_id="alive", grace_s=3, reason="stopped as asked"),
    *[ended(name) for name in ("a", "told", "b")],
    Acknowledged(worker_ids=["told", "alive", "nobody"]),
    ended("nobody"),
]


def fold(entries: list[Entry]) -> State:
    state = State()
    for entry in entries:
        state.apply(entry)
    return state


def test_the_fold() -> None:
    state = fold(HISTORY)
    assert (state.supervisor_id, state.epoch, state.seq_reserved) == ("id", 5, 20)
    assert {worker.born.worker_id for worker in state.living()} == {"alive", "starting"}
    assert state.alive == 2
    assert [worker.born.worker_id for worker in state.ended_after(0)] == ["a", "b"]
    assert {stone.worker_id: stone.ran for stone in state.tombstones.values()} == {
        "broken": False,
        "told": True,
    }
    row = state.workers["alive"].row()
    assert (row.state, row.pid, row.reason) == (WorkerState.STOPPING, 100, "stopped as asked")


def test_every_beginning_written_short_folds_to_the_same() -> None:
    for length in range(len(HISTORY) + 1):
        state = fold(HISTORY[:length])
        short = list(state.entries())
        again = fold(short)
        assert list(again.entries()) == short
        assert [w.row() for w in again.ended_after(0)] == [w.row() for w in state.ended_after(0)]
        assert again.alive == state.alive


def test_tombstones_are_bounded_and_the_oldest_leave() -> None:
    state = State()
    for number in range(MAX_TOMBSTONES + 2):
        state.apply(Tombstone(worker_id=f"w{number}", reason=""))
    assert len(state.tombstones) == MAX_TOMBSTONES
    assert "w1" not in state.tombstones
    assert "w2" in state.tombstones


def test_seq_never_goes_back(tmp_path: Path) -> None:
    seen = 0
    for _ in range(3):
        memory = Memory(tmp_path)
        memory.open()
        for _ in range(SEQ_BLOCK // 2):
            seq = memory.next_seq()
            assert seq > seen
            seen = seq
        memory.close()


def test_a_long_journal_is_written_anew(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.open()
    for epoch in range(1, SPARE_LINES + 10):
        memory.record(EpochSeen(epoch=epoch))
    long = (tmp_path / NAME).stat().st_size
    memory.tidy()
    memory.record(EpochSeen(epoch=SPARE_LINES + 10))
    assert (tmp_path / NAME).stat().st_size < long / 100
    memory.close()
    again = Memory(tmp_path)
    again.open()
    assert again.state.epoch == SPARE_LINES + 10
    assert again.state.supervisor_id == memory.state.supervisor_id
    again.close()


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = Memory(tmp_path), Memory(tmp_path)
    first.open()
    with pytest.raises(StateDirBusy, match="another supervisor"):
        second.open()
    first.close()
    second.open()
    second.close()
