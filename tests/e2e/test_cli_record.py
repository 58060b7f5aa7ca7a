"""`slotbus record` as a user runs it beside a running cluster."""

from __future__ import annotations

import signal
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


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_recording_until_ctrl_c_tells_the_job_s_story(console: Console, suffix: str) -> None:
    name = f"life.jsonl{suffix}"
    with console.running(*UP) as up:
        up.until("Ctrl-C stops all jobs")
        with console.running("record", name) as recording:
            recording.until(f"recording into {name}; Ctrl-C ends it")
            started = console.run("start", "wide", "--slots", "2", "--", "sh", "-c", LOOP)
            assert started.code == 0, started.err
            assert console.run("stop", "wide").code == 0
            story = console.run("story", "wide").out
            assert recording.end(signal.SIGINT) == 0
            assert "records of the log" in recording.out
            assert "missing" not in recording.out
        assert up.end() == 0
    assert console.run("story", "wide", name).out == story
    assert "because of: start " in console.run("why", "wide", name).out
    again = console.run("record", name)
    assert again.code == 2
    assert "is there already" in again.err


def test_a_recording_of_so_many_seconds_ends_by_itself(console: Console) -> None:
    with console.running(*UP) as up:
        up.until("Ctrl-C stops all jobs")
        done = console.run("record", "life.jsonl", "--for", "0.5", "--mask", "program.*")
        assert done.code == 0, done.err
        assert up.end() == 0
    assert "program.*" in (console.cwd / "life.jsonl").read_text().splitlines()[0]
    assert replay_file(console.cwd / "life.jsonl").missing == 0


def test_wrong_usage_and_no_controller(console: Console) -> None:
    masks_nothing = console.run("record", "a.jsonl", "--mask", "slots")
    assert masks_nothing.code == 2
    assert "masks nothing" in masks_nothing.err
    assert console.run("record", "no/such/folder/a.jsonl").code == 2
    alone = console.run("record", "a.jsonl", "--server", "nats://127.0.0.1:1")
    assert alone.code == 3
    assert list(console.cwd.iterdir()) == []
