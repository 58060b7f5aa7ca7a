"""The manual backend: what a person is told, and that nothing is concluded without them."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from events.errors import Invalid, StartFailed, TooLarge
from events.ids import MAX_INLINE_PROGRAM_BYTES
from events.log import MemoryLog
from events.messages import StopWorkersReq
from events.queries import QueryWorkers, WorkersReply
from events.traffic import Stamp, WorkerFinishedReq
from schedulers import ManualScheduler, SchedulerConfig, StartPipelineReq
from schedulers.decide import Rules
from schedulers.launcher import Assignment, LaunchDoubtful, LaunchRefused, Unreachable
from schedulers.manual import (
    NODE,
    Instruction,
    StartInstruction,
    StopInstruction,
    print_instruction,
)
from tests.support.waiting import until

SLOTS = 8
RULES = Rules(worker_command=["run it", "--now"], stop_timeout_s=0.2)


@pytest.fixture
def told() -> list[Instruction]:
    return []


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest_asyncio.fixture
async def scheduler(told: list[Instruction], log: MemoryLog) -> AsyncIterator[ManualScheduler]:
    made = ManualScheduler(told.append, slots_per_worker=4, task_slots=SLOTS, log=log, rules=RULES)
    yield made
    await made.close()


def end_of(said: StartInstruction, exit_code: int = 0) -> WorkerFinishedReq:
    return WorkerFinishedReq(
        node_id=NODE,
        worker_id=said.worker_id,
        job_id=said.job_id,
        run_id=said.run_id,
        slots=said.slots,
        exit_code=exit_code,
    )


async def states(scheduler: ManualScheduler) -> dict[str, str]:
    reply = await scheduler.submit(QueryWorkers(all=True))
    assert isinstance(reply, WorkersReply)
    return {row.worker_id: str(row.state) for row in reply.workers}


def only_start(told: list[Instruction]) -> StartInstruction:
    (said,) = told
    assert isinstance(said, StartInstruction)
    return said


async def test_a_worker_runs_once_its_command_was_handed_over(
    scheduler: ManualScheduler, told: list[Instruction]
) -> None:
    request = StartPipelineReq(
        job_id="j", slots=3, name="it's\na name", program={"text": "a 'b' $HOME"},
        env_vars={"LEVEL": "debug; rm x"},
    )  # fmt: skip
    placed = await scheduler.start_workers(request)
    said = only_start(told)
    assert await states(scheduler) == {placed[0].worker_id: "running"}
    assert (said.worker_id, said.slots) == (placed[0].worker_id, 3)

    words = shlex.split(said.command)
    given = dict(word.split("=", 1) for word in words[1:-2])
    assert (words[0], words[-2:]) == ("env", ["run it", "--now"])
    assert given["SLOTBUS_NAME"] == "it's\na name"
    assert given["SLOTBUS_PROGRAM"] == '{"text":"a \'b\' $HOME"}'
    assert given["LEVEL"] == "debug; rm x"
    assert given["SLOTBUS_NODE_ID"] == NODE
    assert said.command in said.text
    assert f"slotbus ended {said.worker_id}" in said.text


async def test_a_stop_waits_for_the_person_and_says_what_it_does_not_know(
    scheduler: ManualScheduler, told: list[Instruction]
) -> None:
    await scheduler.start_workers(StartPipelineReq(job_id="j", slots=2))
    start = only_start(told)
    reply = await scheduler.submit(StopWorkersReq(job_id="j", grace_s=0.1))
    assert reply.unconfirmed == [start.worker_id]  # type: ignore[union-attr]
    stop = told[1]
    assert isinstance(stop, StopInstruction)
    assert (stop.worker_id, stop.grace_s) == (start.worker_id, 0.1)
    assert "TERM, after 0.1 s KILL" in stop.text
    assert await states(scheduler) == {start.worker_id: "stopping"}
    assert scheduler.ledger.free_slots(NODE) == SLOTS - 2

    await scheduler.worker_finished(end_of(start, exit_code=130))
    assert await states(scheduler) == {start.worker_id: "finished"}
    assert scheduler.ledger.free_slots(NODE) == SLOTS


async def test_a_forced_stop_means_kill(
    scheduler: ManualScheduler, told: list[Instruction]
) -> None:
    await scheduler.start_workers(StartPipelineReq(job_id="j", slots=1))
    await scheduler.submit(StopWorkersReq(job_id="j", force=True))
    stop = told[1]
    assert isinstance(stop, StopInstruction)
    assert stop.grace_s == 0
    assert "(KILL)" in stop.text


async def test_an_end_that_nobody_asked_for_is_taken_as_it_is_told(
    scheduler: ManualScheduler, told: list[Instruction]
) -> None:
    await scheduler.start_workers(StartPipelineReq(job_id="j", slots=2))
    said = only_start(told)
    await scheduler.worker_finished(end_of(said, exit_code=3))
    await scheduler.worker_finished(end_of(said, exit_code=0))
    worker = scheduler.ledger.workers[said.worker_id]
    assert (str(worker.state), worker.exit_code) == ("failed", 3)
    assert scheduler.ledger.jobs["j"].current.state == "failed"


async def test_an_end_on_another_node_changes_nothing(
    scheduler: ManualScheduler, told: list[Instruction]
) -> None:
    await scheduler.start_workers(StartPipelineReq(job_id="j", slots=1))
    said = only_start(told)
    await scheduler.worker_finished(replace(end_of(said), node_id="n1"))
    await scheduler.dispatcher.until_idle(5.0)
    assert await states(scheduler) == {said.worker_id: "running"}
    await scheduler.submit(StopWorkersReq(job_id="j", grace_s=0.0))
    assert isinstance(told[-1], StopInstruction)


async def test_a_command_that_does_not_exist_is_the_persons_to_find_out(
    scheduler: ManualScheduler, told: list[Instruction]
) -> None:
    config = SchedulerConfig(command=["/no/such/program"])
    await scheduler.start_workers(StartPipelineReq(job_id="j", slots=1, scheduler_config=config))
    assert only_start(told).command.endswith(" /no/such/program")


async def test_what_a_person_cannot_be_asked_for_is_refused(
    told: list[Instruction],
) -> None:
    scheduler = ManualScheduler(told.append)
    with pytest.raises(StartFailed, match="no worker command"):
        await scheduler.start_workers(StartPipelineReq(job_id="j", slots=1))
    huge = StartPipelineReq(
        job_id="j",
        slots=1,
        program="x" * MAX_INLINE_PROGRAM_BYTES,
        scheduler_config=SchedulerConfig(command=["true"]),
    )
    with pytest.raises(TooLarge, match="store it elsewhere"):
        await scheduler.start_workers(huge)
    leased = StartPipelineReq(
        job_id="j", slots=1, scheduler_config=SchedulerConfig(command=["true"], stop_after_s=60.0)
    )
    with pytest.raises(Invalid, match="nobody stops a worker by itself"):
        await scheduler.start_workers(leased)
    assert told == []
    await scheduler.close()


async def test_a_restart_concludes_nothing(
    scheduler: ManualScheduler, told: list[Instruction], log: MemoryLog
) -> None:
    await scheduler.start_workers(StartPipelineReq(job_id="j", slots=2))
    said = only_start(told)
    await scheduler.close()

    later: list[Instruction] = []
    second = ManualScheduler(later.append, task_slots=SLOTS, log=log, rules=RULES)
    assert await second.workers_for_job("j") == [said.worker_id]
    assert later == []
    assert second.ledger.free_slots(NODE) == SLOTS - 2
    reply = await second.submit(StopWorkersReq(job_id="j", grace_s=0.1))
    assert reply.unconfirmed == [said.worker_id]  # type: ignore[union-attr]
    assert "if you have started it" in later[0].text
    await second.worker_finished(end_of(said))
    assert second.ledger.free_slots(NODE) == SLOTS
    await second.close()


async def test_what_an_earlier_controller_may_have_asked_for_is_in_doubt(
    scheduler: ManualScheduler,
) -> None:
    await scheduler.start()
    order = Assignment(
        worker_id="w-1",
        job_id="j",
        run_id=1,
        slots=1,
        node_id=NODE,
        incarnation=NODE,
        epoch=scheduler.epoch,
        stamp=Stamp(cluster="local", epoch=scheduler.epoch - 1, position=1),
    )
    launcher = scheduler.backend.launcher
    with pytest.raises(LaunchDoubtful, match="no worker command"):
        await launcher.launch(order, 1.0)
    own = Stamp(cluster="local", epoch=scheduler.epoch, position=1)
    with pytest.raises(LaunchRefused, match="no worker command"):
        await launcher.launch(replace(order, worker_id="w-2", stamp=own), 1.0)


async def test_its_launcher_lists_nothing(scheduler: ManualScheduler) -> None:
    await scheduler.start()
    with pytest.raises(Unreachable, match="nobody can list"):
        await scheduler.backend.launcher.inventory(NODE, NODE, scheduler.epoch, 1.0)


async def test_a_stop_that_overtakes_its_start_can_prove_nothing(
    scheduler: ManualScheduler, told: list[Instruction]
) -> None:
    request = StartPipelineReq(job_id="j", slots=1)
    starting = asyncio.create_task(scheduler.start_workers(request))
    await until(lambda: bool(scheduler.ledger.workers))
    worker_id = next(iter(scheduler.ledger.workers))
    await scheduler.submit(StopWorkersReq(job_id="j", grace_s=0.0))
    with contextlib.suppress(StartFailed):
        await starting
    assert isinstance(told[-1], StopInstruction)
    assert await states(scheduler) == {worker_id: "stopping"}


def test_instructions_are_printed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_instruction(StopInstruction(worker_id="w", grace_s=1.0, text="stop it\nnow"))
    assert capsys.readouterr().out == "stop it\nnow\n"
