"""``slotbus init`` and ``slotbus doctor`` as a person runs them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.embedded import EmbeddedServer
from events.subjects import Subjects
from tests.e2e.test_cli_nodes import agents
from tests.support.console import Console, Finished
from tests.support.nats import connected
from tests.support.waiting import DEADLINE_S

NOTHING_LEADS = {"SLOTBUS_CFG_PATIENCE_S": "0"}
EVENTS = "Events-0.5.dist-info"


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    yield made
    assert made.left_over(within=20) == []


async def run(console: Console, *words: str, **environ: str) -> Finished:
    """Beside the test's loop, in which its server is looked after."""
    return await asyncio.to_thread(console.run, *words, **environ)


def findings(done: Finished) -> dict[str, dict[str, str]]:
    """What the doctor says as JSON, the last of each kind."""
    found: list[dict[str, str]] = [json.loads(line) for line in done.out.splitlines()]
    return {each["what"]: each for each in found}


# --- init -------------------------------------------------------------------------------------


async def test_init_before_any_controller_ran_and_again(
    console: Console, own_nats_server: EmbeddedServer
) -> None:
    url, subjects = own_nats_server.url, Subjects()
    made = await run(console, "init", "--server", url, "--log-max-bytes", "4194304")
    assert (made.code, made.err) == (0, "")
    did = [line.split() for line in made.out.splitlines()]
    assert {"SLOTBUS_LOG", "SLOTBUS_EVENT", "KV_slotbus_lease"} <= {name for name, _ in did}
    assert {what for _, what in did} == {"created"}
    again = await run(console, "init", "--server", url)
    assert {line.split()[1] for line in again.out.splitlines()} == {"unchanged"}
    async with connected(url) as nc:
        js = nc.jetstream()
        await js.publish(subjects.eventlog, b"kept")
        more = await run(console, "init", "--server", url, "--log-max-bytes", "8388608")
        assert "SLOTBUS_LOG updated: max_bytes 4194304 -> 8388608" in more.out.splitlines()
        less = await run(
            *(console, "init", "--server", url, "--log-max-bytes", "4194304"),
            *("--event-days", "1", "-o", "json"),
        )
        assert less.code == 0
        told = {each["name"]: each for each in json.loads(less.out)}
        assert (told["SLOTBUS_LOG"]["did"], len(told["SLOTBUS_LOG"]["kept"])) == ("unchanged", 1)
        assert (told["SLOTBUS_EVENT"]["did"], len(told["SLOTBUS_EVENT"]["kept"])) == (
            "unchanged", 1,
        )  # fmt: skip
        info = await js.stream_info(subjects.log_stream)
        assert (info.config.max_bytes, info.state.messages) == (8388608, 1)


async def test_a_cluster_begins_on_what_init_made_and_loses_nothing_to_another_init(
    console: Console, own_nats_server: EmbeddedServer
) -> None:
    where = ("--server", own_nats_server.url, "--root", "prod")
    assert (await run(console, "init", *where)).code == 0
    worker = ("--worker-command", "sleep 600", "--stop-workers-on-exit")
    with (
        console.running("controller", "--scheduler", "node", "--http", "off", *where) as leader,
        console.running("agent", "--node-id", "n1", "--http", "off", *worker, *where) as agent,
    ):
        await asyncio.to_thread(leader.until, '"leading"')
        await asyncio.to_thread(agent.until, "registered")
        assert (await run(console, "start", "j", "--slots", "1", *where)).code == 0
        changed = await run(console, "init", *where, "--event-days", "30")
        assert "PROD_EVENT updated: max_age 7 days -> 30 days" in changed.out.splitlines()
        jobs = (await run(console, "jobs", *where)).out
        assert jobs.splitlines()[1].split()[:3] == ["j", "1", "running"]
        assert "run_running j/1" in (await run(console, "events", *where)).out
        assert (await run(console, "stop", "j", "--force", *where)).code == 0


async def test_one_server_keeps_no_replicas(
    own_nats_server: EmbeddedServer, console: Console
) -> None:
    done = await run(console, "init", "--server", own_nats_server.url, "--replicas", "3")
    assert done.code == 1
    assert done.err.startswith("error invalid: there are not enough JetStream servers for 3")


async def test_init_says_why_it_can_not(console: Console, tmp_path: Path) -> None:
    config = 'accounts { A: { users: [{user: u, password: "p"}] } }'
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        who = ("--server", server.url, "--user", "u", "--password", "p")
        done = await run(console, "init", *who)
    assert (done.code, done.out) == (1, "")
    assert "JetStream is not enabled for this account" in done.err
    assert (await run(console, "init", "--server", "nats://127.0.0.1:1")).code == 3
    assert (await run(console, "init", "--replicas", "9")).code == 2


# --- doctor -----------------------------------------------------------------------------------


def test_the_doctor_on_a_cluster_with_agents(console: Console) -> None:
    quick = {"SLOTBUS_CFG_HEARTBEAT_S": "0.3"}
    words = ("up", "--nodes", "2", "--slots", "4", "--port", "0", "--http", "off")
    with console.running(*words, "--node-expiry", "2", **quick) as up:
        up.until("Ctrl-C stops all jobs")
        well = console.run("doctor")
        assert (well.code, well.err) == (0, "")
        said = {line.split()[0] for line in well.out.splitlines() if not line.startswith(" ")}
        assert said <= {"ok", "note"}, well.out
        assert "nodes: 2 of 2 ready, 8 slots free" in well.out
        assert "this machine's within 2 s" in well.out

        assert console.run("start", "j", "--slots", "1").code == 0
        os.kill(agents(console)["node-1"], signal.SIGKILL)
        deadline = time.monotonic() + DEADLINE_S
        while "node node-1" not in (found := findings(console.run("doctor", "-o", "json"))):
            assert time.monotonic() < deadline, found
        assert found["node node-1"]["level"] == "warning"
        assert "1 slots are still held there" in found["node node-1"]["text"]
        assert "its agent run" in found["node node-1"]["advice"]
        assert found["nodes"]["text"] == "1 of 2 ready, 4 slots free"
        assert console.run("doctor").code == 0  # a warning is not bad
        up.end()


async def test_the_doctor_where_nothing_leads_and_where_nothing_listens(
    console: Console, own_nats_server: EmbeddedServer
) -> None:
    url = own_nats_server.url
    done = await run(console, "doctor", "--server", url, **NOTHING_LEADS)
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    at = next(i for i, line in enumerate(lines) if "lease: nobody holds it" in line)
    assert lines[at].split()[0] == "bad"
    assert lines[at + 1].strip() == "-> start a controller: `slotbus controller`"
    nobody = await run(console, "doctor", "--server", "nats://127.0.0.1:1")
    assert (nobody.code, nobody.out) == (3, "")
    assert nobody.err.startswith("error unreachable:")


async def test_the_doctor_sees_who_else_owns_our_import_name(
    console: Console, own_nats_server: EmbeddedServer
) -> None:
    """As `pip install Events` leaves it: what it overwrites is ours again, its name is there."""
    beside = console.folder / "beside" / EVENTS
    beside.mkdir(parents=True)
    (beside / "METADATA").write_text("Metadata-Version: 2.1\nName: Events\nVersion: 0.5\n")
    path = os.pathsep.join(filter(None, (str(beside.parent), os.environ.get("PYTHONPATH"))))
    words = ("doctor", "--server", own_nats_server.url, "-o", "json")
    found = findings(await run(console, *words, PYTHONPATH=path, **NOTHING_LEADS))
    assert found["installation"]["level"] == "warning"
    assert "both own the name" in found["installation"]["text"]
    assert "an environment of its own" in found["installation"]["advice"]


@contextlib.asynccontextmanager
async def says_it_is(version: str, server: EmbeddedServer) -> AsyncIterator[str]:
    """The address of a server that is another one behind its greeting."""

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(65_536):
            sink.write(piece)
            await sink.drain()
        sink.close()

    async def serve(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_connection("127.0.0.1", server.port)
        info: dict[str, Any] = json.loads((await behind.readline()).removeprefix(b"INFO "))
        sink.write(b"INFO " + json.dumps(info | {"version": version}).encode() + b"\r\n")
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(behind, sink), pump(source, to_behind))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("version", "level"), [("2.10.29", "bad"), ("2.11.0", "ok"), ("3.0.0", "ok")]
)
async def test_the_doctor_knows_servers_that_are_too_old(
    console: Console, nats_server: EmbeddedServer, subjects: Subjects, version: str, level: str
) -> None:
    async with says_it_is(version, nats_server) as url:
        words = ("doctor", "--server", url, "--root", subjects.root, "-o", "json")
        found = findings(await run(console, *words, **NOTHING_LEADS))["server"]
    assert (found["level"], f"nats-server {version} at" in found["text"]) == (level, True)
    if level == "bad":
        assert found["advice"] == "slotbus needs 2.11 or later"
