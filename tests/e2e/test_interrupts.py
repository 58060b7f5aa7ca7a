"""Ctrl-C at any moment: the program ends, and no traceback is shown."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.subjects import Subjects
from tests.support.console import Console, Running
from tests.support.leader import SILENCE, FakeLeader
from tests.support.waiting import DEADLINE_S, until

NOWHERE = ("--server", "nats://127.0.0.1:1")
STALL = "import pathlib, time\npathlib.Path({reached!r}).touch()\ntime.sleep(60)\n"


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path)


def interrupted_at(console: Console, module: str, *command: str) -> Running:
    """A command that got its Ctrl-C when it had begun to import a module."""
    slow, reached = console.folder / "slow", console.folder / "reached"
    slow.mkdir()
    (slow / f"{module}.py").write_text(STALL.format(reached=str(reached)))
    path = os.pathsep.join(filter(None, (str(slow), os.environ.get("PYTHONPATH"))))
    with console.running(*command, PYTHONPATH=path) as running:
        deadline = time.monotonic() + DEADLINE_S
        while not reached.exists():
            assert running.process.poll() is None, running.out
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert running.end(signal.SIGINT) == -signal.SIGINT
    return running


@pytest.mark.parametrize(
    "command",
    [
        ("up", "--port", "0", "--http", "off"),
        ("controller", "--http", "off", *NOWHERE),
        ("agent", "--http", "off", *NOWHERE),
        ("demo",),
        ("nodes", *NOWHERE),
        ("--help",),
    ],
    ids=lambda command: command[0],
)
def test_while_it_still_imports(console: Console, command: tuple[str, ...]) -> None:
    assert interrupted_at(console, "typer", *command).out == ""


@pytest.mark.parametrize("command", ["up", "controller", "agent", "demo", "nodes"])
def test_while_the_command_imports_what_it_needs(console: Console, command: str) -> None:
    module = "aiohttp" if command == "demo" else "structlog"
    assert interrupted_at(console, module, command).out == ""


async def test_while_an_answer_is_waited_for(
    console: Console, nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> None:
    leader = FakeLeader(nc, subjects)
    await leader.will("cmd.stop", SILENCE)
    where = ("--server", nats_server.url, "--root", subjects.root)
    with console.running("stop", "j", *where) as running:
        await until(lambda: bool(leader.asked))
        assert running.end(signal.SIGINT) == 130
        assert running.out == ""


def test_an_agent_without_a_server(console: Console) -> None:
    with console.running("agent", "--stop-workers-on-exit", "--http", "off", *NOWHERE) as agent:
        agent.until("no NATS server listens there")
        assert agent.end(signal.SIGINT) == 0
        assert "Traceback" not in agent.out


def test_who_starts_it_with_ctrl_c_ignored_has_it_ignored(console: Console) -> None:
    """As a shell does with what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with console.running("nodes", *NOWHERE, SLOTBUS_CFG_CONNECT_TIMEOUT_S="0.5") as running:
            while running.process.poll() is None:
                running.process.send_signal(signal.SIGINT)
                time.sleep(0.01)
            assert running.process.returncode == 3
            assert running.out.startswith("error unreachable:")
    finally:
        signal.signal(signal.SIGINT, before)
