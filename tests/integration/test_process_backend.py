"""The process backend on real processes: what survives whom, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from events.errors import Internal, Invalid, NotLeader, StartFailed, TooLarge
from events.facts import Record, RunEnded, WorkerEnded, WorkerLaunched, WorkerStopping
from events.filelog import FileLog
from events.ids import Position
from events.log import EventLog, LogUnreadable, MemoryLog
from events.queries import QueryJobs, QueryWorkers, WorkersReply
from events.traffic import RegisterNodeReq
from schedulers import ProcessScheduler, SchedulerConfig, StartPipelineReq
from schedulers.engine import Engine, EngineSettings
from schedulers.process import LOCAL_NODE, process_backend, process_rules
from schedulers.supervisor.api import StateDirBusy
from schedulers.supervisor.client import SupervisorClient
from schedulers.supervisor.starter import ensure_supervisor
from tests.support.agents import end_supervisor, supervisor_pid
from tests.support.bench import FaultyLog, facts_of
from tests.support.eight_slots import RULES
from tests.support.waiting import DEADLINE_S, until
from tests.support.workers import exits, shell, sleeps

PROGRAM = Path(__file__).parents[1] / "support" / "library_program.py"


def start(job_id: str, slots: int) -> StartPipelineReq:
    return StartPipelineReq(job_id=job_id, slots=slots)


async def run_program(ending: str, state_dir: str, pids: Path) -> asyncio.subprocess.Process:
    root = str(Path(__file__).parents[2])
    return await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-P",
            "-X",
            "dev",
            "-W",
            "error",
            str(PROGRAM),
            ending,
            state_dir,
            str(pids),
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root, "TMPDIR": str(pids.parent)},
    )


def pids_of(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


# --- a program that ends ----------------------------------------------------------------


@pytest.mark.parametrize("ending", ["forgets", "raises"])
async def test_workers_do_not_outlive_a_program_that_forgot_them(
    tmp_path: Path, ending: str
) -> None:
    pids = tmp_path / "pids"
    program = await run_program(ending, "", pids)
    async with asyncio.timeout(DEADLINE_S):
        out, err = await program.communicate()
    assert out == b"started\n"
    assert program.returncode == (1 if ending == "raises" else 0)
    # Nothing but the program's own traceback: no task destroyed, no resource leaked.
    said = err.decode()
    assert not [
        word for word in ("never awaited", "destroyed", "Resource", "retrieved") if word in said
    ]
    assert ("KeyError" in said) == (ending == "raises")
    for pid in pids_of(pids):
        await until(partial(gone, pid))
    assert names_in(tmp_path) == ["pids"]  # its directory is gone too


async def test_workers_of_a_killed_program_are_found_by_the_next(tmp_path: Path) -> None:
    pids, state_dir = tmp_path / "pids", tmp_path / "state"
    state_dir.mkdir()
    program = await run_program("killed", str(state_dir), pids)
    await until(pids.exists)
    program.kill()
    await program.communicate()
    worker, child = pids_of(pids)
    assert not gone(worker)

    log = FileLog(state_dir / "log.jsonl")
    async with ProcessScheduler(state_dir=state_dir, log=log) as scheduler:
        assert len(await scheduler.workers_for_job("j", 1)) == 1
        assert scheduler.ledger.free_slots(LOCAL_NODE) == 1_000 - 2
        stopped = await scheduler.stop_workers("j", force=True)
        assert (len(stopped.workers), stopped.unconfirmed) == (1, [])
        assert gone(worker)
        assert gone(child)
    await log.close()


async def test_closing_in_another_event_loop_kills_what_is_left(tmp_path: Path) -> None:
    made: list[ProcessScheduler] = []

    async def first() -> int | None:
        scheduler = ProcessScheduler(worker_command=sleeps(), state_dir=tmp_path / "state")
        made.append(scheduler)
        await scheduler.start_workers(start("j", 1))
        return next(iter(scheduler.ledger.workers.values())).pid

    async def second() -> None:
        with pytest.raises(NotLeader, match="another event loop"):
            await made[0].start_workers(start("k", 1))
        await made[0].close()

    pid = await asyncio.to_thread(asyncio.run, first())
    assert pid is not None
    assert not gone(pid)
    await asyncio.to_thread(asyncio.run, second())
    assert gone(pid)


async def test_a_close_in_order_tells_the_log(tmp_path: Path) -> None:
    log = MemoryLog()
    scheduler = ProcessScheduler(worker_command=sleeps(), log=log, slots_per_process=1)
    await scheduler.start_workers(start("j", 3))
    await scheduler.start_workers(start("k", 2))
    await scheduler.close()
    await scheduler.close()
    facts = await facts_of(log)
    assert len([f for f in facts if isinstance(f, WorkerStopping)]) == 5
    assert [str(f.state) for f in facts if isinstance(f, WorkerEnded)] == ["finished"] * 5
    assert [str(f.state) for f in facts if isinstance(f, RunEnded)] == ["stopped"] * 2
    assert len(asyncio.all_tasks()) == 1


# --- a start that fails -----------------------------------------------------------------


async def test_a_directory_in_use_is_named_and_can_be_had_later(tmp_path: Path) -> None:
    holder = ProcessScheduler(worker_command=sleeps(), state_dir=tmp_path)
    await holder.start_workers(start("j", 1))
    second = ProcessScheduler(worker_command=sleeps(), state_dir=tmp_path)
    before = len(asyncio.all_tasks())
    async with asyncio.timeout(5):
        with pytest.raises(StateDirBusy, match=str(tmp_path)):
            await second.start_workers(start("k", 1))
    assert len(asyncio.all_tasks()) == before
    await holder.close()
    assert len(await second.start_workers(start("k", 1))) == 1
    await second.close()


async def test_a_directory_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    scheduler = ProcessScheduler(state_dir=tmp_path / "file" / "state")
    async with asyncio.timeout(5):
        with pytest.raises(Internal, match="can't be used"):
            await scheduler.start_workers(start("j", 1))
    assert len(asyncio.all_tasks()) == 1
    await scheduler.close()


async def test_a_log_that_cannot_be_read_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = FaultyLog()
    log.unreadable = LogUnreadable("record 3 can't be read", position=3)
    scheduler = ProcessScheduler(log=log, worker_command=sleeps())
    with pytest.raises(LogUnreadable):
        await scheduler.start_workers(start("j", 1))
    log.unreadable = None
    log.fail_next = OSError("I/O error")
    with pytest.raises(OSError, match="I/O"):
        await scheduler.start_workers(start("j", 1))
    assert names_in(tmp_path) == []
    assert len(asyncio.all_tasks()) == 1
    assert len(await scheduler.start_workers(start("j", 1))) == 1
    await scheduler.close()
    assert names_in(tmp_path) == []


# --- a supervisor process that dies -----------------------------------------------------


class Supervised:
    """Engines over one state directory with a supervisor process."""

    def __init__(self, state_dir: Path, log: EventLog) -> None:
        self.state_dir = state_dir
        self.log = log

    @contextlib.asynccontextmanager
    async def engine(self, slots_per_process: int = 1) -> AsyncIterator[Engine]:
        backend = process_backend(
            partial(ensure_supervisor, self.state_dir, LOCAL_NODE), machine_id="test"
        )
        rules = process_rules(RULES, slots_per_process)
        engine = Engine(backend, self.log, EngineSettings(cluster="test", rules=rules))
        try:
            yield engine
        finally:
            await engine.close()
            await backend.launcher.close()


@pytest.fixture
async def supervised(tmp_path: Path) -> AsyncIterator[Supervised]:
    yield Supervised(tmp_path / "state", MemoryLog())
    await end_supervisor(tmp_path / "state")


async def pids(engine: Engine, job_id: str) -> set[int]:
    reply = await engine.submit(QueryWorkers(job_id=job_id))
    assert isinstance(reply, WorkersReply)
    return {row.pid for row in reply.workers if row.pid is not None}


async def test_a_killed_supervisor_is_replaced_in_the_midst_of_a_start(
    supervised: Supervised,
) -> None:
    async with supervised.engine() as engine:
        await engine.start_workers(start("before", 3))
        kept = await pids(engine, "before")
        to_kill = [await supervisor_pid(supervised.state_dir)]

        def kill(_: Position, record: Record) -> None:
            """At the first launch that is known of; the others are on their way."""
            if to_kill and any(isinstance(fact, WorkerLaunched) for fact in record.events):
                os.kill(to_kill.pop(), signal.SIGKILL)

        engine.observe(kill)
        async with asyncio.timeout(DEADLINE_S):
            try:
                await engine.start_workers(start("during", 60))
            except StartFailed:
                # Killed between its note that it spawns one and the spawn: nobody can tell
                # whether that worker ran, so all are stopped, and the next start is clean.
                assert await engine.workers_for_job("during") == []
                await engine.start_workers(start("during", 60))
        assert await pids(engine, "before") == kept
        assert not any(gone(pid) for pid in kept)
        client = await ensure_supervisor(supervised.state_dir, LOCAL_NODE)
        try:
            rows = (await client.inventory(0)).workers
        finally:
            await client.close()
        live = await engine.workers_for_job("during")
        assert {row.worker_id for row in rows} >= set(live)
        assert len(live) == 60

        stopped = [await engine.stop_workers(job) for job in ("before", "during")]
        assert [(len(s.workers), s.unconfirmed) for s in stopped] == [(3, []), (60, [])]
        assert all(gone(pid) for pid in kept)


async def test_the_next_controller_finds_the_same_workers_and_true_exit_codes(
    supervised: Supervised, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with supervised.engine() as first:
        await first.start_workers(start("stays", 2))
        kept = await pids(first, "stays")
        ends = SchedulerConfig(command=shell(f"while [ ! -e {go} ]; do sleep 0.02; done; exit 5"))
        await first.start_workers(StartPipelineReq(job_id="ends", slots=1, scheduler_config=ends))
    go.touch()
    client = await SupervisorClient.connect(supervised.state_dir)
    try:
        async for row in client.reports():  # it ends while nobody leads
            assert row.exit_code == 5
            break
    finally:
        await client.close()

    async with supervised.engine() as second:
        assert len(await second.workers_for_job("stays")) == 2
        assert await pids(second, "stays") == kept
        await until(lambda: second.ledger.jobs["ends"].current.ended)
        reply = await second.submit(QueryWorkers(job_id="ends", all=True))
        assert isinstance(reply, WorkersReply)
        assert [(str(w.state), w.exit_code) for w in reply.workers] == [("failed", 5)]
        assert await second.workers_for_job("ends") == []


# --- limits -----------------------------------------------------------------------------


async def test_a_thousand_workers_are_a_run_and_one_more_is_not() -> None:
    async with ProcessScheduler(
        slots_per_process=1, task_slots=2_000, worker_command=exits(0)
    ) as scheduler:
        with pytest.raises(TooLarge) as refused:
            await scheduler.start_workers(start("j", 1_001))
        assert refused.value.facts["limit"] == 1_000
        assert scheduler.ledger.workers == {}

        placed = await scheduler.start_workers(start("j", 1_000))
        assert len(placed) == 1_000
        await until(lambda: scheduler.ledger.jobs["j"].current.ended)
        jobs = await scheduler.submit(QueryJobs())
        assert [str(row.state) for row in jobs.jobs] == ["finished"]  # type: ignore[union-attr]
        assert scheduler.ledger.free_slots(LOCAL_NODE) == 2_000
        assert len(await scheduler.workers_for_job("j")) == 0


async def test_other_nodes_are_none_of_its_business() -> None:
    async with ProcessScheduler(worker_command=sleeps(), task_slots=4) as scheduler:
        stranger = RegisterNodeReq(node_id="n1", task_slots=100, incarnation="i-1")
        await scheduler.register_node(stranger)
        with pytest.raises(Invalid, match="takes no nodes"):
            await scheduler.submit(stranger)  # as from the wire
        assert list(scheduler.ledger.nodes) == [LOCAL_NODE]
        assert len(await scheduler.start_workers(start("j", 4))) == 1
