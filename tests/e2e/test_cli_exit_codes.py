"""Exit codes and words when a controller answers late, or not at all."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.errors import CommandTimeout, Invalid, NotLeader
from events.messages import StartReply, StopReply
from events.queries import JobRow, JobsReply
from events.states import RunState
from events.subjects import Subjects
from tests.support.console import Console, Finished
from tests.support.leader import FakeLeader

STARTED = StartReply(command_id="c-1", job_id="j", run_id=1, workers=[])


class Caller:
    """Runs commands against the test's own subject root, beside the test's loop."""

    def __init__(self, console: Console, server: EmbeddedServer, subjects: Subjects) -> None:
        self._console = console
        self._common = ("--server", server.url, "--root", subjects.root)

    async def __call__(self, *arguments: str, **environ: str) -> Finished:
        def run() -> Finished:
            return self._console.run(*arguments, *self._common, **environ)

        return await asyncio.to_thread(run)


@pytest.fixture
def call(tmp_path: Path, nats_server: EmbeddedServer, subjects: Subjects) -> Caller:
    return Caller(Console(tmp_path), nats_server, subjects)


@pytest.fixture
def leader(nc: Client, subjects: Subjects) -> FakeLeader:
    return FakeLeader(nc, subjects)


async def test_no_controller(call: Caller, subjects: Subjects) -> None:
    done = await call("start", "j", "--slots", "1", SLOTBUS_CFG_PATIENCE_S="0.3")
    assert (done.code, done.out) == (3, "")
    waiting, error = done.err.splitlines()
    assert waiting.endswith("-- trying again")
    assert error.startswith(
        f"error no_controller: no controller answers on {subjects.root}.cmd.start: "
        "is `slotbus controller` running?"
    )


async def test_a_new_leader_is_waited_for(call: Caller, leader: FakeLeader) -> None:
    await leader.will("cmd.start", NotLeader("not me"), STARTED)
    done = await call("start", "j", "--slots", "1", "-o", "json")
    assert done.code == 0
    assert (
        done.out.encode()
        == b'{"command_id":"c-1","job_id":"j","run_id":1,"workers":[],"warnings":[]}\n'
    )
    assert done.err == "not me -- trying again\n"


async def test_not_finished_in_time(call: Caller, leader: FakeLeader) -> None:
    await leader.will("cmd.start", CommandTimeout("the work goes on", command_id="c-9"))
    done = await call("start", "j", "--slots", "1", "--wait", "0.05")
    assert done.code == 4
    assert done.err == "error timeout: the work goes on (command_id=c-9)\n"


async def test_an_unconfirmed_stop_is_no_success(call: Caller, leader: FakeLeader) -> None:
    reply = StopReply(command_id="c", job_id="j", workers=["w1"], unconfirmed=["w2"])
    await leader.will("cmd.stop", reply)
    done = await call("stop", "j")
    assert (done.code, done.out) == (1, "j: 1 workers stopped\n  w1\n")
    assert done.err.startswith("error unconfirmed: 1 workers are on nodes that do not answer")
    assert done.err.rstrip().endswith("w2")


async def test_a_watched_list_outlasts_its_leader(
    tmp_path: Path, nats_server: EmbeddedServer, leader: FakeLeader, subjects: Subjects
) -> None:
    def only(job_id: str) -> JobsReply:
        state = RunState.RUNNING
        return JobsReply(
            jobs=[JobRow(job_id=job_id, name="", run_id=1, state=state, slots=1, workers=1,
                         since=datetime.now(UTC))]
        )  # fmt: skip

    where = ("--server", nats_server.url, "--root", subjects.root)
    watch = ("jobs", "--watch", "-o", "json", *where)
    with Console(tmp_path).running(*watch, SLOTBUS_CFG_PATIENCE_S="0") as running:
        await asyncio.to_thread(running.until, "running? -- looking again")
        await leader.will("query.jobs", only("before"), NotLeader("this one stops"), only("after"))
        await asyncio.to_thread(running.until, '"after"')
        assert running.end() == 130
        lines = running.out.splitlines()
    rows = [line for line in lines if line.startswith("{")]
    assert ['"before"' in rows[0], '"after"' in rows[1], len(rows)] == [True, True, 2]
    assert any(line.startswith("this one stops -- ") for line in lines)


async def test_a_watched_list_ends_with_a_refusal(call: Caller, leader: FakeLeader) -> None:
    await leader.will("query.jobs", Invalid("no such thing", path="$.job_id"))
    done = await call("jobs", "--watch")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error invalid: no such thing")


async def test_no_events_yet(call: Caller) -> None:
    done = await call("events")
    assert done.code == 1
    assert done.err.startswith("error no_events: no events are kept on this NATS server")


def test_no_server(tmp_path: Path) -> None:
    done = Console(tmp_path).run("jobs", "-o", "json", "--server", "nats://127.0.0.1:1")
    assert done.code == 3
    assert '"code":"unreachable"' in done.out
    assert done.err.startswith("error unreachable: nats://127.0.0.1:1: no NATS server listens")
