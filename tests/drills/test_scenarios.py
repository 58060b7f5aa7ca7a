"""What others reported of their schedulers, and must come out right here.

| scenario | test |
| --- | --- |
| a slow but alive leader is replaced and wakes | `integration/test_controller.py` `test_a_frozen_leader_is_followed_and_says_nothing_when_it_wakes`; points `leader outlived, ...` of every drill |
| the lease is lost while its holder still acts | here, `test_a_leader_whose_renewals_alone_are_lost` |
| acknowledged writes lost at the server | here, `test_a_log_that_lost_its_tail`; `integration/test_jetstream_log.py` `test_a_server_that_came_back_from_an_older_copy_lost_the_tail` |
| pull subscriptions dead after a server restart | `integration/test_following.py` `test_following_survives_a_restarted_server`, `integration/test_jetstream_projection.py` `test_a_restarted_server_gets_what_it_missed` (slotbus itself has no pull subscription that outlives a read) |
| the only node is partitioned, and reconnects | here, `test_the_only_node_cut_off_keeps_its_workers` |
| replacements beside old copies | `integration/test_engine_time.py` `test_a_replaced_run_is_stopped_when_its_node_returns`, `core/test_decide_launch.py` `test_an_uncertain_launch_is_stopped_and_replaced_only_once_it_is_known_not_to_run` |
| recycled pids on restore | `integration/test_supervisor_adoption.py` `test_a_pid_that_is_used_again_is_nobodys_worker` |
| stop of a worker with children after an agent restart | here, `test_a_stop_after_a_restart_of_the_agent_takes_the_children` |
| a heartbeat before the worker's update after a reconnect | here, `test_a_heartbeat_before_the_report_of_an_end` |
| a frozen peer shares the queue group | here, `test_a_frozen_peer_gets_no_request` |
"""  # noqa: E501  a table

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from nats.aio.client import Client

from controller.config import ControllerConfig
from controller.embedded import EmbeddedServer
from events.errors import NotEnoughSlots
from events.subjects import Subjects
from schedulers.node.config import AgentConfig
from schedulers.supervisor.process_tree import is_running, read_process
from tests.drills.frames import Frame, Way
from tests.drills.line import Line
from tests.support.agents import end_supervisor, process_running, supervisor_pid
from tests.support.auditing import audit_server
from tests.support.controllers import Caller, config_for, controller_process
from tests.support.nats import connected
from tests.support.waiting import DEADLINE_S, until

HELD = 20
"""Requests in a row, all of which must be answered."""


class Site:
    """One node and its controllers, each behind a line of its own."""

    def __init__(self, server: EmbeddedServer, subjects: Subjects, folder: Path) -> None:
        self.server = server
        self.subjects = subjects
        self.folder = folder
        self.lines: dict[str, Line] = {}

    async def line(self, name: str) -> Line:
        self.lines[name] = Line(self.server.port)
        await self.lines[name].open()
        return self.lines[name]

    def controller(self, name: str, **settings: object) -> ControllerConfig:
        usual: dict[str, object] = {"scheduler": "node", "heartbeat_s": 0.2, "node_expiry_s": 1.0}
        return config_for(
            self.lines[name].url, self.subjects, self.folder / name, **{**usual, **settings}
        )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    @property
    def node_dir(self) -> Path:
        return self.folder / "n1"

    def agent(self, **settings: Any) -> AgentConfig:
        return AgentConfig(
            server=self.lines["n1"].url,
            root=self.subjects.root,
            node_id="n1",
            slots=4,
            state_dir=str(self.node_dir),
            worker_command=["sleep", "600"],
            request_timeout_s=0.5,
            **settings,
        )

    async def close(self) -> None:
        await end_supervisor(self.node_dir)
        for line in self.lines.values():
            await line.close()


@asynccontextmanager
async def a_site(
    server: EmbeddedServer, subjects: Subjects, folder: Path, *names: str
) -> AsyncIterator[Site]:
    site = Site(server, subjects, folder)
    for name in ("n1", *names):
        await site.line(name)
    try:
        yield site
    finally:
        await site.close()


@pytest.fixture
def caller(nc: Client, subjects: Subjects) -> Caller:
    return Caller(nc, subjects)


@pytest.fixture
async def site(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[Site]:
    async with a_site(nats_server, subjects, tmp_path, "c1", "c2") as made:
        yield made
    await audit_server(nats_server.url, subjects.root)


async def test_a_leader_whose_renewals_alone_are_lost(site: Site, caller: Caller) -> None:
    """It hears and is heard, and yet its lease is over: it acts on nothing any more."""
    patient = {"node_expiry_s": 20.0}
    bucket = f"$KV.{site.subjects.lease_bucket}."
    async with (
        controller_process(site.controller("c1", **patient), site.log("c1")) as first,
        process_running(site.agent()),
    ):
        old = (await first.leading()).epoch
        await caller.until_nodes(1)
        await caller.cmd("start", job_id="j", slots=1)
        before = await caller.workers()
        written: list[Frame] = []

        def watch(way: Way, frame: Frame) -> None:
            if way is Way.UP and frame.subject == site.subjects.eventlog:
                written.append(frame)

        async with controller_process(site.controller("c2", **patient), site.log("c2")) as second:
            site.lines["c1"].lost.append(lambda frame: frame.subject.startswith(bucket))
            assert (await second.leading()).epoch > old
            site.lines["c1"].witnesses.append(watch)
            for number in range(HELD):
                await caller.cmd("start", job_id=f"k{number}", slots=1, wait_s=0)
                await caller.cmd("stop", job_id=f"k{number}", force=True)
            assert await caller.workers() == before
            assert written == []


async def test_a_frozen_peer_gets_no_request(site: Site, caller: Caller) -> None:
    """Requests go to the queue group of one epoch: nobody waits for a sleeper's answer."""
    patient = {"node_expiry_s": 20.0}
    async with (
        controller_process(site.controller("c1", **patient), site.log("c1")) as first,
        process_running(site.agent()),
    ):
        await first.leading()
        await caller.until_nodes(1)
        first.freeze()
        async with controller_process(site.controller("c2", **patient), site.log("c2")) as second:
            await second.leading()
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(HELD):
                    assert [row["node_id"] for row in (await caller.query("nodes"))["nodes"]]
            first.thaw()


async def test_the_only_node_cut_off_keeps_its_workers(site: Site, caller: Caller) -> None:
    """Nothing can replace them meanwhile; when it is back they are what they were."""
    async with (
        controller_process(site.controller("c1"), site.log("c1")) as made,
        process_running(site.agent()),
    ):
        await made.leading()
        await caller.until_nodes(1)
        await caller.cmd("start", job_id="j", slots=3)
        before = await caller.workers()
        line = site.lines["n1"]
        line.refusing = True
        line.drop()
        await caller.until_workers("lost")
        with pytest.raises(NotEnoughSlots) as refused:
            await caller.cmd("start", job_id="k", slots=1)
        assert refused.value.slots_free == 0
        line.refusing = False
        after = await caller.until_workers("running")
        assert [(r["worker_id"], r["pid"]) for r in after] == [
            (r["worker_id"], r["pid"]) for r in before
        ]
        os.kill(after[0]["pid"], 0)
        (row,) = (await caller.query("nodes"))["nodes"]
        assert (row["state"], row["free_slots"]) == ("ready", 1)


async def test_a_stop_after_a_restart_of_the_agent_takes_the_children(
    site: Site, caller: Caller, tmp_path: Path
) -> None:
    """Agent and supervisor are others by now than those that started the worker."""
    script = f"echo $$ > '{tmp_path}/main'; sleep 600 & echo $! > '{tmp_path}/child'; wait"
    config = site.controller("c1", node_expiry_s=20.0)
    async with controller_process(config, site.log("c1")) as made:
        await made.leading()
        async with process_running(site.agent()) as agent:
            await caller.until_nodes(1)
            await caller.cmd(
                "start", job_id="j", slots=1, scheduler_config={"command": ["sh", "-c", script]}
            )
            await until(lambda: (tmp_path / "child").exists() and _pid(tmp_path / "child") > 0)
            tree = [read_process(_pid(tmp_path / name)) for name in ("main", "child")]
            supervisor = await supervisor_pid(site.node_dir)
            await agent.kill()
        os.kill(supervisor, signal.SIGKILL)
        async with process_running(site.agent()):
            reply = await caller.cmd("stop", job_id="j", grace_s=1.0)
            assert (len(reply["workers"]), reply["unconfirmed"]) == (1, [])
            assert not any(row is not None and is_running(row.id) for row in tree)


async def test_a_heartbeat_before_the_report_of_an_end(
    site: Site, caller: Caller, tmp_path: Path
) -> None:
    """The worker ends while its node is cut off, and its report is lost for a while: what
    the heartbeats lead to must not make another end of it."""
    finished = site.subjects.node("n1", "finished")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with (
        controller_process(site.controller("c1", node_expiry_s=20.0), site.log("c1")) as made,
        process_running(site.agent()),
    ):
        await made.leading()
        await caller.until_nodes(1)
        command = ["sh", "-c", f"read line < '{gate}'; exit 6"]
        await caller.cmd("start", job_id="j", slots=1, scheduler_config={"command": command})
        (row,) = await caller.workers()
        line = site.lines["n1"]
        line.lost.append(lambda frame: frame.subject == finished)
        line.refusing = True
        line.drop()
        await asyncio.to_thread(gate.write_text, "go\n")
        await until(lambda: not psutil.pid_exists(row["pid"]))
        line.refusing = False
        (ended,) = await caller.until_workers("failed")
        assert (ended["worker_id"], ended["exit_code"]) == (row["worker_id"], 6)
        line.lost.clear()
        (node,) = (await caller.query("nodes"))["nodes"]
        assert node["free_slots"] == 4


async def test_a_log_that_lost_its_tail(
    own_nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> None:
    """The server comes back from an older copy of its files. What runs and is not in the log
    any more is left alone, and told of."""
    data, copy = own_nats_server.store_dir / "data", tmp_path / "copy"
    server = own_nats_server
    async with (
        connected(server.url) as nc,
        a_site(server, subjects, tmp_path, "c1") as site,
        controller_process(site.controller("c1", node_expiry_s=30.0), site.log("c1")) as made,
        process_running(site.agent()),
    ):
        caller = Caller(nc, subjects)
        await made.leading()
        await caller.until_nodes(1)
        await caller.cmd("start", job_id="kept", slots=1)
        await server.stop()
        await asyncio.to_thread(shutil.copytree, data, copy)
        await server.start()
        await until(lambda: nc.is_connected)
        await caller.cmd_patiently("start", job_id="forgotten", slots=1)
        pids = {row["job_id"]: row["pid"] for row in await caller.workers(patient=True)}
        await server.stop()
        await asyncio.to_thread(shutil.rmtree, data)
        await asyncio.to_thread(shutil.copytree, copy, data)
        await server.start()
        await until(lambda: nc.is_connected)
        # The first append finds out; what it was for is done by the leadership that follows.
        await caller.cmd_patiently("cordon", node_id="n1")
        rows = await caller.workers(patient=True)
        assert [row["job_id"] for row in rows] == ["kept"]
        await _until_orphan(caller)
        for pid in pids.values():
            os.kill(pid, 0)


async def _until_orphan(caller: Caller) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not (await caller.query("node", node_id="n1"))["orphans"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _pid(path: Path) -> int:
    return int(path.read_text().strip() or 0)
