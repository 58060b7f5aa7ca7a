"""The tutorial on recorded logs, run as it stands: its commands, then its tests."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.console import Console

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing-with-recorded-logs.md"
PIECE = re.compile(
    r"<!-- (?P<what>run|run: background|file: (?P<name>\S+)) -->\n"
    r"```(?:sh|python)\n(?P<text>.*?)```",
    re.DOTALL,
)
TIMEOUT_S = 50


class Piece(Struct, frozen=True):
    what: str
    name: str
    text: str


def pieces() -> list[Piece]:
    found = PIECE.finditer(PAGE.read_text())
    return [Piece(each["what"], each["name"] or "", each["text"]) for each in found]


def shell(console: Console, text: str) -> str:
    """What a user's shell prints that runs these lines."""
    programs = Path(sys.executable).parent
    environ = console.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "slotbus_pytest",
    }
    done = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=console.cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    yield made
    assert made.left_over(within=20) == []


def test_every_fence_of_the_page_is_run_or_written() -> None:
    fences = re.findall(r"^```(?:sh|python)$", PAGE.read_text(), re.MULTILINE)
    assert len(fences) == len(pieces()) >= 6


def test_the_tutorial(console: Console) -> None:
    background, first, *rest = pieces()
    assert background.what == "run: background"
    program, *arguments = shlex.split(background.text)
    assert program == "slotbus"
    with contextlib.ExitStack() as stack:
        up = stack.enter_context(console.running(*arguments))
        up.until("Ctrl-C stops all jobs")
        shell(console, first.text)
        assert up.end() == 0
    out = ""
    for piece in rest:
        if piece.name:
            (console.cwd / piece.name).write_text(piece.text)
        else:
            out = shell(console, piece.text)
    assert "4 passed" in out
