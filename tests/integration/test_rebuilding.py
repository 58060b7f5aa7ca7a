"""A log that lost its end, or all of it, under running workers: on a real server, with agents.

Nothing that runs well is stopped, and after a rebuild the accounts are right again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from controller.embedded import EmbeddedServer
from events.errors import SlotbusError
from events.subjects import Subjects
from schedulers.node.config import AgentConfig
from tests.support.agents import end_supervisor, running
from tests.support.console import Console
from tests.support.controllers import Caller, config_for, controller, page, samples
from tests.support.nats import connected
from tests.support.waiting import DEADLINE_S

SLOTS = 4


@pytest.fixture
async def caller(own_nats_server: EmbeddedServer, subjects: Subjects) -> AsyncIterator[Caller]:
    async with connected(own_nats_server.url) as nc:
        yield Caller(nc, subjects)


@asynccontextmanager
async def two_agents(url: str, subjects: Subjects, tmp_path: Path) -> AsyncIterator[None]:
    configs = [
        AgentConfig(
            server=url,
            root=subjects.root,
            node_id=node_id,
            slots=SLOTS,
            state_dir=str(tmp_path / f"agent-{node_id}"),
            worker_command=["sleep", "600"],
        )
        for node_id in ("n1", "n2")
    ]
    try:
        async with running(configs[0], accepted=False), running(configs[1], accepted=False):
            yield
    finally:
        for config in configs:
            await end_supervisor(Path(config.state_dir))


async def node_rows(caller: Caller) -> dict[str, int]:
    """Free slots by node."""
    return {row["node_id"]: row["free_slots"] for row in (await caller.query("nodes"))["nodes"]}


async def until_unconfirmed(caller: Caller, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await caller.query("leader"))["unconfirmed"] != count:  # noqa: ASYNC110  remote
            await asyncio.sleep(0.02)


def alive(rows: list[dict[str, Any]]) -> list[int]:
    """The pids of these workers, each of which runs."""
    pids = [int(row["pid"]) for row in rows]
    for pid in pids:
        os.kill(pid, 0)
    return sorted(pids)


async def start(caller: Caller, job_id: str, slots: int) -> list[dict[str, Any]]:
    await caller.cmd_patiently("start", job_id=job_id, slots=slots, on_shortage="wait")
    return await caller.workers(job_id=job_id)


async def test_the_whole_log_is_lost(
    own_nats_server: EmbeddedServer, subjects: Subjects, caller: Caller, tmp_path: Path
) -> None:
    config = config_for(
        own_nats_server.url, subjects, tmp_path / "c", scheduler="node", heartbeat_s=0.1
    )
    async with two_agents(own_nats_server.url, subjects, tmp_path):
        async with controller(config) as first:
            await first.leading()
            await caller.until_nodes(2)
            before = await start(caller, "big", 6) + await start(caller, "small", 1)
        pids = alive(before)
        async with connected(own_nats_server.url) as nc:
            for stream in (subjects.log_stream, f"{subjects.token.upper()}_SNAPSHOT"):
                await nc.request(f"$JS.API.STREAM.DELETE.{stream}", b"")
        async with controller(config) as second:
            info = await second.leading()
            await caller.until_nodes(2)
            await until_unconfirmed(caller, len(before))
            assert samples(await page(info, "/metrics"))["slotbus_unconfirmed_workers"] == len(pids)
            assert alive(before) == pids
            console = Console(tmp_path / "home")
            where = ("--server", own_nats_server.url, "--root", subjects.root)
            done = await asyncio.to_thread(console.run, "rebuild", *where)
            assert (done.code, f"{len(before)} workers taken in" in done.out) == (0, True), done
            assert alive(await caller.workers()) == pids
            assert sum((await node_rows(caller)).values()) == 2 * SLOTS - 7
            jobs = (await caller.query("jobs"))["jobs"]
            assert {job["job_id"]: job["state"] for job in jobs} == {
                "big": "running",
                "small": "running",
            }
            done = await asyncio.to_thread(console.run, "restart", "small", *where)
            assert done.code != 0, done
            assert alive(await caller.workers()) == pids
            await caller.cmd("stop", job_id="big", force=True)
            assert sum((await node_rows(caller)).values()) == 2 * SLOTS - 1


async def test_an_old_copy_of_the_log_is_restored(
    own_nats_server: EmbeddedServer, subjects: Subjects, caller: Caller, tmp_path: Path
) -> None:
    """As after a crash of a server that had not synced, or from a backup."""
    config = config_for(
        own_nats_server.url, subjects, tmp_path / "c", scheduler="node", heartbeat_s=0.1
    )
    async with two_agents(own_nats_server.url, subjects, tmp_path):
        async with controller(config) as first:
            await first.leading()
            await caller.until_nodes(2)
            kept = await start(caller, "kept", 2)
            gone = await start(caller, "gone", 1)
        store = own_nats_server.store_dir
        await own_nats_server.stop()
        shutil.copytree(store, tmp_path / "copy")
        await own_nats_server.start()
        async with controller(config) as second:
            await second.leading()
            await caller.until_nodes(2)
            lost = await start(caller, "lost", 2)
            await caller.cmd_patiently("stop", job_id="gone", force=True)
        await own_nats_server.stop()
        shutil.rmtree(store)
        shutil.copytree(tmp_path / "copy", store)
        await own_nats_server.start()
        pids = alive(kept + lost)
        async with controller(config) as third:
            await third.leading()
            await caller.until_nodes(2)
            await until_unconfirmed(caller, len(lost))
            # What ended meanwhile is seen to be gone; what the log knows lives on.
            rows = {row["worker_id"]: row for row in await caller.workers(all=True)}
            assert {rows[row["worker_id"]]["state"] for row in kept} == {"running"}
            assert {rows[row["worker_id"]]["state"] for row in gone} == {"lost"}
            reply = await caller.cmd("rebuild")
            assert set(reply["workers"]) == {row["worker_id"] for row in lost}
            assert alive(await caller.workers()) == pids
            assert sum((await node_rows(caller)).values()) == 2 * SLOTS - 4


async def test_agents_that_have_seen_a_higher_epoch_get_a_leader_above_it(
    own_nats_server: EmbeddedServer, subjects: Subjects, caller: Caller, tmp_path: Path
) -> None:
    """A clock that was set back, and a log that can't tell."""
    config = config_for(
        own_nats_server.url, subjects, tmp_path / "c", scheduler="node", heartbeat_s=0.1
    )
    async with two_agents(own_nats_server.url, subjects, tmp_path), controller(config) as first:
        seen = (await first.leading()).epoch + 3_600_000
        await caller.until_nodes(2)
        async with connected(own_nats_server.url) as nc:
            await believe(nc, subjects, seen)
        async with asyncio.timeout(DEADLINE_S):
            while await epoch(caller) <= seen:  # noqa: ASYNC110  remote
                await asyncio.sleep(0.02)
        await caller.until_nodes(2)
        assert len(await start(caller, "j", 6)) == 2


async def believe(nc: Client, subjects: Subjects, seen: int) -> None:
    """Shows an agent this epoch, as a leader of it would."""
    body = b'{"epoch": %d}' % seen
    await nc.request(subjects.agent("n1", "inventory"), body, timeout=DEADLINE_S)


async def epoch(caller: Caller) -> int:
    """The leader's, 0 while nobody leads."""
    try:
        async with asyncio.timeout(1.0):  # the question may have gone to one that is over
            return int((await caller.query("leader"))["epoch"])
    except (SlotbusError, NoRespondersError, TimeoutError):
        return 0


async def test_a_loss_is_noticed_while_nothing_is_to_be_written(
    own_nats_server: EmbeddedServer, subjects: Subjects, caller: Caller, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("controller.leadership.LOG_LOOK_S", 0.1)
    config = config_for(
        own_nats_server.url, subjects, tmp_path / "c", scheduler="node", heartbeat_s=0.1
    )
    async with two_agents(own_nats_server.url, subjects, tmp_path), controller(config) as leader:
        await leader.leading()
        await caller.until_nodes(2)
        before = await start(caller, "j", 6)
        with structlog.testing.capture_logs() as logs:
            async with connected(own_nats_server.url) as nc:
                await nc.request(f"$JS.API.STREAM.DELETE.{subjects.log_stream}", b"")
            async with asyncio.timeout(DEADLINE_S):
                while not (  # noqa: ASYNC110  remote
                    rows := await asked_patiently(caller)
                ) or rows["unconfirmed"] != len(before):
                    await asyncio.sleep(0.02)
        (said,) = [line["cause"] for line in logs if line["event"] == "leadership ended"]
        assert "is gone, and the event log with it" in said
        assert alive(before)
        reply = await caller.cmd("rebuild")
        assert set(reply["workers"]) == {row["worker_id"] for row in before}


async def asked_patiently(caller: Caller) -> dict[str, Any]:
    """What a leader says of itself; nothing where there is none at the moment."""
    try:
        return await caller.query("leader")
    except (SlotbusError, NoRespondersError, NatsTimeout):
        return {}
