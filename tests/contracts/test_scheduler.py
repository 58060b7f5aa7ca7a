"""The contract of every scheduler: the six methods, on real processes.

A backend that can't do what a test ``needs`` is not asked; who lacks what, and why, is said
in ``tests.support.powers``.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from controller.embedded import EmbeddedServer
from events.errors import Invalid, RunActive, StaleRun, StartFailed, UnknownJob
from events.messages import StopWorkersReq
from events.queries import QueryJobs, QueryWorkers, WorkerRow, WorkersReply
from events.subjects import Subjects
from schedulers import NotEnoughSlots, SchedulerConfig, SchedulerError, StartPipelineReq
from schedulers.engine import Engine
from schedulers.node.config import AgentConfig
from tests.support.eight_slots import FACTORIES, SLOTS, SLOTS_A_WORKER, Surroundings
from tests.support.powers import Power, able, needs
from tests.support.waiting import until
from tests.support.workers import exits, python, shell


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("scheduler", able(FACTORIES, metafunc.function), indirect=True)


@pytest_asyncio.fixture
async def scheduler(
    request: pytest.FixtureRequest,
    nats_server: EmbeddedServer,
    subjects: Subjects,
    agent_config: AgentConfig,
    tmp_path: Path,
) -> AsyncIterator[Engine]:
    around = Surroundings(nats_server.url, subjects, agent_config, tmp_path)
    async with FACTORIES[request.param](around) as made:
        yield made


async def rows(scheduler: Engine, job_id: str) -> list[WorkerRow]:
    """All workers of a job, those that have ended too."""
    reply = await scheduler.submit(QueryWorkers(job_id=job_id, all=True))
    assert isinstance(reply, WorkersReply)
    return reply.workers


def free(scheduler: Engine) -> int:
    return sum(scheduler.ledger.free_slots(node_id) for node_id in scheduler.ledger.nodes)


def running(job_id: str, slots: int, *command: str, **fields: object) -> StartPipelineReq:
    config = SchedulerConfig(command=list(command) or None)
    return StartPipelineReq(job_id=job_id, slots=slots, scheduler_config=config, **fields)  # type: ignore[arg-type]


async def test_the_usage_that_the_interface_was_made_for(scheduler: Engine) -> None:
    req = StartPipelineReq(
        name="word count",
        program={"source": "words"},
        wasm_path="file:///wc.wasm",
        job_id="job_1",
        hash="abc",
        run_id=1,
        slots=6,
        env_vars={"LOG_LEVEL": "info"},
    )
    placed = await scheduler.start_workers(req)
    workers = await scheduler.workers_for_job("job_1", 1)
    assert sorted(w.worker_id for w in placed) == sorted(workers)
    assert [w.slots for w in placed] == [4, 2]
    pids = [row.pid for row in await rows(scheduler, "job_1")]
    assert all(psutil.pid_exists(pid) for pid in pids if pid)

    stopped = await scheduler.stop_workers("job_1", 1, False)
    assert (sorted(stopped.workers), stopped.unconfirmed) == (sorted(workers), [])
    assert await scheduler.workers_for_job("job_1", 1) == []
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)
    assert free(scheduler) == SLOTS


async def test_a_start_takes_all_it_asked_for_or_nothing(scheduler: Engine) -> None:
    with pytest.raises(NotEnoughSlots) as refused:
        await scheduler.start_workers(running("j", SLOTS + 3))
    assert (refused.value.slots_needed, refused.value.slots_free) == (3, SLOTS)
    assert await rows(scheduler, "j") == []
    assert isinstance(refused.value, SchedulerError)

    placed = await scheduler.start_workers(running("j", SLOTS))
    assert sum(w.slots for w in placed) == SLOTS
    assert max(w.slots for w in placed) <= SLOTS_A_WORKER
    with pytest.raises(NotEnoughSlots) as refused:
        await scheduler.start_workers(running("k", 1))
    assert refused.value.slots_needed == 1


async def test_starts_side_by_side_never_share_a_slot(scheduler: Engine) -> None:
    outcomes = await asyncio.gather(
        *(scheduler.start_workers(running(f"j{i}", 3)) for i in range(4)), return_exceptions=True
    )
    good = [outcome for outcome in outcomes if isinstance(outcome, list)]
    assert len(good) == 2
    assert all(isinstance(o, NotEnoughSlots) for o in outcomes if not isinstance(o, list))
    assert free(scheduler) == SLOTS - 6


async def test_runs_only_grow(scheduler: Engine) -> None:
    await scheduler.start_workers(running("j", 1, run_id=5))
    with pytest.raises(RunActive):
        await scheduler.start_workers(running("j", 1))
    await scheduler.stop_workers("j")
    for stale in (5, 4):
        with pytest.raises(StaleRun):
            await scheduler.start_workers(running("j", 1, run_id=stale))
    await scheduler.start_workers(running("j", 1))
    assert {row.run_id for row in await rows(scheduler, "j") if row.exit_code is None} >= {6}
    assert len(await scheduler.workers_for_job("j", 6)) == 1


async def test_a_command_id_starts_once(scheduler: Engine) -> None:
    first, again = await asyncio.gather(
        *(scheduler.start_workers(running("j", 2, command_id="c-1")) for _ in range(2))
    )
    assert first == again
    assert len(await scheduler.workers_for_job("j")) == 1
    with pytest.raises(Invalid, match="another command"):
        await scheduler.start_workers(running("j", 3, command_id="c-1"))


async def test_a_worker_sees_what_it_was_given(scheduler: Engine, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = (
        "import json, os, sys, time\n"
        "open(sys.argv[1] + '.new', 'w').write(json.dumps(dict(os.environ)))\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(600)\n"
    )
    program = {"steps": [1, 2.5, None], "text": 'ä\n"q"'}
    request = running(
        "j", 3, *python(script, str(told)), name="A name", program=program, hash="h", wasm_path="w",
        env_vars={"LEVEL": "debug"},
    )  # fmt: skip
    placed = await scheduler.start_workers(request)
    await until(told.exists)

    seen = json.loads(told.read_text())
    assert json.loads(seen.pop("SLOTBUS_PROGRAM")) == program
    assert seen["LEVEL"] == "debug"
    wanted = {
        "SLOTBUS_JOB_ID": "j",
        "SLOTBUS_RUN_ID": "1",
        "SLOTBUS_SLOTS": "3",
        "SLOTBUS_NAME": "A name",
        "SLOTBUS_HASH": "h",
        "SLOTBUS_WASM_PATH": "w",
        "SLOTBUS_WORKER_ID": placed[0].worker_id,
        "SLOTBUS_NODE_ID": placed[0].node_id,
    }
    assert {name: seen.get(name) for name in wanted} == wanted


@needs(Power.REFUSES)
async def test_a_command_that_does_not_exist_fails_the_start(scheduler: Engine) -> None:
    with pytest.raises(StartFailed, match="no-such-program") as failed:
        await scheduler.start_workers(running("j", 6, "/no-such-program"))
    reasons = failed.value.facts["reasons"]
    assert isinstance(reasons, dict)
    assert all("no-such-program" in why for why in reasons.values())
    assert await scheduler.workers_for_job("j") == []
    assert free(scheduler) == SLOTS


async def test_a_worker_that_ends_by_itself_is_known_with_its_exit_code(
    scheduler: Engine,
) -> None:
    await scheduler.start_workers(running("good", 2, *exits(0)))
    await scheduler.start_workers(running("bad", 2, *exits(3)))
    ledger = scheduler.ledger
    await until(lambda: all(job.current.ended for job in ledger.jobs.values()))

    good, bad = (await rows(scheduler, "good"))[0], (await rows(scheduler, "bad"))[0]
    assert (str(good.state), good.exit_code) == ("finished", 0)
    assert (str(bad.state), bad.exit_code) == ("failed", 3)
    jobs = await scheduler.submit(QueryJobs())
    states = {row.job_id: str(row.state) for row in jobs.jobs}  # type: ignore[union-attr]
    assert states == {"good": "finished", "bad": "failed"}
    assert free(scheduler) == SLOTS


async def deaf(scheduler: Engine, tmp_path: Path) -> int:
    """Starts a worker that is deaf to TERM by now; its pid."""
    ready = tmp_path / "ready"
    script = f"trap '' TERM; echo $$ > {ready}.new; mv {ready}.new {ready}; "
    script += "while :; do sleep 600; done"
    await scheduler.start_workers(running("deaf", 1, *shell(script)))
    await until(ready.exists)
    pid = int(ready.read_text())
    assert (await rows(scheduler, "deaf"))[0].pid in (pid, None)  # not all backends have pids
    return pid


async def test_a_worker_that_ignores_term_is_killed_after_its_grace(
    scheduler: Engine, tmp_path: Path
) -> None:
    pid = await deaf(scheduler, tmp_path)
    await scheduler.submit(StopWorkersReq(job_id="deaf", grace_s=0.3))
    assert not psutil.pid_exists(pid)
    row = (await rows(scheduler, "deaf"))[0]
    # A kubelet tells a signal as a shell does.
    assert (str(row.state), row.signal or row.exit_code) in (("finished", 9), ("finished", 137))


async def test_force_kills_at_once(scheduler: Engine, tmp_path: Path) -> None:
    pid = await deaf(scheduler, tmp_path)
    async with asyncio.timeout(5):
        await scheduler.stop_workers("deaf", force=True)
    assert not psutil.pid_exists(pid)


async def test_a_stop_may_mean_one_run_or_all(scheduler: Engine) -> None:
    await scheduler.start_workers(running("j", 2))
    await scheduler.start_workers(running("k", 2))
    assert (await scheduler.stop_workers("j", 7)).workers == []
    assert len(await scheduler.workers_for_job("j")) == 1

    assert len((await scheduler.stop_workers("j", 1)).workers) == 1
    assert (await scheduler.stop_workers("j")).workers == []
    assert len(await scheduler.workers_for_job("k")) == 1


async def test_an_unknown_job_is_named_and_has_no_workers(scheduler: Engine) -> None:
    with pytest.raises(UnknownJob, match="nobody"):
        await scheduler.stop_workers("nobody")
    assert await scheduler.workers_for_job("nobody") == []


WRONG = [
    (StartPipelineReq(job_id="j", slots=0), r"\$\.slots"),
    (StartPipelineReq(job_id="a b", slots=1), r"\$\.job_id"),
    (StartPipelineReq(job_id="j", slots=1, run_id=0), r"\$\.run_id"),
    (StartPipelineReq(job_id="j", slots=1, env_vars={"SLOTBUS_X": "1"}), "SLOTBUS_X"),
    (StartPipelineReq(job_id="j", slots=1, program=object()), r"\$"),
    (running("j", 1, ""), "command"),
]


async def test_what_is_wrong_in_itself_is_refused_like_on_the_wire(scheduler: Engine) -> None:
    for request, path in WRONG:
        with pytest.raises(Invalid) as refused:
            await scheduler.start_workers(request)
        assert re.search(path, refused.value.path)
    assert scheduler.ledger.commands == {}
    assert await scheduler.workers_for_job("j") == []


async def test_after_close_there_is_a_clear_error(scheduler: Engine) -> None:
    await scheduler.start_workers(running("j", 1))
    await scheduler.close()
    with pytest.raises(SchedulerError, match="closed"):
        await scheduler.workers_for_job("j")
    with pytest.raises(SchedulerError, match="closed"):
        await scheduler.start_workers(running("k", 1))
