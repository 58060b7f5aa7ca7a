"""``slotbus up`` and every command against it, as a new user would, in an empty folder."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.support.console import Console, Running

UP = ("up", "--port", "0", "--http", "127.0.0.1:0", "--slots", "4")
TALK = 'echo "hello from $SLOTBUS_JOB_ID, $SLOTBUS_SLOTS slots, $WHO: $SLOTBUS_PROGRAM"'
WAIT_FOR_TERM = f"{TALK}; trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done"


class House(msgspec.Struct):
    console: Console
    up: Running


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One ``slotbus up`` for the tests of this file; each keeps to jobs of its own."""
    console = Console(tmp_path_factory.mktemp("up"))
    with console.running(*UP) as up:
        up.until("Ctrl-C stops all jobs")
        yield House(console, up)
    assert console.left_over() == []


@pytest.fixture
def console(house: House) -> Console:
    return house.console


@pytest.fixture(autouse=True)
def room(house: House) -> Iterator[None]:
    """Every test leaves the slots as it found them."""
    yield
    jobs: Any = house.console.run("jobs", "-o", "json").json()["jobs"]
    for job in jobs:
        if job["state"] in ("running", "starting"):
            house.console.run("stop", job["job_id"], "--force")


def test_it_says_what_runs_and_what_to_type_next(house: House) -> None:
    said = house.up.out
    assert "slotbus is up: NATS at nats://127.0.0.1:" in said
    assert "4 slots, no agents" in said
    assert "metrics   http://127.0.0.1:" in said
    assert f"kept in   {house.console.folder}" in said
    assert "jobs without a command run the packaged idle worker" in said
    assert "slotbus start hello --slots 2" in said


def test_a_job_from_start_to_stop(console: Console) -> None:
    started = console.run(
        "start", "hello", "--slots", "3", "--name", "Say hello", "--env", "WHO=me",
        "--program", '{"a":1}', "--", "sh", "-c", WAIT_FOR_TERM,
    )  # fmt: skip
    assert (started.code, started.err) == (0, "")
    assert started.out.splitlines()[0] == "hello run 1: 3 slots, 1 workers"

    rows: Any = console.run("workers", "hello", "--output", "json").json()["workers"]
    assert [(row["state"], row["slots"], row["node_id"]) for row in rows] == [
        ("running", 3, "local")
    ]
    worker = psutil.Process(rows[0]["pid"])
    assert worker.environ()["SLOTBUS_WORKER_ID"] == rows[0]["worker_id"]

    jobs = console.run("jobs", "hello").out.splitlines()
    assert jobs[0].split()[:4] == ["JOB", "RUN", "STATE", "SLOTS"]
    assert jobs[1].split()[:5] == ["hello", "1", "running", "3", "1"]
    assert "Say hello" in jobs[1]
    assert console.run("nodes").out.splitlines()[1].split()[:5] == ["local", "ready", "1", "3", "4"]

    logs = console.run("logs", "hello", "--bare")
    assert logs.out == 'hello from hello, 3 slots, me: {"a":1}\n'

    stopped = console.run("stop", "hello", "--output", "json")
    assert stopped.code == 0
    assert stopped.json()["workers"] == [rows[0]["worker_id"]]
    assert not psutil.pid_exists(rows[0]["pid"])
    assert console.run("workers", "hello").out.splitlines()[1:] == []
    ended: Any = console.run("workers", "hello", "--all", "-o", "json").json()["workers"]
    assert (ended[0]["state"], ended[0]["exit_code"]) == ("finished", 0)
    after = console.run("logs", "hello")
    worker_id = rows[0]["worker_id"]
    assert after.out.splitlines()[-1] == f"{worker_id} | bye"

    told = console.run("events", "--job", "hello").out
    for fact in ("run_created hello/1", "worker_assigned", "worker_launched", "run_running hello/1",
                 "worker_stopping", "worker_ended", "run_ended hello/1"):  # fmt: skip
        assert fact in told
    positions = [int(line.split()[0]) for line in told.splitlines() if line.split()[0].isdigit()]
    assert positions == sorted(set(positions))


def test_a_job_without_a_command_idles(console: Console) -> None:
    assert console.run("start", "idle", "--slots", "1").code == 0
    assert "idle worker of job idle with 1 slots" in console.run("logs", "idle").out
    assert console.run("stop", "idle").out.startswith("idle: 1 workers stopped")


def test_a_job_file_and_a_program_from_standard_input(console: Console) -> None:
    job = console.cwd / "job.toml"
    job.write_text(
        'job_id = "filed"\nslots = 2\n[env_vars]\nWHO = "file"\n'
        f"[scheduler_config]\ncommand = ['sh', '-c', '''{WAIT_FOR_TERM}''']\n"
    )
    started = console.run("start", "-f", "job.toml", "--program", "@-", stdin='["from", "stdin"]')
    assert started.code == 0, started.err
    assert console.run("logs", "filed", "--bare").out == (
        'hello from filed, 2 slots, file: ["from","stdin"]\n'
    )
    job.write_text('job_id = "filed"\nslot = 2\n')
    refused = console.run("start", "-f", "job.toml")
    assert refused.code == 2
    assert "there is no field 'slot', did you mean slots?" in refused.err


def test_refusals_have_their_code_their_facts_and_exit_code_1(console: Console) -> None:
    refused = console.run("start", "big", "--slots", "9")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error not_enough_slots: 5 more slots are needed and 4 are free")
    as_json = console.run("start", "big", "--slots", "9", "-o", "json")
    assert as_json.code == 1
    error: Any = as_json.json()["error"]
    assert (error["code"], error["slots_needed"], error["slots_free"]) == ("not_enough_slots", 5, 4)
    unknown = console.run("stop", "never-seen")
    assert (unknown.code, unknown.err.split(":")[0]) == (1, "error unknown_job")
    assert console.run("logs", "never-seen").code == 1
    assert console.run("cordon", "never-seen").err.startswith("error unknown_node:")


def test_a_command_that_does_not_exist_is_start_failed_with_the_reason(console: Console) -> None:
    refused = console.run("start", "broken", "--slots", "1", "--", "/no/such/program")
    assert refused.code == 1
    assert refused.err.startswith("error start_failed:")
    assert "/no/such/program" in refused.err


def test_a_command_id_is_carried_out_once(console: Console) -> None:
    first = console.run("start", "once", "--slots", "1", "--command-id", "c-once", "-o", "json")
    again = console.run("start", "once", "--slots", "1", "--command-id", "c-once", "-o", "json")
    assert first.code == again.code == 0
    assert first.json() == again.json()


def test_cordon_keeps_new_workers_away(console: Console) -> None:
    assert console.run("cordon", "local").out == "local is cordoned\n"
    try:
        refused = console.run("start", "kept-out", "--slots", "1")
        assert refused.err.startswith("error not_enough_slots")
    finally:
        assert console.run("uncordon", "local").out == "local is ready\n"
    assert console.run("start", "kept-out", "--slots", "1").code == 0


def test_output_is_followed_until_the_job_is_over(console: Console) -> None:
    console.run("start", "chatty", "--slots", "1", "--", "sh", "-c", WAIT_FOR_TERM)
    with console.running("logs", "chatty", "-f") as logs:
        logs.until("hello from chatty")
        assert console.run("stop", "chatty").code == 0
        assert logs.process.wait(20) == 0
        assert logs.out.count("hello from chatty") == 1
        assert logs.out.count("| bye") == 1


def test_a_stop_that_does_not_wait_is_accepted(console: Console) -> None:
    assert console.run("start", "unwaited", "--slots", "1").code == 0
    done = console.run("stop", "unwaited", "--wait", "0")
    assert (done.code, "error" in done.err) == (0, False), done
    assert console.run("wait", "unwaited", "--for", "finished").code != 4


def test_events_are_followed(console: Console) -> None:
    with console.running("events", "--follow", "--job", "watched", "-o", "json") as events:
        assert console.run("start", "watched", "--slots", "1").code == 0
        events.until("run_running")
        first = msgspec.json.decode(events.out.splitlines()[0])
        assert {"position", "at", "epoch", "cause", "events"} <= set(first)
        assert events.end() == 130
        assert "Traceback" not in events.out


def test_a_reader_that_leaves_is_no_error(console: Console) -> None:
    command = " ".join(console.command("events"))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -1"],
        cwd=console.cwd,
        env=console.environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "leader_started" in done.stdout


def test_prometheus_agrees(house: House) -> None:
    console = house.console
    console.run("start", "counted", "--slots", "3")
    url = next(
        line.split()[1] for line in house.up.out.splitlines() if line.strip().startswith("metrics")
    )
    seen = subprocess.run(
        ["python3", "-c", f"import urllib.request as u; print(u.urlopen('{url}').read().decode())"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    assert "\nslotbus_free_slots 1.0\n" in seen
    assert "\nslotbus_registered_slots 4.0\n" in seen


def test_ended_and_started_again_it_remembers(tmp_path: Path) -> None:
    console = Console(tmp_path)
    with console.running(*UP) as up:
        up.until("Ctrl-C stops all jobs")
        assert console.run("start", "kept", "--slots", "2").code == 0
        assert up.end() == 0
        assert "stopping 1 jobs" in up.out
        assert "Traceback" not in up.out
    assert console.left_over() == []
    unreached = console.run("jobs", SLOTBUS_CFG_SERVER="nats://127.0.0.1:1")
    assert unreached.code == 3
    with console.running(*UP) as up:
        up.until("Ctrl-C stops all jobs")
        jobs = console.run("jobs").out.splitlines()
        assert jobs[1].split()[:3] == ["kept", "1", "stopped"]
        again = console.run("start", "kept", "--slots", "2")
        assert again.out.startswith("kept run 2:")
    assert console.left_over() == []


@pytest.mark.timeout(120)  # two starts and ends of everything
def test_it_has_the_usual_port_if_that_is_free_and_is_found_on_any(tmp_path: Path) -> None:
    usual, own = 4222, ("up", "--http", "off")
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody's NATS server: it is taken already
            holder.bind(("127.0.0.1", usual))
            holder.listen()
        console = Console(tmp_path / "taken")
        with console.running(*own) as up:
            up.until("Ctrl-C stops all jobs")
            assert f"port {usual} is taken: NATS gets a free one" in up.out
            assert f"NATS at nats://127.0.0.1:{usual}," not in up.out
            assert console.run("nodes").out.splitlines()[1].startswith("local")
        held_by_us = holder.getsockname()[1] == usual
    if not held_by_us:
        return
    console = Console(tmp_path / "free")
    with console.running(*own) as up:
        up.until("Ctrl-C stops all jobs")
        assert f"NATS at nats://127.0.0.1:{usual}," in up.out
        assert console.run("nodes").out.splitlines()[1].startswith("local")
        other = Console(tmp_path / "other")  # another user knows the port, not the note
        assert other.run("nodes").out.splitlines()[1].startswith("local")


def test_two_on_one_state_directory(tmp_path: Path) -> None:
    console = Console(tmp_path)
    with console.running(*UP) as up:
        up.until("Ctrl-C stops all jobs")
        second = console.run(*UP)
        assert second.code == 1
        assert "another nats-server uses the store directory" in second.err
