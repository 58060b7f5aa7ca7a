"""The command line before it talks to anyone: help, wrong usage, which server."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from controller.cli.finding import (
    ClientConfig,
    client_config,
    find_up,
    leave_note,
    notes_dir,
    settings_of_others,
)
from controller.cli.main import app
from events.errors import Invalid
from events.settings import DEFAULT_SERVER

COMMANDS = (
    "up", "controller", "agent", "start", "stop", "workers", "jobs", "nodes", "cordon",
    "uncordon", "ended", "pod", "events", "logs", "demo", "schema", "state", "diff", "why",
    "story", "audit", "import",
)  # fmt: skip

runner = CliRunner()


def test_the_overview_names_every_command_and_the_exit_codes() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f" {command} " in result.output
    assert "Exit codes: 0 done; 1 refused or failed; 2 wrong usage" in result.output


def test_help_does_not_wait_for_what_it_does_not_need() -> None:
    heavy = ("nats", "aiohttp", "msgspec", "structlog", "prometheus_client", "psutil")
    program = (
        "import sys; import controller.cli.main; "
        f"sys.exit(', '.join(set({heavy!r}) & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_worth_reading(command: str) -> None:
    result = runner.invoke(app, [command, "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert len(result.output.split()) > 20


def commands() -> list[str]:
    return list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_flags_show_no_type_and_text_is_folded_where_the_terminal_ends() -> None:
    for name in commands():
        told = runner.invoke(app, [name, "--help"], env={"COLUMNS": "80"}).output
        assert "<bool>" not in told, name
        assert "[[" not in told, name
    told = runner.invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert "<bool>" not in told
    up = runner.invoke(app, ["up", "--help"], env={"COLUMNS": "80"}).output.splitlines()
    first = next(at for at, line in enumerate(up) if "An own NATS server" in line)
    assert len(up[first + 1]) > 60
    start = runner.invoke(app, ["start", "--help"], env={"COLUMNS": "80"}).output
    assert "\n     slotbus start wordcount --slots 6 -- python3" in start


@pytest.mark.parametrize(
    "arguments",
    [
        ["begin"],
        ["start", "a", "--slots", "many"],
        ["start", "a", "--slots", "1", "python3", "x.py"],
        ["start", "a", "--slots", "0"],
        ["start", "a b", "--slots", "1"],
        ["start", "a", "--slots", "1", "--env", "X"],
        ["start", "a", "--slots", "1", "--spread", "wide"],
        ["start", "a", "--slots", "1", "--program", "@nowhere.json"],
        ["start", "-f", "nowhere.toml"],
        ["stop"],
        ["stop", "a", "--run", "0"],
        ["stop", "a", "--grace", "-1"],
        ["jobs", "--output", "yaml"],
        ["events", "--since", "soon"],
        ["events", "--job", "a", "--node", "b"],
        ["workers", "--root", "a..b"],
        ["controller", "--scheduler", "mesos"],
        ["controller", "--config", "nowhere.toml"],
        ["agent", "--node-id", "a b"],
        ["agent", "--label", "zone"],
        ["up", "--nodes", "-1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr
    assert "Traceback" not in result.output


def test_start_alone_shows_its_help() -> None:
    result = runner.invoke(app, ["start"])
    assert result.exit_code == 2
    assert "Start a run of a job" in result.output


def test_a_mistake_in_a_job_file_is_named(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('job_id = "a"\nslotz = 1\n')
    result = runner.invoke(app, ["start", "-f", str(job)])
    assert result.exit_code == 2
    assert "error invalid:" in result.stderr
    assert "there is no field 'slotz', did you mean slots?" in result.stderr


def test_a_flag_wins_over_the_environment_and_that_over_a_running_up(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with leave_note("nats://127.0.0.1:5555", 1.0, environ):
        assert client_config({}, environ).server == "nats://127.0.0.1:5555"
        environ["NATS_URL"] = "nats://env:1"
        assert client_config({}, environ).server == "nats://env:1"
        environ["SLOTBUS_CFG_SERVER"] = "nats://cfg:1"
        assert client_config({}, environ).server == "nats://cfg:1"
        assert client_config({"server": "nats://flag:1"}, environ).server == "nats://flag:1"


def test_without_any_it_is_the_local_default(tmp_path: Path) -> None:
    assert client_config({}, {"XDG_RUNTIME_DIR": str(tmp_path)}).server == DEFAULT_SERVER


def test_the_last_up_that_runs_is_found_and_dead_notes_are_cleared(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    folder = notes_dir(environ)
    folder.mkdir()
    dead = folder / "1.up"
    dead.write_text(json.dumps({"server": "nats://dead:1", "started": 9e9}))
    older = folder / "2.up"
    older.write_text(json.dumps({"server": "nats://older:1", "started": 5}))
    broken = folder / "3.up"
    broken.write_text("{")
    with older.open() as locked, broken.open() as also, leave_note("nats://new:1", 7, environ):
        fcntl.flock(locked, fcntl.LOCK_EX)
        fcntl.flock(also, fcntl.LOCK_EX)
        found = find_up(environ)
        assert found is not None
        assert found.server == "nats://new:1"
    assert not dead.exists()
    assert find_up(environ) is None


def test_where_there_is_no_runtime_directory_the_state_directory_serves(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": "relative"}
    with leave_note("nats://here:1", 1, environ) as note:
        assert note.is_relative_to(tmp_path)
        assert note.parent.stat().st_mode & 0o077 == 0


def test_settings_of_other_programs_are_no_mistakes_of_a_client() -> None:
    environ = {"SLOTBUS_CFG_NODE_EXPIRY_S": "5", "SLOTBUS_CFG_PATIENCE_S": "0.5"}
    assert client_config({"server": "nats://x:1"}, environ).patience_s == 0.5
    assert "node_expiry_s" in settings_of_others(ClientConfig)
    with pytest.raises(Invalid, match="did you mean SLOTBUS_CFG_PATIENCE_S"):
        client_config({}, {"SLOTBUS_CFG_PATIENZE_S": "1"})


def test_a_client_can_have_credentials() -> None:
    config = client_config({}, {"SLOTBUS_CFG_TOKEN": "t"})
    assert (config.access().token, config.access().user) == ("t", "")
