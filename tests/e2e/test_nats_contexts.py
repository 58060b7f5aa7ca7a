"""Contexts as the real nats command line writes them, and whether both go to the same server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.embedded import EmbeddedServer
from events.connection import Access, connect
from events.queries import NodeRow, NodesReply
from events.states import NodeState
from events.subjects import Subjects
from tests.support.console import Console, Finished
from tests.support.leader import FakeLeader
from tests.support.secured import Certificates, Operator, make_key

WHERE = ("first", "second", "third")


def only(name: str) -> NodesReply:
    """What a leader says whose only node is called like its server."""
    row = NodeRow(
        node_id=name,
        addr="",
        state=NodeState.READY,
        registered_slots=1,
        free_slots=1,
        scheduled_slots=0,
        heartbeat_age_s=1,
        labels={},
    )
    return NodesReply(nodes=[row])


@contextlib.asynccontextmanager
async def cluster(
    name: str, folder: Path, config: str = "", **access: str
) -> AsyncIterator[EmbeddedServer]:
    """A server that asks who one is as ``config`` says, and a leader there who is ``access``."""
    async with EmbeddedServer(folder / f"nats-{name}", config=config) as server:
        nc = await connect(server.url, name="leader", access=Access(**access))  # type: ignore[arg-type]
        try:
            await FakeLeader(nc, Subjects()).will("query.nodes", only(name))
            yield server
        finally:
            await nc.close()


class Both:
    """One user with both command lines."""

    def __init__(self, folder: Path, program: Path) -> None:
        self._slotbus = Console(folder)
        self._nats = Console(folder, program)

    async def nats(self, *arguments: str, **environ: str) -> Finished:
        done = await asyncio.to_thread(self._nats.run, *arguments, **environ)
        assert done.code == 0, done.err
        return done

    async def slotbus(self, *arguments: str, **environ: str) -> Finished:
        return await asyncio.to_thread(self._slotbus.run, *arguments, **environ)

    async def asked(self, *options: str, **environ: str) -> tuple[str, str]:
        """The server that each of them asks, told these options and variables."""
        theirs, ours = await asyncio.gather(
            self.nats("req", "--raw", "slotbus.query.nodes", "", *options, **environ),
            self.slotbus("nodes", "-o", "json", *options, **environ),
        )
        assert ours.code == 0, ours.err
        answers: list[Any] = [done.json()["nodes"] for done in (theirs, ours)]
        theirs_at, ours_at = (rows[0]["node_id"] for rows in answers)
        return theirs_at, ours_at


@pytest.fixture
def both(nats_cli: Path, tmp_path: Path) -> Both:
    return Both(tmp_path / "user", nats_cli)


@pytest_asyncio.fixture
async def urls(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """Three servers by their names."""
    async with contextlib.AsyncExitStack() as stack:
        made = [await stack.enter_async_context(cluster(name, tmp_path)) for name in WHERE]
        yield {name: server.url for name, server in zip(WHERE, made, strict=True)}


Said = dict[str, str]
"""Options and variables that are set; those that begin with a dash are options. Names of servers
stand for their addresses."""

CASES: dict[str, tuple[Said, str]] = {
    "nothing is said": ({}, "second"),
    "an option": ({"--context": "at-first"}, "first"),
    "a variable": ({"NATS_CONTEXT": "at-first"}, "first"),
    "an empty variable": ({"NATS_CONTEXT": ""}, "second"),
    "option and variable": ({"--context": "at-first", "NATS_CONTEXT": "at-second"}, "first"),
    "an address in a variable": ({"NATS_URL": "third"}, "third"),
    "address and name in variables": ({"NATS_URL": "third", "NATS_CONTEXT": "at-first"}, "third"),
    "address in a variable, name in an option": (
        {"NATS_URL": "third", "--context": "at-first"}, "third",
    ),
    "address and name in options": ({"--server": "third", "--context": "at-first"}, "third"),
    "addresses in both": ({"--server": "first", "NATS_URL": "third"}, "first"),
    "an address in an option": ({"--server": "third"}, "third"),
}  # fmt: skip
"""What is said beside a selected context at the second server, and where it leads."""


@pytest.mark.parametrize("case", CASES)
async def test_both_find_the_same_server(both: Both, urls: dict[str, str], case: str) -> None:
    for name in ("first", "second"):
        await both.nats("context", "add", f"at-{name}", "--server", urls[name])
    await both.nats("context", "select", "at-second")
    said, server = CASES[case]
    meant = {name: urls.get(value, value) for name, value in said.items()}
    options = [part for pair in meant.items() if pair[0].startswith("-") for part in pair]
    environ = {name: value for name, value in meant.items() if not name.startswith("-")}
    assert await both.asked(*options, **environ) == (server, server)


async def test_another_selection_is_seen(both: Both, urls: dict[str, str]) -> None:
    await both.nats("context", "add", "at-first", "--server", urls["first"])
    await both.nats("context", "copy", "at-first", "again")
    await both.nats("context", "select", "again")
    assert await both.asked() == ("first", "first")


async def test_ours_come_where_the_nats_command_line_has_nothing(
    both: Both, urls: dict[str, str]
) -> None:
    await both.nats("context", "add", "at-first", "--server", urls["first"], "--select")
    cases: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
        ("second", (), {"SLOTBUS_CFG_SERVER": urls["second"], "NATS_URL": urls["third"]}),
        ("third", ("--server", urls["third"]), {"SLOTBUS_CFG_SERVER": urls["second"]}),
        ("second", ("--context", "at-first"), {"SLOTBUS_CFG_SERVER": urls["second"]}),
        ("first", (), {"SLOTBUS_CFG_CONTEXT": "at-first"}),
    ]
    for name, options, environ in cases:
        done = await both.slotbus("nodes", "-o", "json", *options, **environ)
        rows: Any = done.json()["nodes"]
        assert rows[0]["node_id"] == name, (options, environ)
    unknown = await both.slotbus("nodes", "--context", "at-fist")
    assert (unknown.code, "there are at-first" in unknown.err) == (2, True)


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


async def test_users_and_nkeys_of_a_context(both: Both, tmp_path: Path) -> None:
    key, boss = make_key("U"), {"user": "boss", "password": "b"}
    users = f'{{user: boss, password: b}}, {{user: u, password: "p w"}}, {{nkey: {key.public}}}'
    seed = written(tmp_path / "user.nk", key.seed)
    config = f"authorization {{ users: [{users}] }}"
    async with cluster("here", tmp_path, config, **boss) as server:
        at = ("--server", server.url)
        await both.nats("context", "add", "pw", *at, "--user", "u", "--password", "p w")
        await both.nats("context", "add", "nkey", *at, "--nkey", seed)
        await both.nats("context", "add", "nobody", *at, "--user", "u", "--password", "wrong")
        for name in ("pw", "nkey"):
            assert await both.asked("--context", name) == ("here", "here")
        refused = await both.slotbus("nodes", "--context", "nobody")
        assert (refused.code, refused.err.split(":")[0]) == (3, "error unreachable")
        # Variables win over the context, field by field.
        assert await both.asked("--context", "nobody", NATS_PASSWORD="p w") == ("here", "here")
        theirs = {"NATS_USER": "boss", "NATS_PASSWORD": "b"}
        assert await both.asked("--context", "nobody", **theirs) == ("here", "here")


async def test_a_user_without_a_password_is_a_token(both: Both, tmp_path: Path) -> None:
    config = "authorization { token: s3cret }"
    async with cluster("here", tmp_path, config, token="s3cret") as server:
        await both.nats("context", "add", "token", "--server", server.url, "--user", "s3cret")
        assert await both.asked("--context", "token") == ("here", "here")
        here = ("--server", server.url)
        for options in (("--user", "s3cret"), ("--token", "s3cret")):
            assert await both.asked(*here, *options) == ("here", "here")
        assert await both.asked(*here, NATS_TOKEN="s3cret") == ("here", "here")


async def test_credentials_beside_a_context_and_inside_it(both: Both, tmp_path: Path) -> None:
    operator = Operator()
    boss = written(tmp_path / "boss.creds", operator.creds())
    user = written(tmp_path / "user.creds", operator.creds("user"))
    async with cluster("here", tmp_path, operator.config(), creds_file=boss) as server:
        at = ("--server", server.url)
        await both.nats("context", "add", "beside", *at, "--creds", user)
        await both.nats("context", "add", "bare", *at)
        for options in (("--context", "beside"), ("--context", "bare", "--creds", user)):
            assert await both.asked(*options) == ("here", "here")
        assert await both.asked("--context", "bare", NATS_CREDS=user) == ("here", "here")
        # An embedded copy needs no file any more.
        await both.nats("context", "add", "inside", *at, "--creds", user, "--embed")
        written(Path(user), "gone")
        assert await both.asked("--context", "inside") == ("here", "here")


@pytest.mark.parametrize("first", [False, True], ids=["after-greeting", "tls-first"])
async def test_certificates_of_a_context(both: Both, tmp_path: Path, first: bool) -> None:
    certificates = Certificates(tmp_path / "certificates")
    cert, key = certificates.issue("client.test")
    more = f"verify: true\n{'handshake_first: true' if first else ''}"
    config = certificates.server_config(more=more)
    async with EmbeddedServer(tmp_path / "nats", config=config) as server:
        access = Access(
            tls_ca=str(certificates.ca), tls_cert=str(cert), tls_key=str(key), tls_first=first
        )
        nc = await connect(server.url, name="leader", access=access)
        await FakeLeader(nc, Subjects()).will("query.nodes", only("here"))
        options = ["--tlsca", str(certificates.ca), "--tlscert", str(cert), "--tlskey", str(key)]
        options += ["--tlsfirst"] if first else []
        await both.nats("context", "add", "tls", "--server", server.url, *options, "--select")
        assert await both.asked() == ("here", "here")
        assert await both.asked("--server", server.url) == ("here", "here")
        await nc.close()


async def test_an_inbox_prefix_of_a_context(both: Both, tmp_path: Path) -> None:
    config = (
        "authorization { users: [{user: boss, password: b}, {user: u, password: p, permissions: "
        '{publish: ["slotbus.>"], subscribe: ["_INBOX_u.>"]}}] }'
    )
    async with cluster("here", tmp_path, config, user="boss", password="b") as server:
        who = ("--server", server.url, "--user", "u", "--password", "p")
        await both.nats("context", "add", "mine", *who, "--inbox-prefix", "_INBOX_u")
        assert await both.asked("--context", "mine") == ("here", "here")
        denied = await both.slotbus("nodes", *who)
        assert (denied.code, "--inbox-prefix" in denied.err) == (3, True), denied.err
