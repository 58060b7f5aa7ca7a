"""The supervisor inside somebody's program: what it must leave alone, and hard times."""

from __future__ import annotations

import asyncio
import errno
import os
import signal

import pytest

from events.states import WorkerState
from schedulers.supervisor import exits
from schedulers.supervisor.api import SpawnRefused, SupervisorGone
from schedulers.supervisor.core import LocalSupervisor
from schedulers.supervisor.journal import Entry, Journal, Launching
from tests.support import workers
from tests.support.supervision import EPOCH, Home, alive, pids_in, spec
from tests.support.waiting import until


async def test_other_children_of_the_program_keep_their_exit_codes(local_home: Home) -> None:
    others = [
        await asyncio.create_subprocess_exec("sh", "-c", f"sleep 0.1; exit {code}")
        for code in range(20)
    ]
    for number in range(20):
        await local_home.launch(f"w{number}", workers.exits(number))
    await local_home.ends(*(f"w{number}" for number in range(20)))
    async with asyncio.timeout(10):
        codes = await asyncio.gather(*(other.wait() for other in others))
    assert codes == list(range(20))


async def test_an_exit_taken_by_another_part_of_the_program_is_lost(local_home: Home) -> None:
    pid = await local_home.launch("w", workers.sleeps())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # noqa: ASYNC222 - it is dead: before the loop hears of it
    end = await local_home.end("w")
    assert end.state is WorkerState.LOST
    assert "another part of this program" in end.reason


@pytest.mark.parametrize("why", ["old kernel", "no descriptors left"])
async def test_without_pidfds(local_home: Home, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "old kernel":
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(exits, "SPARE_DESCRIPTORS", 1 << 30)
    pids = local_home.workdir / "pids"
    await local_home.launch("a", workers.exits(5))
    await local_home.launch("b", workers.forks_away(pids, stays=True))
    await local_home.printed("b", b"ready")
    assert (await local_home.end("a")).exit_code == 5
    await local_home.stop("b", grace_s=5)
    assert (await local_home.end("b")).signal == signal.SIGTERM
    assert not alive(pids_in(pids)[0])


async def test_a_full_disk_refuses_starts_and_forgets_nothing(
    local_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_home.launch("w", workers.sleeps())

    def full(self: Journal, entry: Entry) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "journal")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        patch.setattr(Journal, "rewrite", full)
        with pytest.raises(SpawnRefused, match="No space left"):
            await local_home.launch("v", workers.sleeps())
        await local_home.stop("w")
        assert (await local_home.end("w")).signal == signal.SIGTERM
    path = local_home.state_dir / "journal.jsonl"
    await until(lambda: b'"type":"ended","worker_id":"w"' in path.read_bytes())
    with pytest.raises(SpawnRefused, match="No space left"):
        await local_home.launch("v", workers.sleeps())


async def test_an_entry_written_by_halves_does_not_spoil_the_next(local_home: Home) -> None:
    path = local_home.state_dir / "journal.jsonl"
    journal = Journal(local_home.state_dir)
    good = Launching(worker_id="w", job_id="j", run_id=1, slots=1, stamp=spec("w", []).stamp)
    write = os.write

    def half(fd: int, data: bytes) -> int:
        return write(fd, data[: len(data) // 2])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="whole"):
            journal.append(good)
    journal.append(good)
    journal.close()
    assert [entry for entry in Journal(local_home.state_dir).read() if entry == good] == [good]
    assert path.stat().st_size > 0


async def test_after_close_nothing_is_known(local_home: Home) -> None:
    pid = await local_home.launch("w", workers.ignores_term())
    await local_home.printed("w", b"ready")
    await local_home.supervisor.close()
    assert not alive(pid)
    with pytest.raises(SupervisorGone):
        await local_home.launch("v", workers.sleeps())
    with pytest.raises(SupervisorGone):
        await local_home.supervisor.acknowledge(["w"])
    await local_home.supervisor.close()
    again = await local_home.open()
    assert [row.worker_id for row in (await again.inventory(EPOCH)).workers] == ["w"]


async def test_unopened_it_touches_nothing(local_home: Home) -> None:
    state_dir = local_home.workdir / "unused"
    unused = LocalSupervisor(state_dir)
    await unused.close()
    assert not state_dir.exists()
