"""A controller that records: its files, played again, are the log on the real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from controller.config import ControllerConfig, check_controller
from controller.embedded import EmbeddedServer
from events.errors import Invalid
from events.jetstream import JetStreamLog
from events.log import encode_record
from events.subjects import Subjects
from schedulers.files import replay_file
from tests.support.agents import end_supervisor
from tests.support.controllers import (
    Caller,
    config_for,
    controller,
    controller_process,
    page,
    samples,
)
from tests.support.records import read_all


@pytest.fixture
async def config(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[ControllerConfig]:
    state_dir = tmp_path / "state"
    made = config_for(nats_server.url, subjects, state_dir, task_slots=40)
    yield replace(made, record=str(tmp_path / "recordings"))
    await end_supervisor(state_dir)


def recordings(config: ControllerConfig) -> list[Path]:
    return sorted(Path(config.record).iterdir())


async def check(config: ControllerConfig, nc: Client, subjects: Subjects, whole: int) -> None:
    """What was recorded leads to the log; all of it, where ``whole`` records or more."""
    log = JetStreamLog(nc, subjects, create=False)
    written = [encode_record(record) for record in await read_all(log)]
    played = replay_file(*recordings(config))
    assert played.missing == 0
    for stretch in played.stretches:
        again = [encode_record(record) for record in stretch.records]
        assert again == written[stretch.after : stretch.position]
    assert played.position >= whole


async def test_an_orderly_life_is_recorded_to_its_end(
    config: ControllerConfig, nc: Client, subjects: Subjects
) -> None:
    caller = Caller(nc, subjects)
    async with controller(config) as made:
        info = await made.leading()
        await caller.cmd("start", job_id="j", slots=20, env_vars={"A_TOKEN": "t", "B": "b"})
        await caller.cmd("stop", job_id="j", grace_s=1)
        await caller.workers(all=True)
        assert samples(await page(info, "/metrics"))["slotbus_recording_lost_lines_total"] == 0
    (path,) = recordings(config)
    played = replay_file(path)
    assert played.stretches[0].ended == ""
    log = JetStreamLog(nc, subjects, create=False)
    assert [r.cause for r in played.records] == [r.cause for r in await read_all(log)]
    run = played.ledger.jobs["j"].current
    assert played.ledger.jobs["j"].name == "j"
    assert run.ended


async def test_killed_controllers_leave_what_was_written_and_the_next_one_goes_on(
    config: ControllerConfig, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    caller = Caller(nc, subjects)
    async with controller_process(config, tmp_path / "log") as first:
        await first.leading()
        await caller.cmd("start", job_id="j", slots=3)
        await first.kill()
    async with controller_process(config, tmp_path / "log") as second:
        await second.leading()
        await caller.cmd("stop", job_id="j", grace_s=1)
        whole = len(await caller.workers(all=True))
        assert await second.terminate() == 0
    await check(config, nc, subjects, whole)


def test_rules_that_mask_nothing_are_refused(config: ControllerConfig) -> None:
    with pytest.raises(Invalid, match="masks nothing"):
        check_controller(replace(config, record_mask=["slots"]))
