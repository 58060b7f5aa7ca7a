"""Completion by the shells themselves: commands, options, and what runs in the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.errors import UnknownJob
from events.queries import JobRow, JobsReply, NodeRow, NodesReply, WorkerRow, WorkersReply
from events.states import NodeState, RunState, WorkerState
from events.subjects import Subjects
from tests.support.console import Console
from tests.support.leader import SILENCE, FakeLeader
from tests.support.story import DAWN
from tests.support.terminal import on_terminal
from tests.support.waiting import DEADLINE_S

RUN_TIMEOUT_S = 40.0
ASKED = "COMP_WORDS=({words}); COMP_CWORD={at}; _slotbus_completion slotbus\n"
REPLIED = 'printf "%s\\n" "${COMPREPLY[@]}"\n'


def job(job_id: str) -> JobRow:
    return JobRow(
        job_id=job_id, name=job_id, run_id=1, state=RunState.RUNNING, slots=2, workers=1,
        since=DAWN,
    )  # fmt: skip


def node(node_id: str) -> NodeRow:
    return NodeRow(
        node_id=node_id, addr="", state=NodeState.READY, registered_slots=4, free_slots=3,
        scheduled_slots=1, heartbeat_age_s=1, labels={},
    )  # fmt: skip


def worker(worker_id: str) -> WorkerRow:
    return WorkerRow(
        worker_id=worker_id, job_id="dairy", run_id=1, node_id="north", slots=1,
        state=WorkerState.RUNNING, since=DAWN,
    )  # fmt: skip


class Shells:
    """A user whose shells know slotbus's completion, and whose cluster is a leader's play."""

    def __init__(self, console: Console, server: str, root: str) -> None:
        self.console = console
        script = Path(console.command()[0])
        self.environ = {
            **console.environ,
            "PATH": f"{script.parent}:{os.environ['PATH']}",
            "NATS_URL": server,
            "SLOTBUS_CFG_ROOT": root,
        }

    def bash(self, script: str, **environ: str) -> str:
        """What a bash prints that reads no start-up files."""
        done = subprocess.run(
            ["bash", "--norc", "--noprofile", "-c", script],
            env={**self.environ, **environ},
            cwd=self.console.cwd,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    async def completed(self, *words: str, **environ: str) -> list[str]:
        """What bash has for the last word of ``slotbus WORDS``."""
        source = 'eval "$(_SLOTBUS_COMPLETE=source_bash slotbus)"\n'
        asked = ASKED.format(words=shlex.join(["slotbus", *words]), at=len(words))
        out = await asyncio.to_thread(self.bash, source + asked + REPLIED, **environ)
        return out.split()

    async def complete(self, *words: str, to: list[str], **environ: str) -> None:
        """They do, in one of a few tries: nobody waits long for a completion, and a machine
        may be busy for longer."""
        async with asyncio.timeout(2 * DEADLINE_S):
            while (found := await self.completed(*words, **environ)) != to:
                assert found == [], found


@pytest_asyncio.fixture
async def shells(
    tmp_path: Path, nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> Shells:
    leader = FakeLeader(nc, subjects)
    await leader.will("query.jobs", JobsReply(jobs=[job("dairy"), job("daily"), job("words")]))
    await leader.will("query.nodes", NodesReply(nodes=[node("north"), node("south")]))
    await leader.will("query.workers", WorkersReply(workers=[worker("w-1-1"), worker("w-2-1")]))
    return Shells(Console(tmp_path), nats_server.url, subjects.root)


async def test_commands_and_options(shells: Shells) -> None:
    await shells.complete("st", to=["start", "stop", "state", "story"])
    await shells.complete("jobs", "--wat", to=["--watch"])
    await shells.complete("jobs", "--output", "", to=["table", "json"])
    await shells.complete("describe", "", to=["job", "node", "worker"])


@pytest.mark.parametrize(
    ("words", "to"),
    [
        (("stop", ""), ["dairy", "daily", "words"]),
        (("stop", "dai"), ["dairy", "daily"]),
        (("logs", "--follow", "w"), ["words"]),
        (("events", "--job", "wo"), ["words"]),
        (("cordon", ""), ["north", "south"]),
        (("workers", "--node", "so"), ["south"]),
        (("describe", "job", "dairy"), ["dairy"]),
        (("describe", "node", "n"), ["north"]),
        (("describe", "worker", "w-2"), ["w-2-1"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_what_runs_in_the_cluster(
    shells: Shells, words: tuple[str, ...], to: list[str]
) -> None:
    await shells.complete(*words, to=to)


async def test_the_server_that_the_line_names_is_asked(
    shells: Shells, nats_server: EmbeddedServer
) -> None:
    elsewhere = {"NATS_URL": "nats://127.0.0.1:1"}
    assert await shells.completed("stop", "", **elsewhere) == []
    there = ("--server", nats_server.url)
    await shells.complete("stop", *there, "wor", **elsewhere, to=["words"])


async def test_contexts_of_the_nats_command_line(shells: Shells) -> None:
    folder = Path(shells.console.environ["XDG_CONFIG_HOME"]) / "nats" / "context"
    folder.mkdir(parents=True)
    for name in ("prod", "proof", "test"):
        (folder / f"{name}.json").write_text(json.dumps({"url": "nats://127.0.0.1:1"}))
    await shells.complete("jobs", "--context", "pro", to=["prod", "proof"])


async def test_nobody_waits_long_and_nothing_is_said_where_there_is_no_answer(
    tmp_path: Path, nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> None:
    leader = FakeLeader(nc, subjects)
    await leader.will("query.jobs", SILENCE)
    await leader.will("query.nodes", UnknownJob("no"))
    shells = Shells(Console(tmp_path), nats_server.url, subjects.root)
    assert await shells.completed("stop", "") == []
    assert await shells.completed("cordon", "") == []
    assert await shells.completed("describe", "worker", "") == []  # no leader listens for it
    assert await shells.completed("stop", "", SLOTBUS_CFG_NONSENSE="1") == []


async def test_a_person_presses_tab(shells: Shells) -> None:
    def tab() -> str:
        environ = {**shells.environ, "PS1": "> ", "TERM": "dumb"}
        with on_terminal(["bash", "--norc", "--noprofile", "-i"], environ) as terminal:
            terminal.until("> ")
            terminal.type('eval "$(_SLOTBUS_COMPLETE=source_bash slotbus)"; echo so"urced"\n')
            terminal.until("\nsourced")
            terminal.type("slotbus unc\t")
            terminal.until("slotbus uncordon ")
            terminal.type("nor")
            while "slotbus uncordon north " not in terminal.drawn:
                terminal.type("\t")  # a busy machine's first answer may come too late
                with contextlib.suppress(AssertionError):
                    terminal.until("slotbus uncordon north ", within=5)
        return terminal.drawn

    assert "Traceback" not in await asyncio.to_thread(tab)


async def test_the_script_of_the_shell_that_asks_is_shown(shells: Shells) -> None:
    shown = await asyncio.to_thread(shells.bash, "slotbus --show-completion; true")
    assert "complete -o default -F _slotbus_completion slotbus" in shown
    assert (
        shown.strip()
        == (await asyncio.to_thread(shells.bash, "_SLOTBUS_COMPLETE=source_bash slotbus")).strip()
    )


async def test_it_is_installed_for_the_next_bash(shells: Shells) -> None:
    await asyncio.to_thread(shells.bash, "slotbus --install-completion; true")
    known = 'source "$HOME/.bashrc"; complete -p slotbus'
    assert "-F _slotbus_completion slotbus" in await asyncio.to_thread(shells.bash, known)


PROTOCOL = {
    "zsh": {"_TYPER_COMPLETE_ARGS": "slotbus stop dai"},
    "fish": {"_TYPER_COMPLETE_ARGS": "slotbus stop dai", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}
"""The variables with which each shell's script asks."""


@pytest.mark.parametrize("shell", PROTOCOL)
async def test_other_shells(shells: Shells, shell: str) -> None:
    """Their scripts say what to ask; where the shell is installed, it reads its script too."""
    script = await asyncio.to_thread(shells.bash, f"_SLOTBUS_COMPLETE=source_{shell} slotbus")
    assert f"_SLOTBUS_COMPLETE=complete_{shell}" in script
    for name in PROTOCOL[shell]:
        assert name in script
    asked = {"_SLOTBUS_COMPLETE": f"complete_{shell}", **PROTOCOL[shell]}
    out = ""
    async with asyncio.timeout(2 * DEADLINE_S):
        while not (found := re.findall(r"\bdai\w+", out)):
            out = await asyncio.to_thread(shells.bash, "slotbus", **asked)
    assert found == ["dairy", "daily"], out
    assert "running, 2 slots" in out.replace("\\", "")
    if (program := shutil.which(shell)) is not None:
        path = shells.console.folder / f"script.{shell}"
        path.write_text(script)
        read = await asyncio.to_thread(
            subprocess.run, [program, "--no-exec", str(path)], env=shells.environ,
            capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert (read.returncode, read.stderr) == (0, "")
