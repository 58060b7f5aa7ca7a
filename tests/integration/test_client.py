"""The typed client against leaders that answer late, wrong, twice or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.asking import NoAnswer, NoController, Patience
from events.client import SlotbusClient
from events.connection import ConnectionFailed
from events.errors import (
    CommandTimeout,
    Invalid,
    NotEnoughSlots,
    NotLeader,
    Overloaded,
    SlotbusError,
    TooLarge,
)
from events.messages import (
    ConfirmDeadReply,
    DrainReply,
    NodeReply,
    PlacedWorker,
    StartPipelineReq,
    StartReply,
    StopReply,
)
from events.queries import WorkerRow, WorkersReply
from events.states import NodeState
from events.subjects import Subjects
from events.waits import wait_for_start
from tests.support.leader import SILENCE, FakeLeader, eventually
from tests.support.nats import connected

QUICK = Patience(margin_s=0.5, absent_s=3.0, resend_s=0.3, query_s=2.0)

STARTED = StartReply(
    command_id="c-1",
    job_id="wordcount",
    run_id=1,
    workers=[PlacedWorker(worker_id="w1", node_id="n1", slots=2)],
)


class Notes(list[SlotbusError]):
    """The failed attempts that a client told of."""

    @property
    def codes(self) -> list[str]:
        return [error.code for error in self]


@pytest_asyncio.fixture
async def notes() -> Notes:
    return Notes()


@pytest_asyncio.fixture
async def bus(
    nats_server: EmbeddedServer, subjects: Subjects, notes: Notes
) -> AsyncIterator[SlotbusClient]:
    async with SlotbusClient.connect(
        nats_server.url, subjects.root, patience=QUICK, retrying=notes.append
    ) as client:
        yield client


@pytest_asyncio.fixture
async def leader(nc: Client, subjects: Subjects) -> FakeLeader:
    return FakeLeader(nc, subjects)


async def test_a_start_is_answered(bus: SlotbusClient, leader: FakeLeader, notes: Notes) -> None:
    await leader.will("cmd.start", STARTED)
    assert await bus.start(job_id="wordcount", slots=2, program={"a": 1}) == STARTED
    (body,) = leader.bodies("cmd.start")
    assert body["program"] == {"a": 1}
    assert body["wait_s"] == pytest.approx(wait_for_start(), abs=0.5)
    assert notes == []


async def test_a_request_object_goes_out_as_it_is(bus: SlotbusClient, leader: FakeLeader) -> None:
    await leader.will("cmd.start", STARTED)
    await bus.start(StartPipelineReq(job_id="wordcount", slots=2, command_id="mine", wait_s=0))
    (body,) = leader.bodies("cmd.start")
    assert (body["command_id"], body["wait_s"]) == ("mine", 0)


@pytest.mark.parametrize(
    "first",
    [NotLeader("not me"), CommandTimeout("not yet"), Overloaded("full"), SILENCE],
    ids=["not_leader", "timeout", "overloaded", "silence"],
)
async def test_what_may_go_better_is_asked_again_under_the_same_command_id(
    bus: SlotbusClient, leader: FakeLeader, notes: Notes, first: SlotbusError | str
) -> None:
    await leader.will("cmd.start", first, first, STARTED)
    assert await bus.start(job_id="wordcount", slots=2) == STARTED
    bodies = leader.bodies("cmd.start")
    assert len(bodies) == 3
    assert len({body["command_id"] for body in bodies}) == 1
    assert bodies[0]["wait_s"] > bodies[-1]["wait_s"]
    assert len(notes) == (0 if first == SILENCE else 2)


async def test_a_command_without_waiting_stays_one_when_repeated(
    bus: SlotbusClient, leader: FakeLeader
) -> None:
    await leader.will("cmd.start", NotLeader("not me"), STARTED)
    await bus.start(job_id="wordcount", slots=2, wait_s=0)
    assert [body["wait_s"] for body in leader.bodies("cmd.start")] == [0, 0]


async def test_a_controller_that_comes_late_is_waited_for(
    bus: SlotbusClient, leader: FakeLeader, notes: Notes
) -> None:
    starting = asyncio.create_task(bus.start(job_id="wordcount", slots=2))
    await eventually(lambda: len(notes) > 0)
    await leader.will("cmd.start", STARTED)
    assert await starting == STARTED
    assert set(notes.codes) == {"no_controller"}


async def test_without_a_controller_the_error_says_what_to_do(
    nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    patience = Patience(absent_s=0.2)
    async with SlotbusClient.connect(nats_server.url, subjects.root, patience=patience) as bus:
        with pytest.raises(NoController, match="is `slotbus controller` running") as caught:
            await bus.start(job_id="wordcount", slots=2)
        assert f"{subjects.root}.cmd.start" in caught.value.message
        assert str(caught.value.facts["command_id"]).startswith("c-")
        with pytest.raises(NoController):
            await bus.jobs()


async def test_a_leader_that_never_answers_is_given_up_in_time(
    bus: SlotbusClient, leader: FakeLeader
) -> None:
    await leader.will("cmd.start", SILENCE)
    began = asyncio.get_running_loop().time()
    with pytest.raises(NoAnswer, match="it may have been done, or not"):
        await bus.start(job_id="wordcount", slots=2, wait_s=0.5)
    assert 0.8 < asyncio.get_running_loop().time() - began < 2
    assert len(leader.bodies("cmd.start")) >= 3


async def test_the_end_of_the_wait_is_said_by_the_leader(
    bus: SlotbusClient, leader: FakeLeader, notes: Notes
) -> None:
    await leader.will("cmd.stop", CommandTimeout("the work goes on", command_id="c-9"))
    with pytest.raises(CommandTimeout, match="the work goes on"):
        await bus.stop("wordcount", wait_s=0.05)
    assert notes == []


async def test_the_last_word_of_a_short_wait_is_not_overtaken(
    bus: SlotbusClient, leader: FakeLeader, notes: Notes
) -> None:
    """Its end is that of an attempt, to the moment; the leader's answer comes a little later."""
    late = CommandTimeout("the work goes on", command_id="c-9")
    await leader.will("cmd.stop", late, after_s=QUICK.resend_s + 0.1)
    with pytest.raises(CommandTimeout, match="the work goes on"):
        await bus.stop("wordcount", wait_s=QUICK.resend_s)
    assert len(leader.bodies("cmd.stop")) == 1
    assert notes == []


async def test_a_refusal_is_the_last_word(bus: SlotbusClient, leader: FakeLeader) -> None:
    await leader.will("cmd.start", NotEnoughSlots(slots_needed=2, slots_free=4))
    with pytest.raises(NotEnoughSlots) as caught:
        await bus.start(job_id="wordcount", slots=6)
    assert (caught.value.slots_needed, caught.value.slots_free) == (2, 4)
    assert len(leader.asked) == 1


async def test_mistakes_are_found_before_anything_is_sent(
    bus: SlotbusClient, leader: FakeLeader
) -> None:
    await leader.will("cmd.start", STARTED)
    with pytest.raises(Invalid) as caught:
        await bus.start(job_id="wordcount", slots=0)
    assert caught.value.path == "$.slots"
    with pytest.raises(Invalid):
        await bus.start()
    with pytest.raises(Invalid):
        bus.events(job_id="a.>")
    assert leader.asked == []


async def test_a_request_too_large_for_the_server(bus: SlotbusClient, leader: FakeLeader) -> None:
    await leader.will("cmd.start", STARTED)
    with pytest.raises(TooLarge):
        await bus.start(StartPipelineReq(job_id="w", slots=1, program="x" * 2_000_000))


async def test_stop_and_cordon(bus: SlotbusClient, leader: FakeLeader) -> None:
    stopped = StopReply(command_id="c-2", job_id="wordcount", workers=["w1"], unconfirmed=["w2"])
    await leader.will("cmd.stop", stopped)
    await leader.will(
        "cmd.cordon", NodeReply(command_id="c", node_id="n1", state=NodeState.CORDONED)
    )
    await leader.will(
        "cmd.uncordon", NodeReply(command_id="c", node_id="n1", state=NodeState.READY)
    )
    assert await bus.stop("wordcount", force=True, grace_s=1) == stopped
    assert leader.bodies("cmd.stop")[0]["force"] is True
    assert (await bus.cordon("n1")).state is NodeState.CORDONED
    assert (await bus.uncordon("n1")).state is NodeState.READY


async def test_drain_and_confirm_dead(bus: SlotbusClient, leader: FakeLeader) -> None:
    drained = DrainReply(command_id="c", node_id="n1", state=NodeState.CORDONED, complete=True)
    dead = ConfirmDeadReply(command_id="c", node_id="n1", count=1, workers=["w1"])
    await leader.will("cmd.drain", drained)
    await leader.will("cmd.confirm_dead", dead)
    assert await bus.drain("n1", deadline_s=60, force=True) == drained
    (body,) = leader.bodies("cmd.drain")
    assert (body["deadline_s"], body["force"], body["wait_s"]) == (60, True, 70)
    assert await bus.confirm_dead("n1") == dead


def _row(worker_id: str) -> WorkerRow:
    return msgspec.convert(
        {
            "worker_id": worker_id,
            "job_id": "wordcount",
            "run_id": 1,
            "node_id": "n1",
            "slots": 1,
            "state": "running",
            "since": "2024-01-01T00:00:00Z",
        },
        WorkerRow,
    )


async def test_all_pages_of_a_query_are_read(bus: SlotbusClient, leader: FakeLeader) -> None:
    pages = {
        "": WorkersReply(workers=[_row("w1"), _row("w2")], next="2"),
        "2": WorkersReply(workers=[_row("w3")], next="3"),
        "3": WorkersReply(workers=[]),
    }
    await leader.will("query.workers", lambda body: pages[str(body["cursor"])])
    rows = await bus.workers("wordcount", include_ended=True)
    assert [row.worker_id for row in rows] == ["w1", "w2", "w3"]
    assert all(body["all"] for body in leader.bodies("query.workers"))


async def test_the_server_restarts_in_mid_command(
    own_nats_server: EmbeddedServer, notes: Notes
) -> None:
    subjects = Subjects()
    async with (
        connected(own_nats_server.url) as nc,
        SlotbusClient.connect(
            own_nats_server.url, patience=Patience(resend_s=0.5), retrying=notes.append
        ) as bus,
    ):
        leader = FakeLeader(nc, subjects)
        await leader.will("cmd.start", SILENCE, STARTED)
        starting = asyncio.create_task(bus.start(job_id="wordcount", slots=2))
        await eventually(lambda: len(leader.asked) == 1)
        await own_nats_server.stop()
        await eventually(lambda: len(notes) > 0)
        await own_nats_server.start()
        assert await starting == STARTED
    ids = {asked.body["command_id"] for asked in leader.asked}
    assert len(ids) == 1


async def test_no_server_at_all() -> None:
    with pytest.raises(ConnectionFailed, match="no NATS server listens there"):
        await SlotbusClient.connect("nats://127.0.0.1:1", connect_timeout_s=2)


async def test_connect_can_be_awaited(nats_server: EmbeddedServer, subjects: Subjects) -> None:
    bus = await SlotbusClient.connect(nats_server.url, subjects.root)
    await bus.close()
    with pytest.raises(SlotbusError, match="closed"):
        await bus.jobs()
