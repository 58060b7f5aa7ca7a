"""The inbox on a real server: what clients, agents and ``nats micro`` see of a leader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from controller import nodetraffic
from controller.embedded import EmbeddedServer
from controller.inbox import NatsInbox
from controller.nodetraffic import LOOK
from controller.outbox import InboxStats
from events.connection import flushed
from events.errors import (
    NotEnoughSlots,
    Overloaded,
    UnknownNode,
)
from events.messages import (
    PlacedWorker,
    StartPipelineReq,
    StartReply,
    StopReply,
    StopWorkersReq,
    UncordonReq,
)
from events.queries import QueryNodes, QueryWorkers, WorkerRow, WorkersReply
from events.states import WorkerState
from events.subjects import Subjects
from events.traffic import (
    FinishedReply,
    HeartbeatNodeReq,
    HeartbeatReply,
    RegisterNodeReq,
    RegisterReply,
    WorkerFinishedReq,
)
from schedulers.decide.messages import Inbound, Reply
from tests.support.nats import connected
from tests.support.offers import HeldEngine
from tests.support.waiting import DEADLINE_S, background, until

STARTED = StartReply(
    command_id="c-1",
    job_id="wordcount",
    run_id=1,
    workers=[PlacedWorker(worker_id="w-1", node_id="n1", slots=6)],
)


class Bench:
    """A leader's inbox over a held engine, with a client's connection beside it."""

    def __init__(self, leader: Client, client: Client, subjects: Subjects, max_open: int) -> None:
        self.engine = HeldEngine()
        self.leader = leader
        self.client = client
        self.subjects = subjects
        self.leads = True
        self.stats = InboxStats()
        self.latencies: list[str] = []
        self.inbox = NatsInbox(
            leader,
            subjects,
            self.engine,
            epoch=7,
            may_answer=lambda: self.leads,
            stats=self.stats,
            latency=lambda kind, _seconds: self.latencies.append(kind),
            max_open=max_open,
        )

    async def ask(self, subject: str, body: bytes | dict[str, object], **headers: str) -> Msg:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(subject, data, timeout=DEADLINE_S, headers=named or None)

    async def start(self, body: bytes | dict[str, object], **headers: str) -> Msg:
        return await self.ask(self.subjects.cmd("start"), body, **headers)


@asynccontextmanager
async def bench_on(
    server: EmbeddedServer, subjects: Subjects, max_open: int = 100
) -> AsyncIterator[Bench]:
    async with connected(server.url) as leader, connected(server.url) as client:
        bench = Bench(leader, client, subjects, max_open)
        await bench.inbox.open()
        try:
            yield bench
        finally:
            await bench.inbox.cut()


@pytest.fixture
async def bench(nats_server: EmbeddedServer, subjects: Subjects) -> AsyncIterator[Bench]:
    async with bench_on(nats_server, subjects) as made:
        yield made


def error_of(reply: Msg) -> dict[str, object]:
    assert reply.headers is not None
    body: dict[str, object] = json.loads(reply.data)["error"]
    assert reply.headers["Nats-Service-Error"] == str(body["message"])[:300]
    return body


# --- commands and queries ---------------------------------------------------------------


async def test_a_start_by_hand_is_answered_with_its_workers(bench: Bench) -> None:
    bench.engine.reply = lambda _message: STARTED
    reply = await bench.start({"job_id": "wordcount", "slots": 6})
    assert json.loads(reply.data) == {
        "command_id": "c-1",
        "job_id": "wordcount",
        "run_id": 1,
        "workers": [{"worker_id": "w-1", "node_id": "n1", "slots": 6}],
        "warnings": [],
    }
    assert not reply.headers
    message = (await bench.engine.next()).message
    assert message == StartPipelineReq(job_id="wordcount", slots=6)
    assert bench.stats.received["cmd-start"] == 1
    assert bench.latencies == ["cmd-start"]


async def test_every_command_and_query_reaches_the_engine(bench: Bench) -> None:
    def reply(message: Inbound) -> Reply:
        if isinstance(message, StopWorkersReq):
            return StopReply(command_id="c", job_id=message.job_id, workers=[])
        return WorkersReply(workers=[])

    bench.engine.reply = reply
    asked = [
        ("cmd.stop", {"job_id": "j"}, StopWorkersReq(job_id="j")),
        ("cmd.uncordon", {"node_id": "n"}, UncordonReq(node_id="n")),
        ("query.workers", {"job_id": "j", "limit": 5}, QueryWorkers(job_id="j", limit=5)),
        ("query.nodes", b"", QueryNodes()),
    ]
    for subject, body, _ in asked:
        await bench.ask(f"{bench.subjects.root}.{subject}", body)  # type: ignore[arg-type]
    assert [offer.message for offer in bench.engine.offers] == [wanted for *_, wanted in asked]


async def test_one_slow_command_holds_up_nobody(bench: Bench) -> None:
    async with background(bench.start({"job_id": "slow", "slots": 1})) as slow:
        held = await bench.engine.next()
        bench.engine.reply = lambda _message: STARTED
        await bench.start({"job_id": "fast", "slots": 1})
        assert not slow.done()
        assert held.answer is not None
        held.answer(STARTED)
        assert json.loads((await slow).data)["run_id"] == 1


async def test_refusals_are_bodies_and_headers(bench: Bench) -> None:
    bench.engine.reply = lambda _message: NotEnoughSlots(2, 4)
    reply = await bench.start({"job_id": "wordcount", "slots": 6})
    error = error_of(reply)
    assert (error["code"], error["slots_needed"], error["slots_free"]) == (
        "not_enough_slots", 2, 4,
    )  # fmt: skip
    assert reply.headers is not None
    assert reply.headers["Nats-Service-Error-Code"] == "409"
    assert bench.stats.errors["cmd-start", "not_enough_slots"] == 1
    assert bench.stats.invalid == 0


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"job_id": "j"}', "$"),
        (b'{"job_id": "j", "slots": 0}', "$.slots"),
        (b'{"job_id": "j", "slots": 1e999}', "$"),
        (b'{"job_id": "a b", "slots": 1}', "$.job_id"),
        (b"[1]", "$"),
        (b"\xff\xfe", "$"),
        (b"[" * 100_000, "$"),
        (b'{"job_id": "j", "slots": 1, "env_vars": {"SLOTBUS_X": "1"}}', "$.env_vars['SLOTBUS_X']"),
    ],
)
async def test_what_cant_be_read_is_invalid_and_harms_nobody(
    bench: Bench, body: bytes, path: str
) -> None:
    error = error_of(await bench.start(body))
    assert error["code"] == "invalid"
    if path != "$":
        assert error["path"] == path
    assert bench.stats.invalid == 1
    bench.engine.reply = lambda _message: STARTED
    assert not (await bench.start({"job_id": "j", "slots": 1})).headers


async def test_unknown_fields_are_named_in_replies_and_refusals(bench: Bench) -> None:
    bench.engine.reply = lambda _message: STARTED
    body = {"job_id": "j", "slots": 1, "scheduler_config": {"sprad": "even"}}
    reply = json.loads((await bench.start(body)).data)
    assert reply["warnings"] == ["unknown field $.scheduler_config.sprad, did you mean spread?"]
    refused = await bench.start({"job_id": "j", "slot": 1})
    assert "slots" in str(error_of(refused)["message"])
    assert json.loads(refused.data)["warnings"] == ["unknown field $.slot, did you mean slots?"]


async def test_the_command_id_comes_from_the_body_or_the_header(bench: Bench) -> None:
    bench.engine.reply = lambda _message: STARTED
    body: dict[str, object] = {"job_id": "j", "slots": 1}
    await bench.start(body, Nats_Msg_Id="from-header")
    await bench.start({**body, "command_id": "from-body"}, Nats_Msg_Id="from-header")
    await bench.start(body)
    error = error_of(await bench.start(body, Nats_Msg_Id="not an id"))
    assert (error["code"], error["path"]) == ("invalid", "$.command_id")
    ids = [getattr(offer.message, "command_id", "") for offer in bench.engine.offers]
    assert ids == ["from-header", "from-body", None]


async def test_a_command_without_reply_subject_runs_all_the_same(bench: Bench) -> None:
    bench.engine.reply = lambda _message: STARTED
    await bench.client.publish(bench.subjects.cmd("start"), b'{"job_id": "j", "slots": 1}')
    await bench.engine.next()
    await until(lambda: bench.stats.dropped["no_reply_subject"] == 1)
    assert bench.stats.faults == 0


async def test_a_full_engine_says_overloaded(bench: Bench) -> None:
    bench.engine.refuse = Overloaded("full")
    assert error_of(await bench.start({"job_id": "j", "slots": 1}))["code"] == "overloaded"


async def test_too_many_open_commands_are_overloaded(
    nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with (
        bench_on(nats_server, subjects, max_open=1) as bench,
        background(bench.start({"job_id": "a", "slots": 1})),
    ):
        await bench.engine.next()
        error = error_of(await bench.start({"job_id": "b", "slots": 1}))
        assert (error["code"], error["limit"]) == ("overloaded", 1)


async def test_a_fault_of_ours_is_an_answer_and_counted(bench: Bench) -> None:
    bench.engine.refuse = ZeroDivisionError("boom")
    error = error_of(await bench.start({"job_id": "j", "slots": 1}))
    assert error["code"] == "internal"
    assert "boom" in str(error["message"])
    assert bench.stats.faults == 1


async def test_an_answer_over_the_servers_limit_is_too_large(bench: Bench) -> None:
    row = WorkerRow(
        worker_id="w" * 128,
        job_id="j",
        run_id=1,
        node_id="n",
        slots=1,
        state=WorkerState.RUNNING,
        since=datetime(2026, 1, 1, tzinfo=UTC),
    )
    bench.engine.reply = lambda _message: WorkersReply(workers=[row] * 5_000)
    error = error_of(await bench.ask(bench.subjects.query("workers"), b""))
    assert error["code"] == "too_large"


# --- the services framework -------------------------------------------------------------


async def test_nats_micro_sees_the_service_and_its_endpoints(bench: Bench) -> None:
    await bench.start(b"[]")
    bench.engine.reply = lambda _message: STARTED
    await bench.start({"job_id": "j", "slots": 1})
    replies = bench.client.new_inbox()
    subscription = await bench.client.subscribe(replies)
    await bench.client.publish("$SRV.STATS.slotbus", b"", reply=replies)
    while True:
        stats = json.loads((await subscription.next_msg(DEADLINE_S)).data)
        if stats["metadata"]["root"] == bench.subjects.root:
            break
    assert stats["metadata"]["epoch"] == "7"
    by_name = {endpoint["name"]: endpoint for endpoint in stats["endpoints"]}
    assert set(by_name) == {
        "cmd-start", "cmd-stop", "cmd-cordon", "cmd-uncordon", "cmd-drain",
        "cmd-confirm_dead", "cmd-rebuild",
        "query-workers", "query-jobs", "query-nodes", "query-shortage",
        "query-worker", "query-job", "query-node", "query-leader",
    }  # fmt: skip
    start = by_name["cmd-start"]
    assert start["subject"] == bench.subjects.cmd("start")
    assert start["queue_group"] == f"{bench.subjects.token}-7"
    assert (start["num_requests"], start["data"]) == (2, {"invalid": 1})


# --- node traffic -----------------------------------------------------------------------


async def test_node_traffic_takes_its_node_from_the_subject(bench: Bench) -> None:
    def reply(message: Inbound) -> Reply:
        if isinstance(message, RegisterNodeReq):
            return RegisterReply(epoch=7)
        if not isinstance(message, HeartbeatNodeReq):
            return FinishedReply(epoch=7)
        return HeartbeatReply(epoch=7)

    bench.engine.reply = reply
    node = bench.subjects.node
    registered = await bench.ask(node("n1", "register"), {"task_slots": 4, "incarnation": "i1"})
    assert json.loads(registered.data) == {"epoch": 7, "heartbeat_s": 5.0, "expiry_s": 30.0}
    await bench.ask(
        node("n1", "heartbeat"), {"incarnation": "i1", "seq": 3, "epoch": 7, "digest": "d"}
    )
    finished = {"worker_id": "w", "job_id": "j", "run_id": 1, "slots": 1, "exit_code": 0}
    await bench.ask(node("n1", "finished"), finished)
    assert [offer.message for offer in bench.engine.offers] == [
        RegisterNodeReq(node_id="n1", task_slots=4, incarnation="i1"),
        HeartbeatNodeReq(node_id="n1", incarnation="i1", seq=3, epoch=7, digest="d"),
        WorkerFinishedReq(node_id="n1", worker_id="w", job_id="j", run_id=1, slots=1, exit_code=0),
    ]


async def test_heartbeats_need_no_reply_subject(bench: Bench) -> None:
    subject = bench.subjects.node("n1", "heartbeat")
    await bench.client.publish(subject, b'{"incarnation": "i1"}')
    offered = await bench.engine.next()
    assert offered.answer is None
    await bench.client.publish(subject, b"not json")
    await until(lambda: bench.stats.errors["heartbeat", "invalid"] == 1)
    await bench.client.publish(subject, b'{"incarnation": "i1", "seq": 2}')
    assert (await bench.engine.next(2)).message == HeartbeatNodeReq(
        node_id="n1", incarnation="i1", seq=2
    )


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
async def test_a_heartbeat_nested_too_deep_is_no_fault_of_ours(
    bench: Bench, opening: bytes
) -> None:
    subject = bench.subjects.node("n1", "heartbeat")
    assert error_of(await bench.client.request(subject, opening * 100_000))["code"] == "invalid"
    assert bench.stats.faults == 0


async def test_a_node_that_is_not_known_is_told(bench: Bench) -> None:
    bench.engine.reply = lambda _message: UnknownNode("register first")
    reply = await bench.ask(bench.subjects.node("n1", "heartbeat"), {"incarnation": "i1"})
    assert error_of(reply)["code"] == "unknown_node"


async def test_a_body_that_contradicts_its_subject_is_invalid(bench: Bench) -> None:
    for verb in ("heartbeat", "register"):
        body = {"incarnation": "i1", "node_id": "other", "task_slots": 1}
        reply = await bench.ask(bench.subjects.node("n1", verb), body)
        assert error_of(reply)["path"] == "$.node_id"
    bench.engine.refuse = ZeroDivisionError("boom")
    reply = await bench.ask(bench.subjects.node("n1", "heartbeat"), {"incarnation": "i1"})
    assert error_of(reply)["code"] == "internal"
    assert bench.stats.faults == 1


async def crowd(bench: Bench, nodes: list[str]) -> None:
    """As many heartbeats of each as it takes to notice that the engine is crowded, and then
    a hundred more."""
    bench.engine.waiting = 1_000_000
    count = LOOK // len(nodes) + 100
    for seq in range(count):
        for node in nodes:
            body = b'{"incarnation": "i1", "seq": %d}' % seq
            await bench.client.publish(bench.subjects.node(node, "heartbeat"), body)
    await flushed(bench.client)
    await until(lambda: bench.stats.received["heartbeat"] == count * len(nodes))


def beats_of(bench: Bench) -> list[HeartbeatNodeReq]:
    offered = (offer.message for offer in bench.engine.offers)
    return [message for message in offered if isinstance(message, HeartbeatNodeReq)]


async def test_a_crowded_engine_holds_back_nodes_and_not_commands(bench: Bench) -> None:
    await crowd(bench, ["n1"])
    bench.engine.reply = lambda _message: STARTED
    await bench.start({"job_id": "j", "slots": 1})
    assert len(beats_of(bench)) == LOOK


async def test_what_is_held_back_is_the_newest_of_each_node(bench: Bench) -> None:
    await crowd(bench, ["n1", "n2"])
    assert len(beats_of(bench)) == LOOK
    assert bench.stats.dropped["superseded"] == 198
    bench.engine.waiting = 0
    await until(lambda: len(beats_of(bench)) == LOOK + 2)
    newest = LOOK // 2 + 99
    assert [(b.node_id, b.seq) for b in beats_of(bench)[-2:]] == [("n1", newest), ("n2", newest)]


async def test_more_nodes_than_can_be_held_back_are_told_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodetraffic, "HELD_MOST", 1)
    await crowd(bench, ["n1"])
    subject = bench.subjects.node("n2", "register")
    reply = await bench.ask(subject, {"incarnation": "i1", "task_slots": 1})
    assert error_of(reply)["code"] == "overloaded"


# --- the end of a leadership ------------------------------------------------------------


async def test_nothing_is_answered_once_the_lease_is_over(bench: Bench) -> None:
    async with background(bench.start({"job_id": "j", "slots": 1})) as asking:
        held = await bench.engine.next()
        bench.leads = False
        assert held.answer is not None
        held.answer(STARTED)
        await until(lambda: bench.stats.dropped["lease_over"] == 1)
        assert not asking.done()


async def test_a_stop_lets_open_commands_end_and_sends_others_away(bench: Bench) -> None:
    body: dict[str, object] = {"job_id": "j", "slots": 1}
    async with background(bench.start(body)) as first:
        held = await bench.engine.next()
        async with background(bench.inbox.close(DEADLINE_S)) as closing:
            refused: dict[str, object] = {}

            async def turned_away() -> None:
                while not refused:
                    with suppress(NatsTimeout):
                        reply = await bench.client.request(
                            bench.subjects.cmd("start"), json.dumps(body).encode(), timeout=0.2
                        )
                        refused.update(error_of(reply))

            await asyncio.wait_for(turned_away(), DEADLINE_S)
            assert refused["code"] == "not_leader"
            assert not first.done()
            assert not closing.done()
            assert held.answer is not None
            held.answer(STARTED)
            assert json.loads((await first).data)["run_id"] == 1
            await closing
    with pytest.raises(NoRespondersError):
        await bench.start(body)


async def test_what_comes_while_open_commands_end_is_served(bench: Bench) -> None:
    body: dict[str, object] = {"job_id": "j", "slots": 1}
    async with background(bench.start(body)) as first:
        held = await bench.engine.next()
        async with background(bench.inbox.settle(DEADLINE_S)) as settling:
            bench.engine.reply = lambda _message: STARTED
            assert json.loads((await bench.start(body)).data)["run_id"] == 1
            assert not settling.done()
            assert held.answer is not None
            held.answer(STARTED)
            await asyncio.wait_for(settling, DEADLINE_S)
            await first
    await bench.inbox.finish(0.01)
    with pytest.raises(NoRespondersError):  # and not left without an answer
        await bench.start(body)


async def test_a_command_that_outlasts_the_grace_is_sent_to_the_next_leader(bench: Bench) -> None:
    async with background(bench.start({"job_id": "j", "slots": 1})) as asking:
        held = await bench.engine.next()
        await bench.inbox.close(0.01)
        assert error_of(await asking)["code"] == "not_leader"
        assert held.answer is not None
        held.answer(STARTED)  # too late, and nobody is told twice


async def test_closing_without_a_server_takes_no_longer_than_it_must(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with bench_on(own_nats_server, subjects) as bench:
        await own_nats_server.stop()
        await asyncio.wait_for(bench.inbox.close(0.01), 10)
        await own_nats_server.start()
        await until(lambda: bench.leader.is_connected and bench.client.is_connected)
