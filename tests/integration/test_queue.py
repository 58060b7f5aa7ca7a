"""The queue of durable commands on a real server: each done once, whoever leads."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

from controller.embedded import EmbeddedServer
from controller.queue import CODE_HEADER, REASON_HEADER, QueueReader, QueueStats
from controller.setup import Wanted, set_up
from events.entities import QueueCursor
from events.errors import NotLeader
from events.jetstream_api import Deadline, JetStreamApi
from events.jetstream_messages import MSG_ID
from events.ledger import Ledger
from events.queries import ShortageReply
from events.subjects import Subjects
from schedulers.decide.messages import Inbound, Queued, QueueMoved, Reply
from tests.support.console import Console
from tests.support.controllers import (
    Caller,
    config_for,
    controller,
    controller_process,
    page,
    samples,
)
from tests.support.nats import connected
from tests.support.waiting import DEADLINE_S, background, until

JOBS = 40


@pytest.fixture
async def js(nc: Client, subjects: Subjects) -> JetStreamContext:
    """JetStream, with the streams of the cluster."""
    await set_up(nc, subjects, Wanted())
    return nc.jetstream()


@pytest.fixture
def caller(nc: Client, subjects: Subjects) -> Caller:
    return Caller(nc, subjects)


async def put(
    js: JetStreamContext, subject: str, headers: dict[str, str] | None = None, **fields: object
) -> int:
    ack = await js.publish(subject, json.dumps(fields).encode(), headers=headers)
    return ack.seq


async def depth(js: JetStreamContext, subjects: Subjects) -> int:
    info = await js.stream_info(subjects.queue_stream)
    return info.state.messages


async def until_done(js: JetStreamContext, subjects: Subjects) -> None:
    """Only the message at the cursor is kept."""
    async with asyncio.timeout(DEADLINE_S):
        while await depth(js, subjects) > 1:  # noqa: ASYNC110  remote
            await asyncio.sleep(0.02)


async def test_what_was_left_while_nobody_led_is_done_when_somebody_does(
    nats_server: EmbeddedServer,
    subjects: Subjects,
    js: JetStreamContext,
    caller: Caller,
    tmp_path: Path,
) -> None:
    await put(js, subjects.queue("start"), job_id="early", slots=2)
    assert await depth(js, subjects) == 1
    async with controller(config_for(nats_server.url, subjects, tmp_path / "state")) as made:
        info = await made.leading()
        (row,) = await caller.until_workers("running")
        assert (row["job_id"], row["slots"]) == ("early", 2)
        await until_done(js, subjects)
        await put(js, subjects.queue("stop"), job_id="early", force=True)
        await caller.until_workers("finished")
        await until_done(js, subjects)
        series = samples(await page(info, "/metrics"))
        assert series["slotbus_queue_taken_total"] == 2
        assert series["slotbus_queued_commands"] == 0


async def test_each_is_done_once_though_leaders_are_killed(
    nats_server: EmbeddedServer,
    subjects: Subjects,
    js: JetStreamContext,
    caller: Caller,
    tmp_path: Path,
) -> None:
    config = config_for(nats_server.url, subjects, tmp_path / "state", scheduler="node")
    for number in range(JOBS):
        await put(js, subjects.queue("start"), job_id=f"j{number}", slots=1, on_shortage="wait")
    for seen in (1, JOBS // 3, JOBS // 2):
        async with controller_process(config, tmp_path / "log") as made:
            await made.leading()
            async with asyncio.timeout(DEADLINE_S):
                while len((await caller.query("shortage"))["waiting"]) < seen:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await made.kill()
    async with controller(config) as last:
        await last.leading()
        await until_done(js, subjects)
        waiting = (await caller.query("shortage"))["waiting"]
        assert [row["job_id"] for row in waiting] == [f"j{number}" for number in range(JOBS)]
        assert {row["run_id"] for row in waiting} == {1}


async def test_what_is_no_command_is_put_aside_and_holds_nobody_up(
    nats_server: EmbeddedServer,
    subjects: Subjects,
    js: JetStreamContext,
    caller: Caller,
    tmp_path: Path,
) -> None:
    await js.publish(subjects.queue("start"), b'{"job_id":')
    await put(js, subjects.queue("start"), job_id="j", slots=0)
    await put(js, subjects.queue("start.now"), job_id="j", slots=1)
    await put(js, subjects.queue("start"), job_id="first", slots=1, command_id="same")
    await put(js, subjects.queue("start"), job_id="other", slots=1, command_id="same")
    await put(js, subjects.queue("start"), headers={MSG_ID: "mine"}, job_id="last", slots=1)
    async with controller(config_for(nats_server.url, subjects, tmp_path / "state")) as made:
        await made.leading()
        await until_done(js, subjects)
        rows = await caller.until_workers("running")
        assert {row["job_id"] for row in rows} == {"first", "last"}
        job = await caller.query("job", job_id="last")
        assert job["command_id"] == "mine"
    aside = await js.subscribe(subjects.aside(">"), ordered_consumer=True)
    told = [await aside.next_msg(timeout=DEADLINE_S) for _ in range(4)]
    assert [message.subject.removeprefix(subjects.aside("")) for message in told] == [
        "start", "start", "start.now", "start",
    ]  # fmt: skip
    assert told[0].data == b'{"job_id":'
    headers = [message.headers or {} for message in told]
    assert {each[CODE_HEADER] for each in headers} == {"invalid"}
    assert "slots" in headers[1][REASON_HEADER]
    assert "same" in headers[3][REASON_HEADER]


async def test_the_command_line_leaves_commands_in_it(
    nats_server: EmbeddedServer, subjects: Subjects, nc: Client, caller: Caller, tmp_path: Path
) -> None:
    console = Console(tmp_path / "home")
    where = ("--queue", "--server", nats_server.url, "--root", subjects.root)
    done = await asyncio.to_thread(console.run, "start", "j", "--slots", "1", *where)
    assert done.code != 0
    assert "slotbus init" in done.err
    await set_up(nc, subjects, Wanted())
    done = await asyncio.to_thread(console.run, "start", "j", "--slots", "1", "-o", "json", *where)
    assert (done.code, done.json()["sequence"]) == (0, 1)
    async with controller(config_for(nats_server.url, subjects, tmp_path / "state")) as made:
        await made.leading()
        await caller.until_workers("running")
        job = await caller.query("job", job_id="j")
        assert job["command_id"] == done.json()["command_id"]
        done = await asyncio.to_thread(console.run, "stop", "j", "--force", *where)
        assert "is number 2 in the queue" in done.out
        await caller.until_workers("finished")


class Deaf:
    """An engine that loses the lead after ``most`` messages, and leads again."""

    def __init__(self, most: int) -> None:
        self.ledger = Ledger()
        self.most = most
        self.taken: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.all_ids: list[str] = []

    async def submit(self, message: Inbound) -> Reply:
        if len(self.taken) >= self.most:
            raise NotLeader("not now")
        if not isinstance(message, Queued):
            return ShortageReply(missing=0, waiting=[])
        self.taken.append(message.sequence)
        self.bodies.append(json.loads(bytes(message.body)))
        self.all_ids.append(self.bodies[-1]["command_id"])
        self.ledger.state.queue = QueueCursor(
            stream=message.stream, sequence=message.sequence, stored=message.stored
        )
        return QueueMoved(message.sequence)


async def test_nothing_is_purged_that_was_not_taken(
    nc: Client, subjects: Subjects, js: JetStreamContext
) -> None:
    for number in range(5):
        await put(js, subjects.queue("start"), job_id=f"j{number}", slots=1)
    engine = Deaf(most=3)
    reader = QueueReader(nc, subjects, engine, QueueStats())
    with pytest.raises(NotLeader):
        await reader.run()
    assert await depth(js, subjects) == 5
    engine.most = 10
    async with background(reader.run()):
        await until(lambda: len(engine.taken) == 5)
        await until_done(js, subjects)
    assert engine.taken == [1, 2, 3, 4, 5]


async def test_nothing_is_purged_that_the_log_may_not_have(
    nc: Client, subjects: Subjects, js: JetStreamContext
) -> None:
    """A ledger is ahead of its log until the append is acknowledged, which may never be."""
    for number in range(2):
        await put(js, subjects.queue("start"), job_id=f"j{number}", slots=1)
    info = await JetStreamApi(nc).info(subjects.queue_stream, Deadline(5.0))
    assert info is not None
    engine = Deaf(most=0)
    engine.ledger.state.queue = QueueCursor(stream=info.created, sequence=2)
    with pytest.raises(NotLeader):
        await QueueReader(nc, subjects, engine, QueueStats()).run()
    assert await depth(js, subjects) == 2


@pytest.mark.parametrize("again", [1, 3, 5])
async def test_a_queue_that_lost_its_end_is_read_again(
    own_nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path, again: int
) -> None:
    """As after a crash of a server that had not synced. ``again``: messages that come then; they
    end before, at and behind the place of the last one that was taken."""
    async with connected(own_nats_server.url) as nc:
        await set_up(nc, subjects, Wanted())
        for number in range(2):
            await put(nc.jetstream(), subjects.queue("start"), job_id=f"old{number}", slots=1)
    store = own_nats_server.store_dir
    await own_nats_server.stop()
    shutil.copytree(store, tmp_path / "copy")
    await own_nats_server.start()
    engine = Deaf(most=100)
    async with connected(own_nats_server.url) as nc:
        for number in range(3):
            await put(nc.jetstream(), subjects.queue("start"), job_id=f"lost{number}", slots=1)
        reader = QueueReader(nc, subjects, engine, QueueStats())
        async with background(reader.run()):
            await until(lambda: len(engine.taken) == 5)
    await own_nats_server.stop()
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "copy", store)
    await own_nats_server.start()
    engine.bodies.clear()
    async with connected(own_nats_server.url) as nc:
        for number in range(again):
            await put(nc.jetstream(), subjects.queue("start"), job_id=f"new{number}", slots=1)
        reader = QueueReader(nc, subjects, engine, QueueStats())
        async with background(reader.run()):
            await until(lambda: len(engine.bodies) == 2 + again)
            # What was taken has the id that it had; a message in a lost one's place another.
            ids = [body["command_id"] for body in engine.bodies]
            assert len(set(engine.all_ids)) == 5 + again
            assert ids[:2] == engine.all_ids[:2]
            assert [body["job_id"] for body in engine.bodies[2:]] == [
                f"new{number}" for number in range(again)
            ]
            await put(nc.jetstream(), subjects.queue("start"), job_id="last", slots=1)
            await until(lambda: engine.bodies[-1]["job_id"] == "last")
        assert engine.ledger.state.queue is not None
        assert engine.ledger.state.queue.stream.endswith("+1")
