"""The contract of every launcher, run on each (``tests.support.launchers``).

A backend that can't do what a test ``needs`` is not asked; who lacks what, and why, is said
in ``tests.support.powers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client

from events.states import WorkerState
from events.subjects import Subjects
from events.traffic import InventoryRow, WorkerFinishedReq
from schedulers.launcher import Assignment, Fenced, LaunchRefused
from schedulers.node.config import AgentConfig
from tests.support.agents import NodeLeader
from tests.support.launchers import LIVE, RIGS, TIMEOUT_S, Ending, Fixtures, Rig
from tests.support.powers import Power, able, needs
from tests.support.waiting import DEADLINE_S, until


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("rig", able(RIGS, metafunc.function), indirect=True)


@pytest_asyncio.fixture
async def rig(
    request: pytest.FixtureRequest,
    nc: Client,
    subjects: Subjects,
    agent_config: AgentConfig,
    node_leader: NodeLeader,
    tmp_path: Path,
) -> AsyncIterator[Rig]:
    factory = RIGS[request.param]
    async with factory(Fixtures(nc, subjects, agent_config, node_leader, tmp_path)) as made:
        yield made


@needs(Power.LISTS)
async def test_a_launched_worker_runs_and_is_listed_as_it_was_ordered(rig: Rig) -> None:
    assignment = rig.assignment("sleep", "60", slots=3, job_id="wordcount", run_id=7)
    ack = await rig.launch(assignment)

    assert (ack.pid is not None) == rig.pids
    assert rig.alive(assignment.worker_id, ack.pid)
    row = (await rig.rows())[assignment.worker_id]
    assert row == InventoryRow(
        worker_id=assignment.worker_id,
        job_id="wordcount",
        run_id=7,
        slots=3,
        state=WorkerState.RUNNING,
        pid=ack.pid,
        stamp=assignment.stamp,
    )


@needs(Power.LISTS)
async def test_launching_again_changes_nothing(rig: Rig) -> None:
    assignment = rig.assignment("sleep", "60")
    first = await rig.launch(assignment)
    again = await rig.launch(assignment)
    assert again.pid == first.pid
    assert len(await rig.rows()) == 1


@needs(Power.LISTS)
async def test_many_are_launched_side_by_side(rig: Rig) -> None:
    assignments = [rig.assignment("sleep", "60") for _ in range(8)]
    acks = await asyncio.gather(*(rig.launch(one) for one in assignments))
    rows = await rig.rows()
    assert [rows[a.worker_id].pid for a in assignments] == [ack.pid for ack in acks]
    assert len({ack.pid for ack in acks}) == (8 if rig.pids else 1)


@needs(Power.LISTS)
async def test_an_inventory_after_a_launch_has_a_higher_seq(rig: Rig) -> None:
    ack = await rig.launch(rig.assignment("sleep", "60"))
    first = await rig.launcher.inventory(rig.node_id, rig.incarnation, rig.epoch, TIMEOUT_S)
    second = await rig.launcher.inventory(rig.node_id, rig.incarnation, rig.epoch, TIMEOUT_S)
    assert ack.seq < first.seq < second.seq


async def test_a_worker_sees_what_it_was_given(rig: Rig) -> None:
    script = (
        "import os, sys; e = os.environ; "
        "sys.exit(0 if [e['SLOTBUS_JOB_ID'], e['SLOTBUS_RUN_ID'], e['SLOTBUS_SLOTS'], "
        "e['SLOTBUS_PROGRAM'], e['LEVEL']] == ['j', '1', '2', '{\"a\":1}', 'debug'] else 9)"
    )
    assignment = rig.assignment(
        *(sys.executable, "-c", script),
        slots=2,
        env_vars={"LEVEL": "debug"},
        program=msgspec.Raw(b'{"a":1}'),
    )
    await rig.launch(assignment)
    assert (await rig.end_of(assignment.worker_id)).exit_code == 0


@needs(Power.REFUSES)
async def test_what_cannot_be_executed_is_refused_for_good(rig: Rig) -> None:
    assignment = rig.assignment("/no/such/program")
    with pytest.raises(LaunchRefused, match="no/such/program"):
        await rig.launch(assignment)
    with pytest.raises(LaunchRefused):
        await rig.launch(msgspec.structs.replace(assignment, command=["sleep", "60"]))
    assert not [row for row in (await rig.rows()).values() if row.state in LIVE]


async def test_exit_codes_are_true(rig: Rig) -> None:
    good, bad = rig.assignment("true"), rig.assignment("sh", "-c", "exit 3")
    await asyncio.gather(rig.launch(good), rig.launch(bad))
    ends = [await rig.end_of(good.worker_id), await rig.end_of(bad.worker_id)]
    assert [end.exit_code for end in ends] == [0, 3]
    assert [end.state for end in ends] == [WorkerState.FINISHED, WorkerState.FAILED]


async def test_a_stopped_worker_ends(rig: Rig) -> None:
    assignment = rig.assignment("sleep", "60")
    ack = await rig.launch(assignment)
    assert (await rig.signal(assignment.worker_id)).state == "stopping"
    end = await rig.end_of(assignment.worker_id)
    assert how(end) == rig.terminated
    assert not rig.alive(assignment.worker_id, ack.pid)


def how(end: WorkerFinishedReq) -> Ending:
    return Ending(exit_code=end.exit_code, signal=end.signal)


async def deaf_worker(rig: Rig, tmp_path: Path) -> Assignment:
    """A worker that runs, and is deaf to TERM by now."""
    ready = tmp_path / "ready"
    script = "trap '' TERM; : > \"$READY\"; while true; do sleep 1; done"
    assignment = rig.assignment("sh", "-c", script, env_vars={"READY": str(ready)})
    await rig.launch(assignment)
    await until(ready.exists)
    return assignment


async def test_the_grace_ends_with_a_kill(rig: Rig, tmp_path: Path) -> None:
    assignment = await deaf_worker(rig, tmp_path)
    assert (await rig.signal(assignment.worker_id, grace_s=0.3)).state == "stopping"
    assert how(await rig.end_of(assignment.worker_id)) == rig.killed


async def test_force_kills_also_a_worker_that_is_being_stopped(rig: Rig, tmp_path: Path) -> None:
    assignment = await deaf_worker(rig, tmp_path)
    await rig.signal(assignment.worker_id, grace_s=3_600.0)
    await rig.signal(assignment.worker_id, force=True)
    assert how(await rig.end_of(assignment.worker_id)) == rig.killed


@needs(Power.NEVER_SEEN)
async def test_a_stop_that_overtakes_its_start_wins(rig: Rig) -> None:
    assignment = rig.assignment("sleep", "60")
    assert (await rig.signal(assignment.worker_id)).state == "unknown"
    with pytest.raises(LaunchRefused) as refused:
        await rig.launch(assignment)
    assert not refused.value.facts.get("ran")
    assert assignment.worker_id not in await rig.rows()


async def test_an_ended_worker_is_not_started_again(rig: Rig) -> None:
    assignment = rig.assignment("true")
    await rig.launch(assignment)
    await rig.end_of(assignment.worker_id)
    with pytest.raises(LaunchRefused) as refused:
        await rig.launch(assignment)
    assert refused.value.facts["ran"] is True
    assert (await rig.signal(assignment.worker_id)).state == "ended"


@needs(Power.LISTS)
async def test_an_acknowledged_end_is_listed_no_more(rig: Rig) -> None:
    assignment = rig.assignment("true")
    await rig.launch(assignment)
    await rig.end_of(assignment.worker_id)
    await rig.launcher.acknowledge(rig.node_id, assignment.worker_id)
    async with asyncio.timeout(DEADLINE_S):
        while assignment.worker_id in await rig.rows():  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)


@needs(Power.LISTS)
async def test_nothing_of_a_lower_epoch_is_done(rig: Rig) -> None:
    assignment = rig.assignment("sleep", "60")
    await rig.launch(assignment)
    rig.epoch += 1
    await rig.rows()

    old = rig.epoch - 1
    with pytest.raises(Fenced) as refused:
        await rig.launch(rig.assignment("sleep", "60", epoch=old))
    assert refused.value.facts["epoch_seen"] == rig.epoch
    with pytest.raises(Fenced):
        await rig.signal(assignment.worker_id, force=True, epoch=old)
    with pytest.raises(Fenced):
        await rig.launcher.inventory(rig.node_id, rig.incarnation, old, TIMEOUT_S)
    rows = await rig.rows()
    assert [rows[assignment.worker_id].state] == [WorkerState.RUNNING]
    assert len(rows) == 1


@needs(Power.LISTS)
async def test_nothing_for_another_incarnation_is_done(rig: Rig) -> None:
    assignment = rig.assignment("sleep", "60")
    await rig.launch(assignment)
    with pytest.raises(Fenced):
        await rig.launch(rig.assignment("sleep", "60", incarnation="0-former"))
    with pytest.raises(Fenced):
        await rig.signal(assignment.worker_id, force=True, incarnation="0-former")
    with pytest.raises(Fenced):
        await rig.launcher.inventory(rig.node_id, "0-former", rig.epoch, TIMEOUT_S)
    assert [row.state for row in (await rig.rows()).values()] == [WorkerState.RUNNING]


async def test_reports_end_when_the_launcher_is_closed(rig: Rig) -> None:
    async def listen() -> None:
        async for _ in rig.launcher.reports():
            await asyncio.sleep(0)

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await rig.launcher.close()
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(DEADLINE_S):
            await listening
    assert listening.done()
    assert not listening.cancelled()
