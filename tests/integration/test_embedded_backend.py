"""The embedded backend where it differs from processes: what a worker gets, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.errors import StartFailed
from events.messages import PlacedWorker
from events.queries import QueryWorkers, WorkerRow, WorkersReply
from events.subjects import Subjects
from schedulers import EmbeddedScheduler, SchedulerConfig, StartPipelineReq, WorkerContext
from schedulers.embedded import Worker
from tests.support.controllers import Caller, config_for, controller
from tests.support.entries import Deaf, obedient
from tests.support.waiting import until

ENTRIES = "tests.support.entries"


class Workers:
    """What the tests' workers were given and did."""

    def __init__(self) -> None:
        self.contexts: list[WorkerContext] = []
        self.deaf = Deaf()

    async def shown(self, context: WorkerContext) -> None:
        self.contexts.append(context)
        await context.stop.wait()

    async def codes(self, context: WorkerContext) -> int:
        return int(context.arguments[0])

    async def exits(self, context: WorkerContext) -> None:
        raise SystemExit(int(context.arguments[0]))

    async def fails(self, context: WorkerContext) -> None:
        raise ValueError("no such source")

    async def gives_up(self, context: WorkerContext) -> None:
        raise asyncio.CancelledError

    async def talks(self, context: WorkerContext) -> int:
        return "done"  # type: ignore[return-value]

    def by_name(self) -> dict[str, Worker]:
        named: list[Worker] = [
            self.shown, self.codes, self.exits, self.fails, self.gives_up, self.talks,
        ]  # fmt: skip
        return {**{worker.__name__: worker for worker in named}, "deaf": self.deaf}


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest_asyncio.fixture
async def scheduler(workers: Workers) -> AsyncIterator[EmbeddedScheduler]:
    made = EmbeddedScheduler(workers.by_name(), worker_command=["shown"], task_slots=8)
    yield made
    await made.close()


async def start(scheduler: EmbeddedScheduler, job_id: str, *command: str) -> list[PlacedWorker]:
    config = SchedulerConfig(command=list(command) or None)
    return await scheduler.start_workers(
        StartPipelineReq(job_id=job_id, slots=2, scheduler_config=config)
    )


async def row_of(scheduler: EmbeddedScheduler, job_id: str) -> WorkerRow:
    reply = await scheduler.submit(QueryWorkers(job_id=job_id, all=True))
    assert isinstance(reply, WorkersReply)
    return reply.workers[0]


async def ended(scheduler: EmbeddedScheduler, job_id: str) -> WorkerRow:
    """The row of a job's worker once its run is over."""
    await until(lambda: scheduler.ledger.jobs[job_id].current.ended)
    return await row_of(scheduler, job_id)


async def test_a_worker_is_given_what_it_needs_as_values(
    scheduler: EmbeddedScheduler, workers: Workers
) -> None:
    request = StartPipelineReq(
        name="A name",
        job_id="j",
        slots=3,
        program={"window_s": 10},
        env_vars={"LEVEL": "debug"},
        hash="h",
        wasm_path="w",
        scheduler_config=SchedulerConfig(command=["shown", "--fast"]),
    )
    placed = await scheduler.start_workers(request)
    await until(lambda: bool(workers.contexts))

    given = workers.contexts[0]
    assert (given.job_id, given.run_id, given.slots) == ("j", 1, 3)
    assert (given.worker_id, given.node_id) == (placed[0].worker_id, placed[0].node_id)
    assert (given.name, given.hash, given.wasm_path) == ("A name", "h", "w")
    assert given.program == {"window_s": 10}
    assert given.arguments == ["--fast"]
    assert given.env["LEVEL"] == "debug"
    assert given.env["SLOTBUS_PROGRAM"] == '{"window_s":10}'
    assert "PATH" not in given.env
    assert not given.stop.is_set()


async def test_a_worker_that_ends_when_asked_has_finished(scheduler: EmbeddedScheduler) -> None:
    placed = await start(scheduler, "j")
    assert (await scheduler.stop_workers("j")).workers == [placed[0].worker_id]
    row = await row_of(scheduler, "j")
    assert (str(row.state), row.exit_code, row.signal, row.pid) == ("finished", 0, None, None)


ENDS = [
    (["codes", "0"], "finished", 0, "exit 0"),
    (["codes", "7"], "failed", 7, "exit 7"),
    (["exits", "3"], "failed", 3, "exit 3"),
    (["fails"], "failed", 1, "ValueError: no such source"),
    (["gives_up"], "failed", 1, "it cancelled itself"),
    (["talks"], "failed", 1, "TypeError: a worker returns its exit code or None, not 'done'"),
]


@pytest.mark.parametrize(("command", "state", "code", "reason"), ENDS)
async def test_how_a_worker_ended_is_told(
    scheduler: EmbeddedScheduler, command: list[str], state: str, code: int, reason: str
) -> None:
    await start(scheduler, "j", *command)
    row = await ended(scheduler, "j")
    assert (str(row.state), row.exit_code, row.signal, row.reason) == (state, code, None, reason)


async def test_one_that_swallows_its_cancellation_is_cancelled_again(
    scheduler: EmbeddedScheduler, workers: Workers
) -> None:
    await start(scheduler, "j", "deaf")
    await workers.deaf.ready.wait()
    reply = await scheduler.stop_workers("j", force=True)
    assert (len(reply.workers), reply.unconfirmed) == (1, [])
    row = await row_of(scheduler, "j")
    assert (str(row.state), row.signal) == ("finished", 9)
    assert workers.deaf.cancelled == 2


async def test_a_force_that_comes_before_its_first_step_is_told_too(
    scheduler: EmbeddedScheduler,
) -> None:
    request = StartPipelineReq(job_id="j", slots=1)
    starting = asyncio.create_task(scheduler.start_workers(request))
    await until(lambda: "j" in scheduler.ledger.jobs)
    await scheduler.stop_workers("j", force=True)
    await asyncio.gather(starting, return_exceptions=True)
    assert scheduler.ledger.free_slots("embedded") == 8


@pytest.mark.parametrize("entry", [f"{ENTRIES}:obedient", f"{ENTRIES}:Namespace.obedient"])
async def test_an_entry_point_is_imported(scheduler: EmbeddedScheduler, entry: str) -> None:
    await start(scheduler, "j", entry)
    assert len(await scheduler.workers_for_job("j")) == 1


REFUSED = [
    ("nobody", "known workers are"),
    ("no.such.module:worker", "No module named"),
    (f"{ENTRIES}:absent", "has no attribute 'absent'"),
    (f"{ENTRIES}:blocking", "no async function"),
    ("tests.support.unimportable:worker", "not today"),
]


@pytest.mark.parametrize(("entry", "why"), REFUSED)
async def test_what_cannot_run_fails_the_start_with_its_reason(
    scheduler: EmbeddedScheduler, entry: str, why: str
) -> None:
    with pytest.raises(StartFailed) as failed:
        await start(scheduler, "j", entry)
    assert why in failed.value.message
    assert entry.split(":")[0] in failed.value.message
    assert scheduler.ledger.free_slots("embedded") == 8


async def test_importing_can_be_forbidden() -> None:
    scheduler = EmbeddedScheduler({"good": obedient}, importable=False)
    with pytest.raises(StartFailed, match="known workers are good$"):
        await start(scheduler, "j", f"{ENTRIES}:obedient")
    await scheduler.close()


async def test_close_lets_workers_end_in_order(
    scheduler: EmbeddedScheduler, workers: Workers
) -> None:
    await start(scheduler, "j")
    await until(lambda: bool(workers.contexts))
    await scheduler.close()
    assert workers.contexts[0].stop.is_set()
    ends = [(w.state, w.exit_code) for w in scheduler.ledger.workers.values()]
    assert ends == [("finished", 0)]


def test_the_end_of_the_event_loop_is_the_end_of_its_workers() -> None:
    async def main() -> EmbeddedScheduler:
        scheduler = EmbeddedScheduler({"good": obedient}, worker_command=["good"])
        await start(scheduler, "j")
        return scheduler

    scheduler = asyncio.run(main())
    asyncio.run(scheduler.close())


async def test_a_controller_runs_importable_workers_and_stops_them_with_its_lead(
    nats_server: EmbeddedServer, subjects: Subjects, nc: Client, tmp_path: Path
) -> None:
    config = config_for(
        nats_server.url, subjects, tmp_path, scheduler="embedded", slots_per_process=4,
        worker_command=[f"{ENTRIES}:obedient"],
    )  # fmt: skip
    caller = Caller(nc, subjects)
    async with controller(config) as first:
        await first.leading()
        reply = await caller.cmd("start", job_id="j", slots=6)
        assert [(w["node_id"], w["slots"]) for w in reply["workers"]] == [
            ("embedded", 4),
            ("embedded", 2),
        ]
    left = [t for t in asyncio.all_tasks() if t.get_name().startswith("worker ")]
    assert left == []

    async with controller(config) as second:
        await second.leading()
        lost = await caller.workers(all=True)
        assert {(row["state"], row["reason"]) for row in lost} == {
            ("lost", "its node no longer has it")
        }
        again = await caller.cmd("start", job_id="j", slots=1)
        assert again["run_id"] == 2
        assert (await caller.cmd("stop", job_id="j"))["unconfirmed"] == []
