"""Whatever is sent to a controller or an agent: a coded answer, a count, and nothing broken."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.errors import MaxPayloadError

from controller.app import ControllerInfo
from controller.embedded import EmbeddedServer
from events.connection import flushed
from events.errors import CODES
from events.subjects import Subjects
from schedulers.node.config import AgentConfig
from tests.support.agents import NodeLeader, running
from tests.support.auditing import audit_server
from tests.support.controllers import Caller, config_for, controller, page, samples
from tests.support.waiting import DEADLINE_S, until

DEEP = 100_000
HUGE = b"1" + b"0" * 5_000
UNREADABLE = {
    "not JSON": b"not json",
    "cut off": b'{"job_id": "j"',
    "two of them": b"{}{}",
    "a list": b"[1]",
    "a number": b"1",
    "null": b"null",
    "lists in lists": b"[" * DEEP,
    "closed lists in lists": b"[" * DEEP + b"]" * DEEP,
    "objects in objects": b'{"a":' * DEEP,
    "bad UTF-8": b'{"job_id": "\xff\xfe"}',
    "null bytes": b"\0" * 100,
    "NaN": b'{"wait_s": NaN}',
    "Infinity": b'{"wait_s": Infinity}',
    "a lone surrogate": b'{"job_id": "\\ud800"}',
    "a huge number": b'{"slots": ' + HUGE + b"}",
}
FIELDS: dict[str, list[bytes]] = {
    "job_id": [b'""', b'"a.b"', b'"a b"', b'"*"', b'">"', b'"a\\u0000"', b'"\\u00e9"', b"1"],
    "slots": [b"0", b"-1", b"1.5", b"true", b'"6"', b"null", b"9223372036854775808", b"1e999"],
    "run_id": [b"0", b"-1", b"9223372036854775808", b'"1"'],
    "wait_s": [b"-1", b"1e999", b"86401", b'"1"'],
    "env_vars": [
        b'{"SLOTBUS_X": "1"}', b'{"1A": "x"}', b'{"A-B": "x"}', b'{"": "x"}', b'{"A": "\\u0000"}',
        b'{"A": 1}', b"[]",
    ],
    "name": [b'"\\u0000"', b"1"],
    "program": [b'"\\udfff"', b"[" * 1_000 + b"]" * 1_000, HUGE],
    "scheduler_config": [b'{"command": []}', b'{"command": ""}', b'{"spread": "x"}', b"1"],
    "command_id": [b'"a b"', b'""', b'"' + b"x" * 300 + b'"'],
}  # fmt: skip


@pytest.fixture
async def leader(
    nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> AsyncIterator[ControllerInfo]:
    """A controller over nodes; its log is audited at the end."""
    config = config_for(nats_server.url, subjects, tmp_path / "state", scheduler="node")
    async with controller(config) as made:
        yield await made.leading()
    assert await audit_server(nats_server.url, subjects.root) > 0


@pytest.fixture
def caller(nc: Client, subjects: Subjects) -> Caller:
    return Caller(nc, subjects)


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Any:
    """Nothing that is sent is worth a traceback."""
    yield
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed, printed
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR]


async def answered(nc: Client, subject: str, body: bytes, **headers: str) -> dict[str, Any]:
    """The body of the reply."""
    reply = await nc.request(subject, body, timeout=DEADLINE_S, headers=headers or None)
    found: dict[str, Any] = json.loads(reply.data)
    return found


async def refused(nc: Client, subject: str, body: bytes, **headers: str) -> dict[str, Any]:
    """The error in the reply, whose code is one that is documented."""
    error = (await answered(nc, subject, body, **headers)).get("error")
    assert error is not None, (subject, body[:80])
    assert error["code"] in CODES
    assert error["message"]
    found: dict[str, Any] = error
    return found


def asked_subjects(subjects: Subjects) -> list[str]:
    """All on which a leader listens."""
    return [
        *(subjects.cmd(verb) for verb in ("start", "stop", "cordon", "uncordon")),
        *(
            subjects.query(what)
            for what in ("workers", "jobs", "nodes", "worker", "job", "node", "leader")
        ),
        *(subjects.node("n1", verb) for verb in ("register", "heartbeat", "finished")),
    ]


async def check_healthy(info: ControllerInfo, caller: Caller) -> dict[str, float]:
    """It answers still, found no fault of its own and no broken law; its metrics."""
    assert "now" in await caller.query("leader")
    assert await page(info, "/healthz") == "ok"
    series = samples(await page(info, "/metrics"))
    assert series["slotbus_handler_faults_total"] == 0
    assert series["slotbus_loop_errors_total"] == 0
    assert not [n for name, n in series.items() if "law_violations_total" in name and n]
    return series


@pytest.mark.parametrize("what", UNREADABLE)
async def test_what_no_message_can_be_is_invalid_on_every_subject(
    what: str, leader: ControllerInfo, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    everywhere = asked_subjects(subjects)
    takes_anything = {subjects.query("leader"), subjects.query("workers"), subjects.query("jobs"),
                      subjects.query("nodes")}  # fmt: skip
    refusals = 0
    for subject in everywhere:
        reply = await answered(nc, subject, UNREADABLE[what])
        if "error" in reply:
            assert reply["error"]["code"] == "invalid", (subject, reply)
            refusals += 1
        else:
            # A well-formed object whose odd field this question does not have.
            assert subject in takes_anything, (subject, reply)
            assert UNREADABLE[what].startswith(b"{")
        await nc.publish(subject, UNREADABLE[what])  # nobody to answer: counted all the same
    await flushed(nc)
    counted = 0.0
    async with asyncio.timeout(DEADLINE_S):
        while counted < 2 * refusals:
            counted = (await check_healthy(leader, caller))["slotbus_invalid_messages_total"]
    assert counted == 2 * refusals


async def test_a_start_with_any_one_bad_field_is_refused_by_its_path(
    leader: ControllerInfo, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    sent = 0
    for name, values in FIELDS.items():
        for value in values:
            fields = {b"job_id": b'"j"', b"slots": b"1"} | {name.encode(): value}
            body = b"{" + b",".join(b'"%s":%s' % pair for pair in fields.items()) + b"}"
            error = await refused(nc, subjects.cmd("start"), body)
            assert error["code"] == "invalid", (name, value[:40], error)
            assert error["path"] == "$" or name in error["path"], (name, value[:40], error)
            sent += 1
    series = await check_healthy(leader, caller)
    assert series["slotbus_invalid_messages_total"] == sent
    assert (await caller.query("jobs"))["jobs"] == []


async def test_absurd_and_valid_is_an_outcome(
    leader: ControllerInfo, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    for slots in (1, 10**6, 2**63 - 1):
        body = b'{"job_id": "j", "slots": %d}' % slots
        error = await refused(nc, subjects.cmd("start"), body)
        assert (error["code"], error["slots_needed"]) == ("not_enough_slots", slots)
    big = msgspec.json.encode({"job_id": "j", "slots": 1, "env_vars": {"A": "x" * 140_000}})
    assert (await refused(nc, subjects.cmd("start"), big))["code"] == "too_large"
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    fine = msgspec.json.encode({"job_id": "j", "slots": 1, "program": [deep, 10**60, 1e308]})
    assert (await refused(nc, subjects.cmd("start"), fine))["code"] == "not_enough_slots"
    await check_healthy(leader, caller)


async def test_misspelt_fields_are_named_with_the_nearest(
    leader: ControllerInfo, nc: Client, subjects: Subjects
) -> None:
    body = b'{"job_id": "j", "slots": 1, "env_var": {}, "scheduler_config": {"selektor": {}}}'
    reply = await answered(nc, subjects.cmd("start"), body)
    assert reply["warnings"] == [
        "unknown field $.env_var, did you mean env_vars?",
        "unknown field $.scheduler_config.selektor, did you mean selector?",
    ]
    many = {f"unknown-{number}": 1 for number in range(1_000)}
    reply = await answered(nc, subjects.cmd("stop"), msgspec.json.encode({"job_id": "j"} | many))
    assert len(reply["warnings"]) == 20


async def test_the_header_is_held_to_the_same_rules(
    leader: ControllerInfo, nc: Client, subjects: Subjects
) -> None:
    for given in ("a b", "a.b", "x" * 300, "*", "é"):
        headers = {"Nats-Msg-Id": given}
        error = await refused(nc, subjects.cmd("stop"), b'{"job_id": "j"}', **headers)
        assert (error["code"], error["path"]) == ("invalid", "$.command_id")


async def test_bodies_at_and_over_what_the_server_carries(
    leader: ControllerInfo, caller: Caller, nats_server: EmbeddedServer, nc: Client,
    subjects: Subjects,
) -> None:  # fmt: skip
    most = nc.max_payload
    padding = most - len(b'{"job_id":"j","slots":1,"padding":""}')
    full = b'{"job_id":"j","slots":1,"padding":"' + b"x" * padding + b'"}'
    assert len(full) == most
    reply = await answered(nc, subjects.cmd("start"), full)
    assert reply["error"]["code"] == "not_enough_slots"
    assert reply["warnings"] == ["unknown field $.padding"]
    with pytest.raises(MaxPayloadError):
        await nc.publish(subjects.cmd("start"), full + b" ")
    await send_raw(nats_server, subjects.cmd("start"), most + 1)
    await check_healthy(leader, caller)


async def send_raw(server: EmbeddedServer, subject: str, size: int) -> None:
    """A client that ignores the limit: the server ends its connection."""
    host, port = server.url.removeprefix("nats://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(DEADLINE_S):
        await reader.readline()
        writer.write(b'CONNECT {"verbose":false}\r\nPUB %s %d\r\n' % (subject.encode(), size))
        assert b"Maximum Payload" in await reader.readline()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("token", ["n:1", "é", "x" * 129, "x" * 300, "n\x01", "$SYS", "n'1", "{}"])
async def test_subjects_with_odd_tokens_are_refused(
    token: str, leader: ControllerInfo, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    body = b'{"task_slots": 4, "incarnation": "i1"}'
    for verb in ("register", "heartbeat", "finished"):
        error = await refused(nc, f"{subjects.root}.node.{token}.{verb}", body)
        assert error["code"] == "invalid"
    await check_healthy(leader, caller)
    assert (await caller.query("nodes"))["nodes"] == []


async def test_what_a_node_says_of_itself_is_bounded(
    leader: ControllerInfo, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    subject = subjects.node("n1", "register")
    fine: dict[str, object] = {"task_slots": 4, "incarnation": "i1", "workers": []}
    for field in (
        {"labels": {"a": "x" * 70_000}}, {"addr": "x" * 2_000}, {"version": "x" * 2_000},
        {"machine_id": "x" * 2_000},
    ):  # fmt: skip
        error = await refused(nc, subject, msgspec.json.encode(fine | field))
        assert error["code"] == "too_large"
    for slots in (-1, 1_000_001, 2**63):
        error = await refused(nc, subject, msgspec.json.encode(fine | {"task_slots": slots}))
        assert (error["code"], error["path"]) == ("invalid", "$.task_slots")
    assert "epoch" in await answered(nc, subject, msgspec.json.encode(fine))
    ended = {
        "worker_id": "w", "job_id": "j", "run_id": 1, "slots": 1, "reason": "x" * 900_000,
        "exit_code": 10**40,
    }  # fmt: skip
    finished = subjects.node("n1", "finished")
    assert "epoch" in await answered(nc, finished, msgspec.json.encode(ended))
    await check_healthy(leader, caller)


async def test_a_long_reason_is_shortened_in_the_log_and_the_end_is_taken(
    leader: ControllerInfo, caller: Caller, nc: Client, subjects: Subjects
) -> None:
    async def taken(message: Any) -> None:
        verb = message.subject.rpartition(".")[2]
        body: dict[str, object] = {"pid": 1, "seq": 1}
        if verb == "inventory":
            order = json.loads(message.data)
            body = {"incarnation": "i1", "seq": 0, "epoch": order["epoch"], "workers": []}
        await message.respond(json.dumps(body).encode())

    subscription = await nc.subscribe(subjects.agent("n1", "*"), cb=taken)
    register = b'{"task_slots": 4, "incarnation": "i1", "workers": []}'
    await answered(nc, subjects.node("n1", "register"), register)
    started = await caller.cmd("start", job_id="j", slots=1)
    (worker,) = started["workers"]
    ended = {
        "worker_id": worker["worker_id"], "job_id": "j", "run_id": 1, "slots": 1,
        "exit_code": 1, "reason": "é" * 400_000,
    }  # fmt: skip
    await answered(
        nc, subjects.node("n1", "finished"), json.dumps(ended, ensure_ascii=False).encode()
    )
    (row,) = await caller.workers(all=True)
    assert row["state"] == "failed"
    assert len(row["reason"]) == 500
    await subscription.unsubscribe()
    await check_healthy(leader, caller)


# --- agents -----------------------------------------------------------------------------


@pytest.mark.parametrize("what", UNREADABLE)
async def test_an_agent_refuses_what_no_order_can_be(
    what: str, agent_config: AgentConfig, node_leader: NodeLeader, nc: Client, subjects: Subjects
) -> None:
    node_id = str(agent_config.node_id)
    async with running(agent_config) as agent:
        refusals = 0
        for verb in ("start", "stop", "inventory", "logs", "about"):
            reply = await answered(nc, subjects.agent(node_id, verb), UNREADABLE[what])
            if "error" in reply:
                assert reply["error"]["code"] == "invalid", reply
                refusals += 1
            else:
                assert verb == "about", reply
            await nc.publish(subjects.agent(node_id, verb), UNREADABLE[what])
        error = await refused(nc, subjects.agent(node_id, "no-such-verb"), b"{}")
        assert error["code"] == "invalid"
        await until(lambda: agent.stats.invalid == 2 * refusals + 1)
        assert agent.stats.faults == 0
        assert "node_id" in await answered(nc, subjects.agent(node_id, "about"), b"")
