"""``slotbus init``: streams before any controller ran, and changes that lose nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from controller.embedded import EmbeddedServer
from controller.leader import LeaseUnusable
from controller.setup import Done, Wanted, set_up
from events.client import SlotbusClient
from events.connection import Access
from events.errors import Invalid
from events.following import NoJetStream
from events.log import LogError
from events.messages import StopWorkersReq
from events.queueing import NotQueued
from events.subjects import Subjects
from tests.support.controllers import config_for, controller
from tests.support.nats import connected
from tests.support.waiting import DEADLINE_S

DAY = 86_400.0


def did(done: list[Done]) -> list[str]:
    return [each.did for each in done]


async def left(bus: SlotbusClient, command: StopWorkersReq) -> bool:
    """Whether there is a queue by now, and it took the command."""
    try:
        await bus.leave(command)
    except NotQueued:
        return False
    return True


async def test_what_is_made_is_what_a_controller_makes(
    nats_server: EmbeddedServer, nc: Client, tmp_path: Path
) -> None:
    ours, theirs = Subjects(f"s{tmp_path.name[-8:]}a"), Subjects(f"s{tmp_path.name[-8:]}b")
    assert did(await set_up(nc, ours, Wanted())) == ["created"] * 6
    config = config_for(nats_server.url, theirs, tmp_path, log_max_bytes=1024**3)
    async with controller(config) as leader:
        await leader.leading()
        async with SlotbusClient.connect(nats_server.url, theirs.root) as bus:
            await bus.start(job_id="j", slots=1)
            async with asyncio.timeout(DEADLINE_S):
                while not await left(bus, StopWorkersReq(job_id="j", force=True)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                while await bus.workers("j"):  # noqa: ASYNC110  remote
                    await asyncio.sleep(0.02)
    js = nc.jetstream()
    for name in ("log_stream", "event_stream", "queue_stream", "aside_stream"):
        configs = []
        for subjects in (ours, theirs):
            info = await js.stream_info(getattr(subjects, name))
            text = msgspec.json.encode(info.config.as_dict()).decode()
            at = text.replace(subjects.token.upper(), "ROOT").replace(subjects.root, "root")
            configs.append(at)
        assert configs[0] == configs[1]


async def test_a_controller_takes_what_init_made(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    await set_up(nc, subjects, Wanted())
    async with controller(config_for(nats_server.url, subjects, tmp_path)) as leader:
        await leader.leading()
        assert did(await set_up(nc, subjects, Wanted())) == ["unchanged"] * 6


async def test_only_what_was_said_is_changed(nc: Client, subjects: Subjects) -> None:
    await set_up(nc, subjects, Wanted(log_max_bytes=2**20, event_max_age_s=DAY))
    log, events, *_, lease = await set_up(
        nc, subjects, Wanted(log_max_bytes=2**21, event_max_age_s=3 * DAY)
    )
    assert log.changes == ["max_bytes 1048576 -> 2097152"]
    assert events.changes == ["max_age 1 days -> 3 days"]
    assert lease.did == "unchanged"
    assert did(await set_up(nc, subjects, Wanted())) == ["unchanged"] * 6
    info = await nc.jetstream().stream_info(subjects.log_stream)
    assert (info.config.max_bytes, info.config.discard) == (2**21, "new")
    assert info.config.deny_delete


async def test_nothing_is_made_narrower(nc: Client, subjects: Subjects) -> None:
    await set_up(nc, subjects, Wanted(log_max_bytes=2**21))
    log, events, *_ = await set_up(
        nc, subjects, Wanted(log_max_bytes=2**20, event_max_age_s=DAY, event_max_bytes=2**20)
    )
    assert did([log, events]) == ["unchanged", "unchanged"]
    assert log.kept == ["max_bytes stays 2097152 and is not made 1048576: what is stored could go"]
    assert [text.split(" stays ")[0] for text in events.kept] == ["max_age", "max_bytes"]


async def test_a_log_that_would_drop_old_records_is_put_right(
    nc: Client, subjects: Subjects
) -> None:
    js = nc.jetstream()
    await js.add_stream(StreamConfig(name=subjects.log_stream, subjects=[subjects.eventlog]))
    await js.publish(subjects.eventlog, b"kept")
    log, *_ = await set_up(nc, subjects, Wanted())
    assert log.changes == ["discard old -> new"]
    assert (await js.stream_info(subjects.log_stream)).state.messages == 1


async def test_a_stream_or_bucket_of_somebody_else_is_left_alone(
    nc: Client, subjects: Subjects
) -> None:
    js = nc.jetstream()
    await js.add_stream(name=subjects.log_stream, subjects=[f"{subjects.root}.other"])
    with pytest.raises(Invalid, match="it is another cluster's or program's"):
        await set_up(nc, subjects, Wanted())
    other = Subjects(f"{subjects.root}x")
    await js.add_stream(name=f"KV_{other.lease_bucket}", subjects=[f"$KV.{other.lease_bucket}.>"])
    with pytest.raises(LeaseUnusable, match="made without TTLs"):
        await set_up(nc, other, Wanted())


@pytest.mark.parametrize(
    ("jetstream", "said"),
    [
        ("", "JetStream is not enabled for this account"),
        ("jetstream: {max_streams: 1}", "the account may have no more streams"),
        ("jetstream: {max_file: 10M}", "less storage than log_max_bytes asks for"),
    ],
)
async def test_limits_of_the_account_are_told_with_what_they_mean(
    tmp_path: Path, jetstream: str, said: str
) -> None:
    config = f'accounts {{ A: {{ {jetstream}\n users: [{{user: u, password: "p"}}] }} }}'
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        url = server.url.replace("nats://", "nats://u:p@")
        async with connected(url) as nc:
            with pytest.raises(LogError, match=said):
                await set_up(nc, Subjects(), Wanted())


async def test_events_without_jetstream_say_what_is_missing(tmp_path: Path) -> None:
    config = 'accounts { A: { users: [{user: u, password: "p"}] } }'
    async with (
        EmbeddedServer(tmp_path / "nats", config=config) as server,
        SlotbusClient.connect(server.url, access=Access(user="u", password="p")) as bus,
    ):
        with pytest.raises(NoJetStream, match="JetStream is not enabled"):
            _ = [record async for record in bus.events()]
