"""Two clusters beside each other on one server: the root keeps them apart in everything."""

from __future__ import annotations

from pathlib import Path

from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.client import SlotbusClient
from events.subjects import Subjects
from tests.support.controllers import config_for, controller


async def test_two_clusters_on_one_server(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    roots = (subjects.root, f"{subjects.root}.team.b")  # one below the other, even
    configs = [
        config_for(
            nats_server.url, Subjects(root), tmp_path / str(at), task_slots=2 + at, cluster=f"c{at}"
        )
        for at, root in enumerate(roots)
    ]
    async with controller(configs[0]) as first, controller(configs[1]) as second:
        epochs = {(await first.leading()).epoch, (await second.leading()).epoch}
        async with (
            SlotbusClient.connect(nats_server.url, roots[0]) as one,
            SlotbusClient.connect(nats_server.url, roots[1]) as two,
        ):
            assert {(await one.leader()).epoch, (await two.leader()).epoch} == epochs
            assert ((await one.leader()).cluster, (await two.leader()).cluster) == ("c0", "c1")
            # the same ids in both, and each only sees its own
            assert (await one.start(job_id="j", slots=2)).run_id == 1
            assert await two.jobs() == []
            assert (await two.start(job_id="j", slots=3)).run_id == 1
            assert [job.slots for job in await one.jobs()] == [2]
            assert [node.registered_slots for node in await two.nodes()] == [3]
            mine = {worker.worker_id for worker in await one.workers()}
            assert mine.isdisjoint(worker.worker_id for worker in await two.workers())
            await one.stop("j", force=True)
            assert await one.workers() == []
            assert len(await two.workers()) == 1
            facts = [record async for record in one.events()]
            others = [record async for record in two.events()]
            assert {record.epoch for record in facts} | {r.epoch for r in others} == epochs
            assert {record.epoch for record in facts}.isdisjoint(r.epoch for r in others)
            await two.stop("j", force=True)
    names = {info.config.name for info in await nc.jetstream().streams_info()}
    for root in roots:
        at = Subjects(root)
        assert {at.log_stream, at.event_stream, f"KV_{at.lease_bucket}"} <= names
