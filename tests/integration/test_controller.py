"""A whole controller with its own workers: start, stop, death, succession."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from controller.config import ControllerConfig
from controller.embedded import EmbeddedServer
from controller.http import HttpFailed
from events.connection import ConnectionFailed
from events.errors import NotEnoughSlots, StaleRun
from events.facts import LeaderStarted, Record
from events.ids import Position
from events.jetstream import JetStreamLog
from events.jetstream_messages import POSITION_HEADER
from events.log import LogUnreadable
from events.subjects import Subjects
from tests.support.agents import end_supervisor
from tests.support.controllers import (
    Caller,
    config_for,
    controller,
    controller_process,
    page,
    samples,
    until_page,
)
from tests.support.nats import connected
from tests.support.records import read_all
from tests.support.waiting import DEADLINE_S, until


@pytest.fixture
async def config(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[ControllerConfig]:
    state_dir = tmp_path / "state"
    yield config_for(nats_server.url, subjects, state_dir, task_slots=40)
    await end_supervisor(state_dir)


@pytest.fixture
def caller(nc: Client, subjects: Subjects) -> Caller:
    return Caller(nc, subjects)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_job_starts_is_seen_and_stops(config: ControllerConfig, caller: Caller) -> None:
    async with controller(config) as made:
        info = await made.leading()
        started = await caller.cmd("start", job_id="wordcount", slots=20)
        assert sorted(worker["slots"] for worker in started["workers"]) == [4, 16]
        assert started["run_id"] == 1
        rows = await caller.workers(job_id="wordcount")
        assert {row["state"] for row in rows} == {"running"}
        assert all(alive(row["pid"]) for row in rows)
        series = samples(await page(info, "/metrics"))
        assert series["slotbus_leader"] == 1
        assert series["slotbus_epoch"] == info.epoch
        assert series["slotbus_registered_slots"] == 40
        assert series["slotbus_free_slots"] == 20
        assert series['slotbus_workers{state="running"}'] == 2
        assert series['slotbus_command_seconds_count{command="cmd-start"}'] == 1
        assert await page(info, "/readyz") == "ok"
        assert await page(info, "/healthz") == "ok"
        stopped = await caller.cmd("stop", job_id="wordcount")
        assert sorted(stopped["workers"]) == sorted(row["worker_id"] for row in rows)
        assert stopped["unconfirmed"] == []
        assert not any(alive(row["pid"]) for row in rows)
        assert samples(await page(info, "/metrics"))["slotbus_free_slots"] == 40


async def test_refusals_and_warnings_reach_the_client(
    config: ControllerConfig, caller: Caller
) -> None:
    async with controller(config) as made:
        await made.leading()
        with pytest.raises(NotEnoughSlots) as refused:
            await caller.cmd("start", job_id="j", slots=41)
        assert (refused.value.slots_needed, refused.value.slots_free) == (1, 40)
        started = await caller.cmd("start", job_id="k", slots=1, run_id=5, grce=1)
        assert started["warnings"] == ["unknown field $.grce"]
        await caller.cmd("stop", job_id="k")
        with pytest.raises(StaleRun):
            await caller.cmd("start", job_id="k", slots=1, run_id=5)


async def test_a_command_id_seen_again_gets_the_first_answer(
    config: ControllerConfig, caller: Caller
) -> None:
    async with controller(config) as made:
        await made.leading()
        first = await caller.cmd("start", job_id="j", slots=1, command_id="c-1")
        again = await caller.cmd("start", job_id="j", slots=1, command_id="c-1")
        assert first == again


async def test_events_and_output_are_published(
    config: ControllerConfig, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    events: list[dict[str, Any]] = []
    output: list[str] = []

    async def on_event(message: Msg) -> None:
        events.append(json.loads(message.data))

    async def on_output(message: Msg) -> None:
        output.append(json.loads(message.data)["text"])

    await nc.subscribe(subjects.event_job("j"), cb=on_event)
    await nc.subscribe(subjects.log("j", "*"), cb=on_output)
    async with controller(config) as made:
        await made.leading()
        command = ["sh", "-c", "echo hello; sleep 600"]
        started = await caller.cmd(
            "start", job_id="j", slots=1, scheduler_config={"command": command}
        )
        await until(lambda: "hello\n" in output)
        worker_id = started["workers"][0]["worker_id"]
        asked = json.dumps({"worker_id": worker_id}).encode()
        stored = await nc.request(subjects.agent("local", "logs"), asked, timeout=DEADLINE_S)
        assert json.loads(stored.data)["text"] == "hello\n"
        await caller.cmd("stop", job_id="j")

        def types() -> list[str]:
            return [fact["type"] for event in events for fact in event["events"]]

        await until(lambda: "run_ended" in types())
        assert types().index("worker_launched") < types().index("worker_ended")


async def test_an_orderly_end_leaves_workers_and_lets_the_next_take_over_at_once(
    config: ControllerConfig, caller: Caller
) -> None:
    patient = replace(config, lease_ttl_s=60)
    async with controller(patient) as first, controller(patient) as second:
        done = {first, second}
        await until(lambda: any(made.leads.done() for made in done))
        leader = next(made for made in done if made.leads.done())
        waiting = (done - {leader}).pop()
        epoch = (await leader.leading()).epoch
        assert not waiting.leads.done()
        await caller.cmd("start", job_id="j", slots=3)
        before = await caller.workers()
        await leader.stop()
        assert (await waiting.leading()).epoch > epoch
        after = await caller.workers()
        assert after == before
        assert alive(after[0]["pid"])
        stopped = await caller.cmd("stop", job_id="j")
        assert stopped["workers"] == [before[0]["worker_id"]]


async def test_a_killed_controller_comes_back_to_the_same_workers(
    config: ControllerConfig, caller: Caller, tmp_path: Path
) -> None:
    log = tmp_path / "controller.log"
    async with controller_process(config, log) as first:
        epoch = (await first.leading()).epoch
        await caller.cmd("start", job_id="j", slots=3)
        before = await caller.workers()
        await first.kill()
        with pytest.raises(NoRespondersError):
            await caller.query("workers")
    async with controller_process(config, log) as second:
        assert (await second.leading()).epoch > epoch
        assert await caller.workers() == before
        os.kill(before[0]["pid"], 9)
        (ended,) = await caller.until_workers("failed")
        assert (ended["worker_id"], ended["signal"]) == (before[0]["worker_id"], 9)
        assert await second.terminate() == 0


async def test_a_frozen_leader_is_followed_and_says_nothing_when_it_wakes(
    config: ControllerConfig, caller: Caller, tmp_path: Path
) -> None:
    async with controller_process(config, tmp_path / "first.log") as first:
        old = (await first.leading()).epoch
        await caller.cmd("start", job_id="j", slots=1)
        first.freeze()
        async with controller_process(config, tmp_path / "second.log") as second:
            new = (await second.leading()).epoch
            assert new > old
            first.thaw()
            # Every answer is the new leader's: the frozen one is in no queue group of it.
            for number in range(20):
                await caller.cmd("start", job_id=f"k{number}", slots=1)
            rows = await caller.workers()
            assert len({row["worker_id"] for row in rows}) == 21
            assert await second.terminate() == 0
        # The woken one becomes a standby, and the leader again.
        assert await caller.workers(patient=True) == rows


async def test_another_writer_ends_the_leadership_and_the_next_one_goes_on(
    config: ControllerConfig, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    async with controller(config) as made:
        info = await made.leading()
        await caller.cmd("start", job_id="j", slots=1)
        before = await caller.workers()
        other = JetStreamLog(nc, subjects)
        records = await read_all(other)
        foreign = Record(
            at=records[-1].at,
            epoch=info.epoch + 1,
            cause="leader",
            events=[LeaderStarted(epoch=info.epoch + 1, cluster="slotbus", scheduler="process")],
        )
        await other.append([foreign], expected=Position(len(records)), timeout_s=DEADLINE_S)
        await caller.cmd_patiently("start", job_id="k", slots=1)
        assert await caller.workers(job_id="j") == before
        assert samples(await page(info, "/metrics"))["slotbus_epoch"] > info.epoch + 1


async def test_a_record_nobody_can_read_ends_the_controller_with_its_position(
    config: ControllerConfig, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    async with controller(config) as made:
        await made.leading()
        await caller.cmd("start", job_id="j", slots=1)
    last = len(await read_all(JetStreamLog(nc, subjects)))
    position = {POSITION_HEADER: str(last + 1)}
    await nc.jetstream().publish(subjects.eventlog, b'{"v": 99}', headers=position)
    async with controller(config) as again:
        with pytest.raises(LogUnreadable) as refused:
            await again.leading()
    assert refused.value.facts["position"] == last + 1


async def test_a_server_that_restarts_changes_nothing(
    own_nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> None:
    state_dir = tmp_path / "state"
    config = config_for(own_nats_server.url, subjects, state_dir, lease_ttl_s=15)
    async with connected(own_nats_server.url) as nc, controller(config) as made:
        caller = Caller(nc, subjects)
        epoch = (await made.leading()).epoch
        await caller.cmd("start", job_id="j", slots=1)
        before = await caller.workers()
        own_nats_server.kill()
        await own_nats_server.start()
        await until(lambda: nc.is_connected)
        assert await caller.workers(patient=True) == before
        series = samples(await page(await made.leading(), "/metrics"))
        assert series["slotbus_epoch"] == epoch
    await end_supervisor(state_dir)


async def test_a_server_away_for_longer_than_the_lease(
    own_nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> None:
    state_dir = tmp_path / "state"
    config = config_for(own_nats_server.url, subjects, state_dir, lease_ttl_s=1)
    async with connected(own_nats_server.url) as nc, controller(config) as made:
        caller = Caller(nc, subjects)
        info = await made.leading()
        await caller.cmd("start", job_id="j", slots=1)
        before = await caller.workers()
        await own_nats_server.stop()
        await until_page(info, "/leaderz", "connecting")
        assert samples(await page(info, "/metrics"))["slotbus_leader"] == 0
        assert alive(before[0]["pid"])
        await own_nats_server.start()
        await until_page(info, "/leaderz", "ok")
        await until(lambda: nc.is_connected)
        assert await caller.workers(patient=True) == before
        assert samples(await page(info, "/metrics"))["slotbus_epoch"] > info.epoch
    await end_supervisor(state_dir)


async def test_output_goes_on_under_the_next_controller(
    config: ControllerConfig, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    lines: list[str] = []

    async def on_output(message: Msg) -> None:
        lines.extend(json.loads(message.data)["text"].splitlines())

    await nc.subscribe(subjects.log("j", "*"), cb=on_output)
    script = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
    async with controller(config) as first:
        await first.leading()
        await caller.cmd(
            "start", job_id="j", slots=1, scheduler_config={"command": ["sh", "-c", script]}
        )
        await until(lambda: len(lines) > 1)
    said = len(lines)
    async with controller(config) as second:
        await second.leading()
        await until(lambda: len(lines) > said + 1)
        await caller.cmd("stop", job_id="j")
    numbers = [int(line) for line in lines]
    assert numbers == sorted(set(numbers))


async def test_without_a_server_it_says_so_at_once(subjects: Subjects, tmp_path: Path) -> None:
    config = config_for("nats://127.0.0.1:1", subjects, tmp_path)
    async with controller(config) as made:
        with pytest.raises(ConnectionFailed, match="no NATS server listens there"):
            await made.leading()


async def test_a_taken_address_for_its_pages_is_an_error(config: ControllerConfig) -> None:
    async with controller(config) as first:
        taken = (await first.leading()).http
        assert taken is not None
        async with controller(replace(config, http=f"127.0.0.1:{taken.port}")) as second:
            with pytest.raises(HttpFailed):
                await second.leading()
