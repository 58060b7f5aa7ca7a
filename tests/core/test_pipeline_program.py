"""What the example pipeline makes of its environment, and what the feeder would send it."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.demo.pipeline import BadProgram, Program, read_task
from controller.demo.readings import load_day, reading


def test_an_empty_environment_gives_a_worker_that_runs_by_hand() -> None:
    task = read_task({})
    assert (task.job_id, task.run_id, task.slots) == ("demo", 1, 1)
    assert task.program == Program()


def test_the_environment_that_slotbus_sets_is_read() -> None:
    task = read_task(
        {
            "SLOTBUS_JOB_ID": "dairy",
            "SLOTBUS_RUN_ID": "3",
            "SLOTBUS_WORKER_ID": "w-1",
            "SLOTBUS_SLOTS": "4",
            "SLOTBUS_PROGRAM": '{"subject": "in", "results": "out", "window_s": 2}',
        }
    )
    assert (task.job_id, task.run_id, task.worker_id, task.slots) == ("dairy", 3, "w-1", 4)
    assert task.program == Program(subject="in", results="out", window_s=2.0)


def test_a_large_program_comes_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "program.json"
    file.write_text('{"subject": "from-file"}')
    task = read_task({"SLOTBUS_PROGRAM_FILE": str(file)})
    assert task.program.subject == "from-file"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SLOTBUS_PROGRAM": "{"}, "truncated"),
        ({"SLOTBUS_PROGRAM": '{"window_s": 0}'}, r"\$\.window_s"),
        ({"SLOTBUS_PROGRAM": '{"windows": 1}'}, "windows"),
        ({"SLOTBUS_SLOTS": "many"}, "many"),
        ({"SLOTBUS_PROGRAM_FILE": "no/such/file"}, "no/such/file"),
    ],
)
def test_a_wrong_environment_is_refused_with_its_reason(environ: dict[str, str], said: str) -> None:
    with pytest.raises(BadProgram, match=said):
        read_task(environ)


def test_the_packaged_day_is_whole() -> None:
    day = load_day()
    assert len(day.rows) == 24 * 60 // 5
    assert {len(row) for row in day.rows} == {len(day.sensors)}
    assert len(set(day.sensors)) == len(day.sensors) == 6


def test_the_packaged_day_has_the_shape_of_a_day() -> None:
    day = load_day()
    yard = [row[day.sensors.index("outdoor")] for row in day.rows]
    assert max(yard[144:216]) - min(yard[0:72]) > 8, "the afternoon is warmer than the night"
    boiler = [row[day.sensors.index("boiler")] for row in day.rows]
    assert 45 < min(boiler) < 56
    assert max(boiler) < 70


def test_readings_follow_from_their_number() -> None:
    day = load_day()
    first = reading(1, first_at_ms=10_000, rate=100)
    assert (first.sensor, first.at_ms, first.celsius) == (day.sensors[0], 10_000, day.rows[0][0])
    eighth = reading(8, first_at_ms=10_000, rate=100)
    assert (eighth.sensor, eighth.at_ms) == (day.sensors[1], 10_070)
    assert eighth.celsius == day.rows[1][1]


def test_the_day_begins_again_when_it_is_over() -> None:
    day = load_day()
    again = reading(len(day.rows) * len(day.sensors) + 1, first_at_ms=0, rate=100)
    assert again.celsius == day.rows[0][0]
