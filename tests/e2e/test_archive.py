"""A real controller with a small log: snapshots, purges, the archive, and all of it looked at."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from controller import snapshotting
from controller.archive import parts_of
from controller.embedded import EmbeddedServer
from events.ids import Position
from events.jetstream import JetStreamLog
from events.jetstream_snapshots import JetStreamSnapshots
from events.log import LogPurged
from events.recall import LogBeheaded, recall
from events.subjects import Subjects
from tests.support.console import Console
from tests.support.controllers import Caller, config_for, controller, page, samples
from tests.support.records import read_all
from tests.support.waiting import DEADLINE_S


async def test_a_log_that_outgrows_its_limit_goes_on_and_can_be_asked_about_its_beginning(
    nats_server: EmbeddedServer,
    nc: Client,
    subjects: Subjects,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshotting, "PAUSE_S", 0.05)
    monkeypatch.setattr(snapshotting, "LOOK_S", 0.1)
    archive = tmp_path / "archive"
    config = config_for(
        nats_server.url,
        subjects,
        tmp_path / "state",
        scheduler="embedded",
        snapshot_every=10,
        snapshots_kept=2,
        log_keep_bytes=20_000,
        archive=str(archive),
    )
    caller, log = Caller(nc, subjects), JetStreamLog(nc, subjects)
    async with controller(config) as made:
        info = await made.leading()
        async with asyncio.timeout(DEADLINE_S):
            while samples(await page(info, "/metrics"))["slotbus_log_purges_total"] < 2:
                for verb in ("cordon", "uncordon"):
                    await caller.cmd(verb, node_id="embedded")
        series = samples(await page(info, "/metrics"))
    assert series["slotbus_snapshot_failures_total"] == 0
    assert series["slotbus_log_first_position"] > 10
    assert series["slotbus_archive_position"] >= series["slotbus_log_first_position"] - 1
    assert len(parts_of(archive)) >= 2
    with pytest.raises(LogPurged):
        await read_all(log)

    console = Console(tmp_path)
    where = ("--server", nats_server.url, "--root", subjects.root, "--archive", str(archive))

    async def slotbus(*arguments: str) -> Any:
        done = await asyncio.to_thread(console.run, *arguments, *where, "-o", "json")
        assert done.code == 0, done.err
        return done.json()

    early = await slotbus("state", "--at", "3")
    assert early["position"] == 3
    (node,) = early["nodes"]
    assert node["node_id"] == "embedded"
    changed = await slotbus("diff", "3", "4")
    assert (changed["before"], changed["after"]) == (3, 4)
    audited = await slotbus("audit")
    assert audited["violation"] is None
    assert (
        audited["records"] == (await recall(log, JetStreamSnapshots(nc, subjects))).ledger.position
    )


async def test_without_snapshots_of_what_was_purged_nobody_leads(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    config = config_for(nats_server.url, subjects, tmp_path, scheduler="embedded")
    caller = Caller(nc, subjects)
    async with controller(config) as made:
        await made.leading()
        for verb in ("cordon", "uncordon", "cordon"):
            await caller.cmd(verb, node_id="embedded")
    await JetStreamLog(nc, subjects).trim(Position(3))
    async with controller(config) as made:
        with pytest.raises(LogBeheaded, match="put the snapshots back from a backup"):
            await made.leading()
