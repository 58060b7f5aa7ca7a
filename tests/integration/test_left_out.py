"""What is said where a program of the tests can't be built, and that CI does not let it pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.binaries.building import GO_OLDEST, BuildFailed
from tests.support.binaries.finding import Recipe, Target, ensure
from tests.support.binaries.natscli import RECIPE

CHECKOUT = Path(__file__).resolve().parents[2]
WANTING = "tests/e2e/test_nats_cli.py::test_the_service_is_seen"
RUN_TIMEOUT_S = 50


def run(tmp_path: Path, **environ: str) -> tuple[int, str]:
    """A test that wants `nats`, on a machine that has none and can't reach any registry."""
    path = tmp_path / "bin"
    path.mkdir()
    if (go := shutil.which("go")) is not None:
        (path / "go").symlink_to(go)
    without = {name: value for name, value in os.environ.items() if name not in ("CI", "GOFLAGS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", WANTING],
        cwd=CHECKOUT,
        env={
            **without,
            "PATH": str(path),
            "TEST_ASSET_NATS": "",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "GOMODCACHE": str(tmp_path / "modules"),
            "GOPROXY": "off",
            "PIP_NO_INDEX": "1",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_one_loud_line_names_what_was_left_out(tmp_path: Path) -> None:
    code, out = run(tmp_path)
    assert code == 0, out
    (line,) = [line for line in out.splitlines() if line.startswith("NOT TESTED: ")]
    said = "NOT TESTED: 1 tests with the real nats command line, no nats command on this machine: "
    assert line.startswith(said)
    assert len(line) > len(said)


def test_in_ci_it_is_a_failure(tmp_path: Path) -> None:
    code, out = run(tmp_path, CI="true")
    assert code == 1, out
    assert "no nats command on this machine: " in out


def named(program: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is found where the variable names ``program``."""
    monkeypatch.setenv("TEST_ASSET_NATS", str(program))
    return ensure(RECIPE)["nats"]


def test_a_variable_may_name_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nats"
    program.touch(0o755)
    assert named(program, monkeypatch) == program
    with pytest.raises(BuildFailed, match="TEST_ASSET_NATS names .*nowhere, which can't be run"):
        named(tmp_path / "nowhere", monkeypatch)


def test_one_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "tool"
    program.write_text('#!/bin/sh\necho "v1.4.0"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def recipe(oldest: tuple[int, int]) -> Recipe:
        target = Target("tool", "example.invalid/tool", "TEST_ASSET_TOOL", oldest)
        return Recipe("tool", "tool", f"module build\n\ngo {GO_OLDEST[0]}.0\n", (), (target,))

    assert ensure(recipe((1, 4)))["tool"] == program
    kept = recipe((1, 5)).cache() / "tool"
    kept.parent.mkdir(parents=True)
    shutil.copy(program, kept)
    assert ensure(recipe((1, 5)))["tool"] == kept
    assert "is 1.4, 1.5 is needed: passed over" in capfd.readouterr().err
