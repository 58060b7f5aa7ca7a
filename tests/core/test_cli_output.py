"""What the command line prints: columns, sentences, errors, lines of output."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from controller.cli.lines import WorkerLines
from controller.cli.output import (
    clean,
    error_line,
    job_table,
    node_table,
    print_start,
    print_stop,
    progress,
    table,
    worker_table,
)
from controller.cli.session import join_pages
from controller.cli.telling import tell, tell_fact
from controller.cli.watching import parse_since
from events import facts as f
from events.errors import Invalid, NotEnoughSlots, StartFailed
from events.following import EventRecord
from events.messages import PlacedWorker, StartReply, StopReply
from events.queries import JobRow, NodeRow, WorkerRow
from events.states import NodeState, RunState, WorkerState

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
Capture = pytest.CaptureFixture[str]


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_columns_line_up_and_nothing_is_cut(capsys: Capture) -> None:
    long = "x" * 300
    table(("A", "LONG", "C"), [("1", long, "3"), ("22", "y", "")])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.index("C") == second.index("3")
    assert long in second
    assert third == "22  y"


def test_on_a_terminal_ids_stay_in_one_piece(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    worker_id, reason = "w-" + "0" * 60, "it was asked to end by somebody who had a reason"
    table(("WORKER", "STATE", "REASON"), [(worker_id, "failed", reason)])
    out = capsys.readouterr().out
    assert worker_id in out
    assert reason not in out  # folded
    assert out.split()[-1] == "reason"


def test_control_characters_are_spelled_out(capsys: Capture) -> None:
    table(("A",), [("\x1b[2Jred\r\n",)])
    assert capsys.readouterr().out == "A\n\\x1b[2Jred\\r\\n\n"
    assert clean("Ünïcode ✓") == "Ünïcode ✓"


def test_workers(capsys: Capture) -> None:
    row = WorkerRow(
        worker_id="w1",
        job_id="j",
        run_id=2,
        node_id="n1",
        slots=4,
        state=WorkerState.FAILED,
        since=NOON,
        pid=77,
        signal=9,
        reason="killed",
    )
    finished = msgspec.structs.replace(row, state=WorkerState.FINISHED, signal=None, exit_code=0)
    worker_table([row, finished])
    head, first, second = lines(capsys.readouterr().out)
    assert head[:2] == ["WORKER", "JOB"]
    assert first[:6] == ["w1", "j", "2", "n1", "4", "failed"]
    assert first[-3:] == ["signal", "9", "killed"]
    assert second[-2:] == ["0", "killed"]


def test_jobs_and_nodes(capsys: Capture) -> None:
    job_table(
        [
            JobRow(
                job_id="j",
                name="Word count",
                run_id=1,
                state=RunState.RUNNING,
                slots=6,
                workers=2,
                since=NOON,
            )
        ]
    )
    node_table(
        [
            NodeRow(
                node_id="n1",
                addr="10.0.0.1",
                state=NodeState.READY,
                registered_slots=4,
                free_slots=1,
                scheduled_slots=3,
                heartbeat_age_s=2.4,
                labels={"zone": "a", "disk": "ssd"},
            )
        ]
    )
    out = lines(capsys.readouterr().out)
    assert out[1][:5] == ["j", "1", "running", "6", "2"]
    assert out[3] == ["n1", "ready", "1", "3", "4", "2", "s", "ago", "disk=ssd,zone=a", "10.0.0.1"]


def test_replies_to_commands(capsys: Capture) -> None:
    placed = [
        PlacedWorker(worker_id="w1", node_id="n1", slots=4),
        PlacedWorker(worker_id="w2", node_id="n2", slots=2),
    ]
    print_start(
        StartReply(
            command_id="c",
            job_id="j",
            run_id=3,
            workers=placed,
            warnings=["unknown field $.slot, did you mean slots?"],
        )
    )
    print_stop(StopReply(command_id="c", job_id="j", workers=["w1"]))
    said = capsys.readouterr()
    assert said.out.startswith("j run 3: 6 slots, 2 workers\n")
    assert said.out.endswith("j: 1 workers stopped\n  w1\n")
    assert said.err == "warning: unknown field $.slot, did you mean slots?\n"


def test_an_error_says_its_code_its_sentence_and_its_facts(capsys: Capture) -> None:
    error_line(NotEnoughSlots(slots_needed=2, slots_free=4, message="no room", job_id="j"))
    assert capsys.readouterr().err == (
        "error not_enough_slots: no room (slots_needed=2, slots_free=4, job_id=j)\n"
    )
    error_line(StartFailed("no worker", reasons={"n1": "no such program", "n2": "silent"}))
    assert capsys.readouterr().err == (
        "error start_failed: no worker\n  n1: no such program\n  n2: silent\n"
    )


def test_progress_into_a_pipe_says_each_thing_once(capsys: Capture) -> None:
    with progress("starting j") as shown:
        shown.say("no controller answers")
        shown.say("no controller answers")
        shown.pause()
    assert capsys.readouterr().err == "no controller answers\n"


def test_a_record_is_told_fact_by_fact() -> None:
    record = EventRecord(
        position=12,
        at=NOON + timedelta(milliseconds=7),
        epoch=1,
        cause="start c-1",
        events=[
            f.WorkerAssigned(
                worker_id="w1", job_id="j", run_id=2, node_id="n1", incarnation="i", slots=4
            ),
            f.RunRunning(job_id="j", run_id=2),
        ],
        unknown=["node_painted"],
        body=b"",
    )
    first, second, third = tell(record)
    assert first.split()[0] == "12"
    assert ".007  worker_assigned w1 j/2 n1 slots=4   <- start c-1" in first
    assert second.strip() == "run_running j/2"
    assert third.strip() == "node_painted (unknown to this version)"


def test_facts_with_everything_in_them_can_be_told() -> None:
    created = f.RunCreated(
        job_id="j",
        run_id=1,
        command_id="c",
        slots=2,
        name="a name",
        hash="ff",
        deadline=NOON,
        program=msgspec.Raw(b'{"a": 1}'),
        env_vars={"SECRET": "x"},
    )
    told = tell_fact(created)
    assert told.startswith("run_created j/1 command_id=c slots=2 name='a name' deadline=")
    assert "SECRET" not in told
    ended = f.WorkerEnded(worker_id="w1", state=WorkerState.FINISHED, exit_code=0)
    assert tell_fact(ended) == "worker_ended w1 state=finished exit_code=0"


def test_output_comes_in_whole_lines_with_their_owner(capsys: Capture) -> None:
    out = WorkerLines(prefix=True)
    out.add("w1", "one\ntw")
    out.add("w2", "alpha\n")
    out.add("w1", "o\n\nrest")
    out.finish()
    assert capsys.readouterr().out.splitlines() == [
        "w1 | one", "w2 | alpha", "w1 | two", "w1 | ", "w1 | rest",
    ]  # fmt: skip
    bare = WorkerLines(prefix=False)
    bare.add("w1", "\x1b[31mred\x1b[0m\n")
    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m\n"


def test_since_when() -> None:
    assert parse_since(None) is None
    assert parse_since("17") == 17
    ago = parse_since("90m")
    assert isinstance(ago, datetime)
    assert abs(datetime.now(UTC) - ago - timedelta(minutes=90)) < timedelta(seconds=5)
    assert parse_since("2024-05-01T12:00:00Z") == NOON
    for text in ("yesterday", "10y", "-3", "", "99999999999999999d"):
        with pytest.raises(Invalid, match="--since"):
            parse_since(text)


def test_one_page_stays_as_it_came_and_several_become_one() -> None:
    assert join_pages([b'{"new_field":1, "jobs":[]}']) == b'{"new_field":1, "jobs":[]}'
    pages = [b'{"jobs":[{"job_id":"a"}],"next":"1"}', b'{"jobs":[{"job_id":"b"}],"next":""}']
    assert join_pages(pages) == b'{"jobs":[{"job_id":"a"},{"job_id":"b"}],"next":""}'
