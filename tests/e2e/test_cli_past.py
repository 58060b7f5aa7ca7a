"""Looking back on a real cluster: its log exported, asked about, and taken into another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schedulers.files import replay_file
from tests.support.console import Console

UP = ("up", "--port", "0", "--http", "off", "--slots", "4")
LOOP = "while :; do sleep 0.05; done"


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    yield made
    assert made.left_over(within=20) == []


def test_a_life_looked_back_upon(console: Console, tmp_path: Path) -> None:
    recordings = tmp_path / "recordings"
    with console.running(*UP, "--record", str(recordings)) as up:
        up.until("Ctrl-C stops all jobs")
        started = console.run("start", "wide", "--slots", "2", "--", "sh", "-c", LOOP)
        assert started.code == 0, started.err
        worker = started.out.splitlines()[2].split()[0]
        refused = console.run("start", "wider", "--slots", "9")
        assert refused.code == 1
        assert worker in console.run("state").out
        assert "because of: start " in console.run("why", worker).out
        assert "not_enough_slots" in console.run("story", "wider", "-o", "json").out
        assert console.run("stop", "wide").code == 0
        assert "records keep all six laws" in console.run("audit").out
        exported = console.run("events", "-o", "jsonl")
        assert exported.code == 0, exported.err
        log = tmp_path / "log.jsonl"
        log.write_text(exported.out)
        assert "records keep all six laws" in console.run("audit", str(log)).out
        gone = f"worker {worker}"
        assert gone in console.run("diff", "2", str(len(exported.out.splitlines())), str(log)).out
        full = console.run("import", str(log))
        assert full.code == 1
        assert "is not empty" in full.err
        other = console.run("import", str(log), "--root", "other")
        assert other.out.strip() == f"{len(exported.out.splitlines())} records are in the event log"
        assert (
            console.run("story", "wide", "--root", "other").out == console.run("story", "wide").out
        )
        assert up.end() == 0
    (recording,) = recordings.iterdir()
    played = [line for line in exported.out.splitlines() if line]
    assert len(replay_file(recording).records) >= len(played)
