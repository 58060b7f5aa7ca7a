"""`slotbus demo` as a user runs it: to its end, interrupted, and when it hangs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from controller.demo import main as demo
from controller.demo.main import DEADLINE_S, EXIT_BROKEN, EXIT_INTERRUPTED, run_demo
from controller.demo.processes import MARK
from controller.demo.stage import Stage

COMMAND = [sys.executable, "-P", "-m", "controller.entry", "demo"]
TEST_TIMEOUT_S = DEADLINE_S + 30


def start(folder: Path) -> subprocess.Popen[str]:
    """The demo in an empty folder, its output in a pipe."""
    return subprocess.Popen(
        COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def started_by(mark: str) -> list[str]:
    """Command lines of processes that carry the mark of one demo, or its folder's name."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if process.environ().get(MARK) == mark or mark in line:
                found.append(line)
        except psutil.Error:
            continue  # gone, or somebody else's
    return found


def mark_in(said: str) -> str:
    return said.split("everything is kept in ")[1].split()[0].rpartition("/")[2]


@pytest.mark.timeout(TEST_TIMEOUT_S)
def test_every_promise_holds_and_nothing_is_left(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert "all promises held" in said.splitlines()[-1]
    assert "BROKEN" not in said
    assert "held    the recording, played again, leads to the event log, byte for byte" in said
    for told in ("is lost", "has expired", "not_enough_slots", "dairy run 2 has stopped"):
        assert told in said
    assert started_by(mark_in(said)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(TEST_TIMEOUT_S)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path) as process:
        assert process.stdout is not None
        heard = ""
        for line in process.stdout:
            heard += line
            if "reply, query and process table name the same workers" in line:
                process.send_signal(number)
                break
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == EXIT_INTERRUPTED, heard + said
    assert "interrupted" in said.splitlines()[-1]
    assert started_by(mark_in(heard)) == []


@pytest.mark.timeout(TEST_TIMEOUT_S)
def test_a_demo_that_hangs_is_ended_and_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def hang(stage: Stage) -> None:
        await stage.until_seen("three nodes", lambda _fact: True, DEADLINE_S)
        await asyncio.Event().wait()

    monkeypatch.setattr(demo, "play", hang)
    monkeypatch.setattr(demo, "DEADLINE_S", demo.END_S + 8)
    assert run_demo() == EXIT_BROKEN
    said = capsys.readouterr().out
    assert "BROKEN  it goes on until its end within 8 s" in said
    assert "held    nothing that it started is left" in said
    assert started_by(mark_in(said)) == []
