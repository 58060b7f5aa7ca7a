"""What both supervisors do with workers: start, stop, tell, remember."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from events.errors import Invalid
from events.states import WorkerState
from schedulers.supervisor.api import SpawnRefused
from tests.support import workers
from tests.support.supervision import (
    EPOCH,
    STAMP,
    Home,
    alive,
    pids_in,
    processes_of,
    spec,
    zombies_of,
)
from tests.support.waiting import until


@pytest.mark.parametrize("code", [0, 1, 3, 255])
async def test_an_exit_code_is_told(home: Home, code: int) -> None:
    pid = await home.launch("w", workers.exits(code))
    end = await home.end("w")
    assert (end.exit_code, end.signal, end.pid) == (code, None, pid)
    assert end.state is (WorkerState.FAILED if code else WorkerState.FINISHED)
    assert end.reason == (f"exit code {code}" if code else "")
    assert (end.job_id, end.run_id, end.slots, end.stamp) == ("job", 3, 2, STAMP)


async def test_a_signal_is_told(home: Home) -> None:
    await home.launch("w", workers.dies_by("USR1"))
    end = await home.end("w")
    assert (end.exit_code, end.signal) == (None, signal.SIGUSR1)
    assert end.state is WorkerState.FAILED
    assert "SIGUSR1" in end.reason


async def test_a_running_worker_is_in_the_inventory(home: Home) -> None:
    pid = await home.launch("w", workers.sleeps())
    row = await home.row("w")
    assert row is not None
    assert (row.state, row.pid, row.exit_code) == (WorkerState.RUNNING, pid, None)


async def test_each_worker_leads_a_session_and_reads_nothing(home: Home) -> None:
    pid = await home.launch("w", workers.shell("cat; echo done; sleep 600"))
    await home.printed("w", b"done")
    assert os.getsid(pid) == pid
    assert os.getpgid(pid) == pid


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-program-anywhere"], "'no-such-program-anywhere': No such file or directory"),
        (["./plain.txt"], "'./plain.txt': Permission denied"),
        (["./garbage"], "'./garbage': Exec format error"),
        (["sh", "a\0b"], "null"),
        ([], "no worker command"),
    ],
)
async def test_what_cannot_be_spawned_is_refused_for_ever(
    home: Home, command: list[str], words: str
) -> None:
    (home.workdir / "plain.txt").write_text("text")
    garbage = home.workdir / "garbage"
    garbage.write_bytes(b"\x00\x01garbage")
    garbage.chmod(0o755)
    with pytest.raises(SpawnRefused) as refused:
        await home.launch("w", command)
    assert words in refused.value.message
    with pytest.raises(SpawnRefused):
        await home.launch("w", workers.sleeps())
    assert await home.row("w") is None
    assert await home.stop("w") == "unknown"


async def test_a_workdir_that_is_gone_is_a_reason(home: Home) -> None:
    home.workdir.rmdir()
    with pytest.raises(SpawnRefused, match="workdir': No such file"):
        await home.launch("w", workers.sleeps())


async def test_an_id_that_is_a_path_is_invalid(home: Home) -> None:
    with pytest.raises(Invalid) as invalid:
        await home.launch("../w", workers.sleeps())
    assert invalid.value.path == "$.worker_id"


async def test_launching_again_answers_as_before(home: Home) -> None:
    first = await home.launch("w", workers.sleeps())
    assert await home.launch("w", workers.sleeps()) == first
    (mark,) = home.marks
    # A process' environment is there a moment after its exec.
    await until(lambda: [process.pid for process in processes_of(mark, "w")] == [first])


async def test_a_worker_that_ended_never_starts_again(home: Home) -> None:
    await home.launch("w", workers.exits(0))
    await home.end("w")
    with pytest.raises(SpawnRefused, match="finished") as refused:
        await home.launch("w", workers.sleeps())
    assert refused.value.facts["ran"] is True
    await home.supervisor.acknowledge(["w"])
    with pytest.raises(SpawnRefused, match="already ran") as refused:
        await home.launch("w", workers.sleeps())
    assert refused.value.facts == {"ran": True, "told": True}
    reply = await home.supervisor.stop("w", force=False, grace_s=1, epoch=EPOCH)
    assert (reply.state, reply.told) == ("ended", True)


async def test_a_stop_before_the_start_prevents_it(home: Home) -> None:
    assert await home.stop("w") == "unknown"
    assert await home.stop("w") == "unknown"
    with pytest.raises(SpawnRefused, match="stopped before") as refused:
        await home.launch("w", workers.sleeps())
    assert refused.value.facts["ran"] is False


async def test_a_worker_being_stopped_is_not_started_again(home: Home) -> None:
    await home.launch("w", workers.ignores_term())
    await home.printed("w", b"ready")
    await home.stop("w")
    with pytest.raises(SpawnRefused, match="stopping"):
        await home.launch("w", workers.sleeps())


async def test_a_stop_right_behind_the_start_is_a_stop(home: Home) -> None:
    started = asyncio.create_task(home.launch("w", workers.sleeps()))
    stopped = asyncio.create_task(home.stop("w", grace_s=5))
    pid, state = await asyncio.gather(started, stopped)
    assert state == "stopping"
    end = await home.end("w")
    assert (end.state, end.signal) == (WorkerState.FINISHED, signal.SIGTERM)
    assert not alive(pid)


async def test_a_worker_may_end_in_order(home: Home) -> None:
    await home.launch("w", workers.ends_in_order(5))
    await home.printed("w", b"ready")
    assert await home.stop("w") == "stopping"
    end = await home.end("w")
    assert (end.state, end.exit_code, end.reason) == (
        WorkerState.FINISHED,
        5,
        "stopped as asked",
    )
    assert b"bye" in (await home.supervisor.output("w", since=0, max_bytes=100)).data


async def test_a_worker_deaf_to_term_is_killed_after_the_grace(home: Home) -> None:
    await home.launch("w", workers.ignores_term())
    await home.printed("w", b"ready")
    begun = asyncio.get_running_loop().time()
    await home.stop("w", grace_s=0.3)
    row = await home.row("w")
    assert row is not None
    assert row.state is WorkerState.STOPPING
    end = await home.end("w")
    assert asyncio.get_running_loop().time() - begun >= 0.3
    assert (end.state, end.signal) == (WorkerState.FINISHED, signal.SIGKILL)
    assert end.reason == "stopped as asked; killed after a grace of 0.3 s"


async def test_force_kills_at_once_also_one_being_stopped(home: Home) -> None:
    await home.launch("a", workers.ignores_term())
    await home.launch("b", workers.ignores_term())
    await home.printed("a", b"ready")
    await home.stop("a", grace_s=600)
    await home.stop("a", force=True)
    await home.stop("b", force=True)
    for end in await home.ends("a", "b"):
        assert (end.state, end.signal) == (WorkerState.FINISHED, signal.SIGKILL), end


async def test_a_longer_grace_does_not_put_off_the_end(home: Home) -> None:
    await home.launch("w", workers.ignores_term())
    await home.printed("w", b"ready")
    await home.stop("w", grace_s=0.2)
    await home.stop("w", grace_s=600)
    assert (await home.end("w")).signal == signal.SIGKILL


async def test_a_stopped_process_hears_term(home: Home) -> None:
    pid = await home.launch("w", workers.sleeps())
    os.kill(pid, signal.SIGSTOP)
    await home.stop("w", grace_s=600)
    assert (await home.end("w")).signal == signal.SIGTERM


async def test_childrens_children_are_killed(home: Home, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    await home.launch("w", workers.has_children_of_children(pids))
    await until(lambda: len(pids_in(pids)) == 3)
    await home.stop("w", grace_s=0.1)
    await home.end("w")
    assert not [pid for pid in pids_in(pids) if alive(pid)]


@pytest.mark.parametrize("clears", [False, True])
async def test_a_process_that_forked_away_is_killed_too(
    home: Home, tmp_path: Path, clears: bool
) -> None:
    pids = tmp_path / "pids"
    await home.launch("w", workers.forks_away(pids, stays=True, clears=clears))
    await home.printed("w", b"ready")
    (daemon,) = pids_in(pids)
    assert alive(daemon)
    assert os.getsid(daemon) != os.getpid()
    await home.stop("w", force=True)
    await home.end("w")
    assert not alive(daemon)


async def test_what_a_worker_leaves_behind_ends_before_its_end_is_told(
    home: Home, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    await home.launch("w", workers.forks_away(pids, stays=False))
    end = await home.end("w")
    assert (end.state, end.exit_code) == (WorkerState.FINISHED, 0)
    (daemon,) = pids_in(pids)
    assert not alive(daemon)


async def test_who_forks_on_and_on_does_not_escape(home: Home) -> None:
    await home.launch("w", workers.flees())
    await home.printed("w", b"ready")
    await home.stop("w", force=True)
    await home.end("w")
    (mark,) = home.marks
    assert processes_of(mark) == []


async def test_other_workers_are_left_alone(home: Home, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    other = await home.launch("other", workers.forks_away(pids, stays=True))
    await home.printed("other", b"ready")
    await home.launch("w", workers.sleeps())
    await home.stop("w", force=True)
    await home.end("w")
    assert alive(other)
    assert alive(pids_in(pids)[0])


# --- fencing ------------------------------------------------------------------------------


async def test_a_lower_epoch_is_refused(home: Home) -> None:
    await home.launch("w", workers.sleeps())
    taken = await home.supervisor.inventory(EPOCH + 5)
    assert taken.epoch == EPOCH + 5
    with pytest.raises(SpawnRefused) as refused:
        await home.supervisor.launch(spec("v", workers.sleeps()), EPOCH)
    assert refused.value.facts["epoch_seen"] == EPOCH + 5
    with pytest.raises(SpawnRefused):
        await home.supervisor.stop("w", force=True, grace_s=0, epoch=EPOCH)
    with pytest.raises(SpawnRefused):
        await home.supervisor.inventory(EPOCH + 4)
    unasked = await home.supervisor.inventory(0)
    assert [row.state for row in unasked.workers] == [WorkerState.RUNNING]
    # A refused epoch is no tombstone: the right leader may still start it.
    await home.supervisor.launch(spec("v", workers.sleeps()), EPOCH + 5)


async def test_launch_and_stop_raise_the_epoch(home: Home) -> None:
    await home.supervisor.launch(spec("w", workers.sleeps()), EPOCH + 1)
    await home.supervisor.stop("nobody", force=False, grace_s=1, epoch=EPOCH + 2)
    assert (await home.supervisor.inventory(0)).epoch == EPOCH + 2


async def test_seq_tells_which_inventory_came_later(home: Home) -> None:
    before = await home.supervisor.inventory(EPOCH)
    spawned = await home.supervisor.launch(spec("w", workers.sleeps()), EPOCH)
    after = await home.supervisor.inventory(EPOCH)
    assert before.seq < spawned.seq < after.seq
    stopped = await home.supervisor.stop("w", force=False, grace_s=1, epoch=EPOCH)
    assert after.seq < stopped.seq < (await home.supervisor.inventory(EPOCH)).seq


# --- reports ------------------------------------------------------------------------------


async def test_ends_stay_until_acknowledged(home: Home) -> None:
    for name in ("a", "b", "c"):
        await home.launch(name, workers.exits(4))
        await home.end(name)
    home.forget_reports()
    await home.supervisor.acknowledge(["b", "nobody"])
    heard = []
    async with asyncio.timeout(10):
        async for row in home.supervisor.reports():
            heard.append(row)
            if len(heard) == 2:
                break
    assert [row.worker_id for row in heard] == ["a", "c"]
    listed = (await home.supervisor.inventory(EPOCH)).workers
    assert listed == heard


async def test_the_living_cannot_be_acknowledged(home: Home) -> None:
    await home.launch("w", workers.sleeps())
    await home.supervisor.acknowledge(["w"])
    assert await home.row("w") is not None


async def test_reports_end_with_the_supervisor(home: Home) -> None:
    await home.launch("w", workers.sleeps())
    heard = []

    async def listen() -> None:
        heard.extend([row async for row in home.supervisor.reports()])

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await home.close()
    async with asyncio.timeout(10):
        await listening
    if home.mode == "local":
        assert [row.worker_id for row in heard] == ["w"]
        assert heard[0].reason == "stopped with its supervisor"


async def test_a_thousand_that_end_at_once(home: Home) -> None:
    names = [f"w{i}" for i in range(1000)]
    await asyncio.gather(*(home.launch(name, workers.exits(0)) for name in names))
    ends = await home.ends(*names)
    assert {(end.state, end.exit_code) for end in ends} == {(WorkerState.FINISHED, 0)}
    parent = os.getpid() if home.mode == "local" else next(iter(home.servers))
    assert zombies_of(parent) == []
    await home.supervisor.acknowledge(names)
    assert (await home.supervisor.inventory(EPOCH)).workers == []


# --- leases -------------------------------------------------------------------------------


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def test_without_a_client_a_worker_is_stopped(home: Home) -> None:
    await home.supervisor.renew()
    await home.launch("w", workers.sleeps(), stop_after_s=0.3)
    await home.launch("kept", workers.sleeps())
    end = await home.end("w")
    assert (end.state, end.signal) == (WorkerState.LOST, signal.SIGTERM)
    assert end.reason == "no client renewed its lease for 0.3 s"
    kept = await home.row("kept")
    assert kept is not None
    assert kept.state is WorkerState.RUNNING


async def test_renewing_keeps_it_alive(home: Home) -> None:
    await home.supervisor.renew()
    await home.launch("w", workers.sleeps(), stop_after_s=0.5)
    loop = asyncio.get_running_loop()
    until = loop.time() + 1.2
    while loop.time() < until:
        await home.supervisor.renew(since_boot() - 0.05)
        await asyncio.sleep(0.05)
    row = await home.row("w")
    assert row is not None
    assert row.state is WorkerState.RUNNING
    assert (await home.end("w")).state is WorkerState.LOST


async def test_a_renewal_counts_from_when_it_was_sent_however_late_it_comes(home: Home) -> None:
    await home.supervisor.renew()
    sent_at = since_boot()
    await home.launch("w", workers.sleeps(), stop_after_s=0.5)
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (row := await home.row("w")) is not None and row.state is WorkerState.RUNNING:
        await home.supervisor.renew(sent_at)  # by somebody who was frozen on the way
        await asyncio.sleep(0.05)
        assert loop.time() < began + 3
    assert (await home.end("w")).state is WorkerState.LOST


async def test_a_renewal_from_the_future_counts_as_one_of_now(home: Home) -> None:
    await home.supervisor.renew(since_boot() + 1_000)
    await home.launch("w", workers.sleeps(), stop_after_s=0.3)
    assert (await home.end("w")).state is WorkerState.LOST


async def test_a_lease_that_is_over_already_is_refused(home: Home) -> None:
    await home.supervisor.renew()
    await asyncio.sleep(0.06)
    # A renewal of old age never shortens a lease, and does not prolong it either.
    await home.supervisor.renew(since_boot() - 100)
    with pytest.raises(SpawnRefused, match="no client renewed") as refused:
        await home.launch("w", workers.sleeps(), stop_after_s=0.05)
    assert refused.value.facts["ran"] is False
    await home.supervisor.renew()
    with pytest.raises(SpawnRefused, match="never starts here"):
        await home.launch("w", workers.sleeps(), stop_after_s=100)
