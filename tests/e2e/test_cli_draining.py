"""``slotbus drain``, ``shortage``, ``node confirm-dead`` and the policies of ``start``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.console import Console

LOOP = "while :; do sleep 0.05; done"


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    yield made
    assert made.left_over(within=20) == []


def test_a_day_of_an_operator(console: Console) -> None:
    up_command = ("up", "--nodes", "2", "--slots", "2", "--port", "0", "--http", "off")
    with console.running(*up_command) as up:
        up.until("Ctrl-C stops all jobs")
        command = ("--", "sh", "-c", LOOP)
        flags = ("--on-failure", "restart", "--restart-limit", "3", "--priority", "2")
        started = console.run("start", "wide", "--slots", "2", *flags, *command)
        assert started.code == 0, started.err
        assert console.run("start", "small", "--slots", "1", *command).code == 0

        told = console.run("describe", "job", "wide")
        assert "restart on failure, after 1 s doubling to 60 s, at most 3 times" in told.out
        assert "moved when a node is drained" in told.out

        (moving,) = console.run("workers", "wide").out.splitlines()[1:]
        node = moving.split()[3]
        stays = console.run("drain", node, "--deadline", "0.5")
        assert stays.code == 1
        assert "nowhere to move: 1 slots missing" in stays.out
        assert console.run("uncordon", node).code == 0

        wait = ("--on-shortage", "wait", "--wait", "0", "--not-after", "3600")
        assert console.run("start", "later", "--slots", "3", *wait, *command).code == 0
        shortage = console.run("shortage")
        assert shortage.out.startswith("1 wait, 2 slots are missing")
        assert console.run("shortage", "-o", "json").json()["missing"] == 2
        jobs = console.run("jobs").out
        assert "waiting" in jobs
        assert "slots are missing" in jobs
        assert console.run("stop", "later").code == 0

        alive = console.run("node", "confirm-dead", node)
        assert alive.code == 1
        assert "error node_alive" in alive.err

        assert console.run("stop", "small", "--force").code == 0
        moves = console.run("drain", node, "--deadline", "20")
        assert moves.code == 0, moves.out + moves.err
        assert f"{node} is empty, and cordoned" in moves.out
        assert "wide run 1 moved: run 2" in moves.out
        assert up.end() == 0
