"""Output of a job: the stored end joined to what is written now, by offsets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller.embedded import EmbeddedServer
from events.client import SlotbusClient
from events.errors import SlotbusError, UnknownJob
from events.queries import JobRow, JobsReply, WorkerRow, WorkersReply
from events.subjects import Subjects
from events.traffic import AgentLogs, AgentLogsReply, LogLines
from tests.support.leader import FakeLeader


class Node:
    """An agent's side of output: the files it keeps, and the lines it sends."""

    def __init__(self, nc: Client, subjects: Subjects) -> None:
        self._nc = nc
        self._subjects = subjects
        self.files: dict[str, str] = {}
        self.asked = asyncio.Event()

    async def serve(self, node_id: str) -> None:
        await self._nc.subscribe(self._subjects.agent(node_id, "logs"), cb=self._on_ask)
        await self._nc.flush()

    async def _on_ask(self, message: Msg) -> None:
        question = msgspec.json.decode(message.data, type=AgentLogs)
        text = self.files.get(question.worker_id, "")
        reply = AgentLogsReply(text=text[-question.max_bytes :], offset=len(text))
        await self._nc.publish(message.reply, msgspec.json.encode(reply))
        self.asked.set()

    def write(self, worker_id: str, text: str) -> None:
        self.files[worker_id] = self.files.get(worker_id, "") + text

    async def send(self, worker_id: str, text: str, *, run_id: int = 1) -> None:
        """Publishes a piece that ends where the file ends."""
        piece = LogLines(
            worker_id=worker_id,
            job_id="j",
            run_id=run_id,
            offset=len(self.files[worker_id]),
            text=text,
        )
        await self._nc.publish(self._subjects.log("j", worker_id), msgspec.json.encode(piece))


def worker(worker_id: str, *, run_id: int = 1, node_id: str = "n1") -> WorkerRow:
    return msgspec.convert(
        {
            "worker_id": worker_id,
            "job_id": "j",
            "run_id": run_id,
            "node_id": node_id,
            "slots": 1,
            "state": "running",
            "since": "2024-01-01T00:00:00Z",
        },
        WorkerRow,
    )


def job(state: str, run_id: int = 1) -> JobRow:
    return msgspec.convert(
        {
            "job_id": "j",
            "name": "j",
            "run_id": run_id,
            "state": state,
            "slots": 1,
            "workers": 1,
            "since": "2024-01-01T00:00:00Z",
        },
        JobRow,
    )


class Cluster:
    """What the leader says about job ``j``; tests change it as they go."""

    def __init__(self) -> None:
        self.jobs = [job("running")]
        self.workers = [worker("w1")]

    async def serve(self, leader: FakeLeader) -> None:
        await leader.will("query.jobs", lambda _body: JobsReply(jobs=self.jobs))
        await leader.will(
            "query.workers",
            lambda body: WorkersReply(
                workers=[row for row in self.workers if body["run_id"] == row.run_id]
            ),
        )


@pytest_asyncio.fixture
async def cluster(nc: Client, subjects: Subjects) -> Cluster:
    made = Cluster()
    await made.serve(FakeLeader(nc, subjects))
    return made


@pytest_asyncio.fixture
async def node(nc: Client, subjects: Subjects) -> Node:
    made = Node(nc, subjects)
    await made.serve("n1")
    return made


@pytest_asyncio.fixture
async def bus(nats_server: EmbeddedServer, subjects: Subjects) -> AsyncIterator[SlotbusClient]:
    async with SlotbusClient.connect(nats_server.url, subjects.root) as client:
        yield client


async def test_the_stored_end_of_every_worker(
    bus: SlotbusClient, cluster: Cluster, node: Node
) -> None:
    cluster.workers = [worker("w1"), worker("w2"), worker("w3"), worker("old", run_id=7)]
    node.write("w1", "one\ntwo\n")
    node.write("w2", "three\n")
    pieces = [piece async for piece in bus.logs("j")]
    assert [(piece.worker_id, piece.text) for piece in pieces] == [
        ("w1", "one\ntwo\n"),
        ("w2", "three\n"),
    ]
    assert [piece.text async for piece in bus.logs("j", run_id=7)] == []
    assert [piece.text async for piece in bus.logs("j", tail_bytes=4)] == ["two\n", "ree\n"]


async def test_a_silent_node_is_named_and_the_others_are_shown(
    bus: SlotbusClient, cluster: Cluster, node: Node
) -> None:
    cluster.workers = [worker("gone", node_id="n9"), worker("w1")]
    node.write("w1", "here\n")
    missing: list[tuple[str, str]] = []

    def note(row: WorkerRow, error: SlotbusError) -> None:
        missing.append((row.worker_id, error.message))

    assert [piece.text async for piece in bus.logs("j", missing=note)] == ["here\n"]
    ((worker_id, message),) = missing
    assert worker_id == "gone"
    assert "node n9 does not answer" in message


async def test_an_unknown_job(bus: SlotbusClient, cluster: Cluster) -> None:
    cluster.jobs = []
    with pytest.raises(UnknownJob):
        await anext(bus.logs("j"))


async def test_live_lines_join_the_stored_end_without_gap_or_repetition(
    bus: SlotbusClient, cluster: Cluster, node: Node
) -> None:
    node.write("w1", "a\nb\n")
    text = ""
    async with contextlib.aclosing(bus.logs("j", follow=True)) as pieces:
        text += (await anext(pieces)).text
        await node.send("w1", "b\n")  # stored already
        node.write("w1", "c\n")
        await node.send("w1", "b\nc\n")  # half of it is stored already
        text += (await anext(pieces)).text
        node.write("w1", "d\n")  # this one is lost on its way
        node.write("w1", "e\n")
        await node.send("w1", "e\n")
        text += (await anext(pieces)).text
        node.write("w1", "f\n")
        await node.send("w1", "f\n")
        text += (await anext(pieces)).text
    assert text == "a\nb\nc\nd\ne\nf\n"


async def test_text_that_was_no_utf8_is_not_cut(
    bus: SlotbusClient, cluster: Cluster, node: Node, nc: Client, subjects: Subjects
) -> None:
    """One bad byte is three bytes long once it is replaced, so sizes can't be trusted."""
    node.write("w1", "ab")
    got = ""
    async with contextlib.aclosing(bus.logs("j", follow=True)) as pieces:
        got += (await anext(pieces)).text
        for offset, text in ((3, "c"), (4, "\ufffd"), (6, "\ufffdd")):
            piece = LogLines(worker_id="w1", job_id="j", run_id=1, offset=offset, text=text)
            await nc.publish(subjects.log("j", "w1"), msgspec.json.encode(piece))
            got += (await anext(pieces)).text
    assert got == "abc\ufffd\ufffdd"


async def test_following_takes_up_workers_that_start_later(
    bus: SlotbusClient, cluster: Cluster, node: Node
) -> None:
    node.write("w1", "first\n")
    async with contextlib.aclosing(bus.logs("j", follow=True)) as pieces:
        assert (await anext(pieces)).text == "first\n"
        cluster.jobs = [job("running", run_id=2)]
        cluster.workers = [worker("w2", run_id=2)]
        node.write("w2", "early\n")
        node.write("w2", "late\n")
        await node.send("w2", "late\n", run_id=2)
        piece = await anext(pieces)
        assert (piece.worker_id, piece.run_id, piece.text) == ("w2", 2, "early\nlate\n")


async def test_following_ends_with_the_job_and_shows_its_last_words(
    bus: SlotbusClient, cluster: Cluster, node: Node
) -> None:
    node.write("w1", "begin\n")
    got: list[str] = []
    async with asyncio.timeout(20):
        async for piece in bus.logs("j", follow=True):
            got.append(piece.text)
            if len(got) == 1:
                node.write("w1", "last words\n")  # never sent: the agent was busy
                cluster.jobs = [job("finished")]
    assert got == ["begin\n", "last words\n"]


async def test_what_others_publish_there_does_no_harm(
    bus: SlotbusClient, cluster: Cluster, node: Node, nc: Client, subjects: Subjects
) -> None:
    node.write("w1", "x")
    async with contextlib.aclosing(bus.logs("j", follow=True)) as pieces:
        assert (await anext(pieces)).text == "x"
        await nc.publish(subjects.log("j", "w1"), b"\xff not ours")
        node.write("w1", "y")
        await node.send("w1", "y")
        assert (await anext(pieces)).text == "y"
