"""After the death of a supervisor: the next one on the same directory."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from events.states import WorkerState
from schedulers.supervisor.api import SpawnRefused, Supervisor
from schedulers.supervisor.core import LocalSupervisor
from schedulers.supervisor.process_tree import read_process
from tests.support import workers
from tests.support.supervision import EPOCH, Home, alive, pids_in, spec
from tests.support.waiting import until


async def die(home: Home) -> None:
    """The supervisor is gone without a word; its workers are not."""
    if isinstance(home.supervisor, LocalSupervisor):
        await home.supervisor.detach()
    else:
        (server,) = home.servers
        os.kill(server, signal.SIGKILL)
        await until(lambda: not alive(server))
        await home.supervisor.close()
        home.servers.clear()
    home.forget_reports()


async def reborn(home: Home) -> Supervisor:
    await die(home)
    return await home.open()


def journal(home: Home) -> Path:
    return home.state_dir / "journal.jsonl"


def reap_what_was_ours() -> None:
    """In local mode the workers are this process' children, whoever adopted them."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


async def test_survivors_are_adopted_and_stopped(process_home: Home) -> None:
    pid = await process_home.launch("w", workers.ends_in_order(0))
    await process_home.printed("w", b"ready")
    await reborn(process_home)
    row = await process_home.row("w")
    assert row is not None
    assert (row.pid, row.state) == (pid, WorkerState.RUNNING)
    assert await process_home.launch("w", workers.sleeps()) == pid
    assert await process_home.stop("w") == "stopping"
    end = await process_home.end("w")
    assert (end.state, end.exit_code, end.signal) == (WorkerState.FINISHED, None, None)
    assert end.reason == (
        "stopped as asked; its exit code is unknown: the supervisor that started it died"
    )
    assert not alive(pid)
    assert b"bye" in (await process_home.supervisor.output("w", since=0, max_bytes=99)).data


async def test_the_end_of_a_survivor_is_lost(process_home: Home) -> None:
    pid = await process_home.launch("w", workers.sleeps())
    await reborn(process_home)
    os.kill(pid, signal.SIGKILL)
    end = await process_home.end("w")
    assert (end.state, end.exit_code, end.signal) == (WorkerState.LOST, None, None)
    assert "unknown" in end.reason


async def test_who_ended_in_between_is_lost_with_all_it_left(
    process_home: Home, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pid = await process_home.launch("w", workers.forks_away(pids, stays=True))
    await process_home.printed("w", b"ready")
    await die(process_home)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
    (daemon,) = pids_in(pids)
    assert alive(daemon)
    await process_home.open()
    end = await process_home.end("w")
    assert end.state is WorkerState.LOST
    assert not alive(daemon)


async def test_the_tree_of_a_survivor_is_killed_as_a_whole(
    process_home: Home, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    await process_home.launch("w", workers.has_children_of_children(pids))
    await until(lambda: len(pids_in(pids)) == 3)
    await reborn(process_home)
    await process_home.stop("w", grace_s=0.1)
    end = await process_home.end("w")
    assert "killed after a grace of 0.1 s" in end.reason
    assert not [pid for pid in pids_in(pids) if alive(pid)]


async def test_a_lease_goes_on_and_does_not_begin_anew(process_home: Home) -> None:
    """Else a leader that counted its end would place another beside a worker that lives."""
    lease_s = 3.0
    await process_home.supervisor.renew()
    began = time.monotonic()
    await process_home.launch("leased", workers.sleeps(), stop_after_s=lease_s)
    await process_home.launch("free", workers.sleeps())
    await asyncio.sleep(lease_s * 0.6)
    await reborn(process_home)
    end = await process_home.end("leased")
    took_s = time.monotonic() - began
    assert end.state is WorkerState.LOST
    assert end.reason.startswith("no client renewed its lease for 3 s")
    assert took_s < lease_s * 1.5, "counted from the death of the first supervisor"
    row = await process_home.row("free")
    assert row is not None
    assert row.state is WorkerState.RUNNING


async def test_a_stop_goes_on(process_home: Home) -> None:
    await process_home.launch("w", workers.ignores_term())
    await process_home.printed("w", b"ready")
    await process_home.stop("w", grace_s=0.5)
    await reborn(process_home)
    end = await process_home.end("w")
    assert end.state is WorkerState.FINISHED
    assert end.reason.startswith("stopped as asked; killed after a grace of 0.5 s")


async def test_memory_outlives_it(home: Home) -> None:
    await home.launch("ended", workers.exits(6))
    await home.launch("told", workers.exits(0))
    await home.ends("ended", "told")
    await home.supervisor.acknowledge(["told"])
    await home.stop("never")
    with pytest.raises(SpawnRefused):
        await home.launch("broken", ["no-such-program"])
    before = await home.supervisor.inventory(EPOCH + 3)
    await reborn(home)
    after = await home.supervisor.inventory(0)
    assert after.epoch == EPOCH + 3
    assert after.seq > before.seq
    assert after.workers == before.workers
    assert (await home.end("ended")).exit_code == 6
    with pytest.raises(SpawnRefused, match="was seen"):
        await home.launch("new", workers.sleeps())
    for name in ("ended", "told", "never", "broken"):
        with pytest.raises(SpawnRefused, match="never starts here"):
            await home.supervisor.launch(spec(name, workers.sleeps()), EPOCH + 3)


async def test_a_torn_last_line_costs_nothing_else(home: Home) -> None:
    await home.launch("w", workers.exits(6))
    await home.end("w")
    await die(home)
    with journal(home).open("ab") as file:
        file.write(b'{"type":"epoch","epo')
    await home.open()
    assert (await home.end("w")).exit_code == 6
    await home.stop("never")
    await reborn(home)
    with pytest.raises(SpawnRefused, match="stopped before"):
        await home.launch("never", workers.sleeps())


async def test_a_death_between_fork_and_entry_leaves_no_stranger(process_home: Home) -> None:
    pid = await process_home.launch("w", workers.sleeps())
    await die(process_home)
    lines = journal(process_home).read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"type":"running"' not in line]
    assert len(kept) == len(lines) - 1
    journal(process_home).write_bytes(b"".join(kept))
    await process_home.open()
    row = await process_home.row("w")
    assert row is not None
    assert row.pid == pid
    await process_home.stop("w")
    await process_home.end("w")
    assert not alive(pid)


async def test_a_death_before_the_fork_is_a_lost_worker(process_home: Home) -> None:
    pid = await process_home.launch("w", workers.sleeps())
    await die(process_home)
    os.kill(pid, signal.SIGKILL)
    lines = journal(process_home).read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"type":"running"' not in line]
    journal(process_home).write_bytes(b"".join(kept))
    await process_home.open()
    end = await process_home.end("w")
    assert (end.state, end.pid) == (WorkerState.LOST, None)
    assert "was starting it died" in end.reason


@pytest.mark.parametrize("change", ["start", "boot"])
async def test_a_pid_that_is_used_again_is_nobodys_worker(process_home: Home, change: str) -> None:
    """An innocent process has the pid that the journal names, of another start or boot."""
    innocent = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    pid = await process_home.launch("w", workers.sleeps())
    await die(process_home)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
    text = journal(process_home).read_text().replace(f'"pid":{pid}', f'"pid":{innocent.pid}')
    process = read_process(innocent.pid)
    assert process is not None
    before = text.partition('"start":')[2].partition(",")[0]
    start = process.id.start if change == "boot" else process.id.start - 1
    text = text.replace(f'"start":{before}', f'"start":{start}')
    if change == "boot":
        text = text.replace('"boot":"', '"boot":"another-')
    journal(process_home).write_text(text)
    await process_home.open()
    end = await process_home.end("w")
    assert end.state is WorkerState.LOST
    assert await process_home.stop("w", force=True) == "ended"
    assert innocent.returncode is None
    assert alive(innocent.pid)
    innocent.kill()
    await innocent.wait()


async def test_output_goes_on_where_it_was(process_home: Home) -> None:
    await process_home.launch("w", workers.prints(3_000))
    await process_home.printed("w", lambda tail: tail.offset > 50_000)
    await reborn(process_home)
    # It printed on without a supervisor, so rotation has to skip: the end is what counts.
    async with asyncio.timeout(20):
        while True:
            tail = await process_home.supervisor.output("w", since=-1, max_bytes=10_000)
            if tail.offset == 300_000:
                break
            await asyncio.sleep(0.01)
    assert [int(line) for line in tail.data.splitlines()] == list(range(2_900, 3_000))


async def test_a_library_user_comes_back_to_its_workers(local_home: Home) -> None:
    pid = await local_home.launch("w", workers.sleeps())
    await reborn(local_home)
    row = await local_home.row("w")
    assert row is not None
    assert (row.pid, row.state) == (pid, WorkerState.RUNNING)
    await local_home.stop("w")
    assert (await local_home.end("w")).state is WorkerState.FINISHED
    reap_what_was_ours()
