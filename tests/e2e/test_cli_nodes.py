"""``slotbus up --nodes``, and controller and agents as commands of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from controller.embedded import EmbeddedServer
from tests.support.console import Console

LOOP = "while :; do sleep 0.05; done"


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    yield made
    assert made.left_over(within=20) == []


def agents(console: Console) -> dict[str, int]:
    """Pids of the agents, by node."""
    found = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if process.environ().get("HOME") == str(console.folder) and "agent" in words:
                found[words[words.index("--node-id") + 1]] = process.pid
        except psutil.Error:
            continue
    return found


def test_nodes_of_one_up(console: Console) -> None:
    up_command = ("up", "--nodes", "2", "--slots", "2", "--port", "0", "--http", "off")
    with console.running(*up_command, "--node-expiry", "15") as up:
        up.until("Ctrl-C stops all jobs")
        assert "2 nodes with 2 slots each" in up.out
        started = console.run("start", "wide", "--slots", "3", "--", "sh", "-c", LOOP)
        assert started.code == 0, started.err
        placed = [line.split()[1:] for line in started.out.splitlines()[2:]]
        assert placed == [["node-1", "2"], ["node-2", "1"]]

        os.kill(agents(console)["node-2"], signal.SIGKILL)
        up.until("the agent node-2 has ended (code -9); its node expires in 15 s")
        assert up.process.poll() is None

        assert up.end() == 0
        assert "ended; what happened stays in" in up.out


def test_the_nodes_of_another_scheduler_are_forgotten_once_they_are_empty(
    console: Console,
) -> None:
    def listed() -> list[tuple[str, str]]:
        rows: Any = console.run("nodes", "-o", "json").json()["nodes"]
        return [(row["node_id"], row["state"]) for row in rows]

    up_command = ("up", "--port", "0", "--http", "off", "--slots", "2")
    with console.running(*up_command) as up:
        up.until("Ctrl-C stops all jobs")
        assert listed() == [("local", "ready")]
        assert console.run("start", "j", "--slots", "1").code == 0
        assert up.end() == 0
    with console.running(*up_command, "--nodes", "1") as up:
        up.until("Ctrl-C stops all jobs")
        assert listed() == [("node-1", "ready")]
        assert up.end() == 0


def test_a_killed_up_takes_everything_with_it(console: Console) -> None:
    with console.running(
        "up", "--nodes", "1", "--slots", "2", "--port", "0", "--http", "off"
    ) as up:
        up.until("Ctrl-C stops all jobs")
        assert console.run("start", "orphan", "--slots", "1", "--", "sh", "-c", LOOP).code == 0
        up.process.kill()
        up.process.wait()


def test_an_up_whose_server_dies_says_so(console: Console) -> None:
    with console.running("up", "--port", "0", "--http", "off") as up:
        up.until("Ctrl-C stops all jobs")
        server = next(
            process for process in psutil.process_iter() if is_server_of(console, process)
        )
        server.kill()
        assert up.process.wait(30) == 1
        assert "error up_failed: the NATS server has ended by itself" in up.out
        assert "Traceback" not in up.out


def is_server_of(console: Console, process: psutil.Process) -> bool:
    try:
        return any(str(console.folder) in word for word in process.cmdline()) and (
            "nats-server" in process.name()
        )
    except psutil.Error:
        return False


def node_states(console: Console, url: str) -> dict[str, str]:
    rows: Any = console.run("nodes", "-o", "json", "--server", url).json()["nodes"]
    return {row["node_id"]: row["state"] for row in rows}


def test_a_controller_and_an_agent_by_themselves(
    console: Console, own_nats_server: EmbeddedServer
) -> None:
    url = own_nats_server.url
    config = console.cwd / "slotbus.toml"
    config.write_text("heartbeat_s = 0.5\nlease_ttl_s = 2\n")
    with (
        console.running(
            "controller", "--scheduler", "node", "--server", url, "--config", "slotbus.toml",
            "--node-expiry", "20", "--http", "off",
        ) as controller,
        console.running(
            "agent", "--node-id", "n1", "--slots", "4", "--label", "zone=a", "--label", "disk=ssd",
            "--worker-command", f"sh -c '{LOOP}'", "--http", "127.0.0.1:0",
            "--stop-workers-on-exit",
            NATS_URL=url,
        ) as agent,
    ):  # fmt: skip
        controller.until('"leading"')
        agent.until("registered, a heartbeat every 0.5 s")
        row: Any = console.run("nodes", "n1", "-o", "json", "--server", url).json()["nodes"]
        assert row[0]["labels"] == {"zone": "a", "disk": "ssd"}
        elsewhere = console.run(
            "start", "picky", "--slots", "1", "--selector", "zone=b", NATS_URL=url
        )
        assert elsewhere.err.startswith("error not_enough_slots")
        assert console.run("start", "picky", "--slots", "1", "--selector", "zone=a",
                           NATS_URL=url).code == 0  # fmt: skip

        assert controller.end(signal.SIGTERM) == 0
        absent = console.run("jobs", NATS_URL=url, SLOTBUS_CFG_PATIENCE_S="0.2")
        assert absent.code == 3
        assert "is `slotbus controller` running?" in absent.err

        with console.running(
            "controller", "--scheduler", "node", "--server", url, "--http", "off"
        ) as next_one:
            next_one.until('"leading"')
            jobs = console.run("jobs", NATS_URL=url).out.splitlines()
            assert jobs[1].split()[:5] == ["picky", "1", "running", "1", "1"]
            assert agent.end(signal.SIGTERM) == 0


def test_without_a_server_a_controller_ends_and_an_agent_waits(console: Console) -> None:
    nowhere = ("--server", "nats://127.0.0.1:1", "--http", "off")
    done = console.run("controller", *nowhere)
    assert done.code == 3
    assert "no NATS server listens there" in done.err
    with console.running("agent", "--stop-workers-on-exit", *nowhere) as agent:
        agent.until("no NATS server listens there")
        second = console.run("agent", *nowhere)
        assert second.code == 1
        assert second.err.splitlines()[-1].startswith("error state_dir_unusable:")
        assert agent.end(signal.SIGTERM) == 0


def test_a_setting_that_does_not_exist_is_named(console: Console) -> None:
    (console.cwd / "slotbus.toml").write_text("node_expiri_s = 5\n")
    done = console.run("controller", "--config", "slotbus.toml")
    assert done.code == 2
    assert "did you mean node_expiry_s?" in done.err
    done = console.run("agent", SLOTBUS_CFG_SLOTZ="5")
    assert done.code == 2
    assert "did you mean SLOTBUS_CFG_SLOTS?" in done.err
