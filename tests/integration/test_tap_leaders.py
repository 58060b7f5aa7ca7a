"""Recording from outside beside real controllers: whoever leads, and however it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from controller.config import ControllerConfig
from controller.embedded import EmbeddedServer
from events.jetstream import JetStreamLog
from events.log import encode_record
from events.subjects import Subjects
from schedulers.files import replay_file
from tests.support.agents import end_supervisor
from tests.support.controllers import Caller, config_for, controller, controller_process
from tests.support.nats import connected
from tests.support.recordings import files, knows, reached, recording
from tests.support.records import read_all
from tests.support.waiting import until


@pytest.fixture
async def config(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[ControllerConfig]:
    state_dir = tmp_path / "state"
    yield config_for(nats_server.url, subjects, state_dir, task_slots=40)
    await end_supervisor(state_dir)


async def written(nc: Client, subjects: Subjects) -> list[bytes]:
    log = JetStreamLog(nc, subjects, create=False)
    return [encode_record(record) for record in await read_all(log)]


async def test_the_next_leader_goes_on_after_a_gap(
    config: ControllerConfig, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    caller, path = Caller(nc, subjects), tmp_path / "a.jsonl.gz"
    async with controller_process(config, tmp_path / "log") as first:
        await first.leading()
        async with recording(nc, subjects, path) as made:
            await caller.cmd("start", job_id="j", slots=3)
            await until(lambda: knows(path, "j"))
            await first.kill()
            async with controller(config) as second:
                await second.leading()
                await until(lambda: len(replay_file(path).stretches) == 2)
                await caller.cmd("stop", job_id="j", grace_s=1)
                end = len(await written(nc, subjects))
                await until(lambda: reached(path, end))
    played = replay_file(path)
    log = await written(nc, subjects)
    for stretch in played.stretches:
        assert [encode_record(r) for r in stretch.records] == log[stretch.after : stretch.position]
    assert played.gaps[0].startswith("the leader of epoch ")
    assert any("was followed by" in text for text in made.said)
    assert played.stretches[0].epoch < played.stretches[1].epoch


async def test_an_orderly_end_of_the_leader_is_recorded_too(
    config: ControllerConfig, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    async with controller(config) as made:
        await made.leading()
        async with recording(nc, subjects, path):
            await until(lambda: path.exists() and bool(replay_file(path).stretches))
            await made.stop()
            await until(lambda: replay_file(path).stretches[-1].ended == "")


async def test_after_a_lost_connection_it_goes_on_and_says_nothing_wrong(
    own_nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> None:
    config = config_for(own_nats_server.url, subjects, tmp_path / "state", task_slots=40)
    path = tmp_path / "a.jsonl"
    async with connected(own_nats_server.url) as nc, controller(config) as made:
        await made.leading()
        caller = Caller(nc, subjects)
        async with recording(nc, subjects, path):
            await caller.cmd("start", job_id="a", slots=1)
            own_nats_server.kill()
            await until(lambda: not nc.is_connected)
            await own_nats_server.start()
            await until(lambda: nc.is_connected)
            await caller.cmd_patiently("start", job_id="b", slots=1)
            await until(lambda: knows(path, "b"))
        log = await written(nc, subjects)
    played = replay_file(path)
    for stretch in played.stretches:
        assert [encode_record(r) for r in stretch.records] == log[stretch.after : stretch.position]
    await end_supervisor(tmp_path / "state")


async def test_a_file_recorder_and_one_from_outside_record_the_same(
    config: ControllerConfig, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    caller, path = Caller(nc, subjects), tmp_path / "a.jsonl"
    both = replace(config, record=str(tmp_path / "own"))
    async with controller(both) as made:
        await made.leading()
        async with recording(nc, subjects, path):
            await caller.cmd("start", job_id="a", slots=1)
            await caller.cmd("stop", job_id="a", grace_s=1)
            end = len(await written(nc, subjects))
            await until(lambda: reached(path, end))
    outside = replay_file(path)
    own = replay_file(*files(tmp_path / "own"))
    assert len(own.stretches) == 1
    assert own.records[outside.stretches[0].after : end] == outside.records
