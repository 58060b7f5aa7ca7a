"""The commands that look back, on files: no server is needed, or asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from controller.cli.main import app
from controller.demo.story import tell
from events.facts import Record, WorkerEnded
from events.log import encode_record
from events.states import WorkerState
from schedulers.files import read_file

LOG = Path(__file__).resolve().parents[1] / "golden" / "log_v1.jsonl"
runner = CliRunner()


def run(*arguments: str | Path, code: int = 0) -> Result:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def test_state_at_a_position_and_at_a_time() -> None:
    early = run("state", LOG, "--at", "12").output
    assert early.startswith("after record 12,")
    assert "w-10-1  wordcount  1    n1    4      running" in early
    seen = json.loads(run("state", LOG, "--at", "2026-01-01T00:00:26Z", "-o", "json").output)
    states = {node["node_id"]: node["state"] for node in seen["nodes"]}
    assert states == {"n1": "ready", "n2": "ready", "n3": "ready", "n4": "ready"}


def test_diff_marks_what_came_and_what_changed() -> None:
    lines = run("diff", "5", "20", LOG).output.splitlines()
    assert lines[0] == "from record 5 to 20"
    assert "~ node n4: state ready -> cordoned" in "\n".join(lines)
    assert "+ job wordcount: state running" in lines
    assert run("diff", "5", "5", LOG).output.splitlines() == [
        "from record 5 to 5",
        "nothing differs",
    ]
    changes = json.loads(run("diff", "5", "20", LOG, "-o", "json").output)["changes"]
    assert {change["kind"] for change in changes} == {"node", "job", "worker"}


def test_why_tells_the_decision_and_the_alternatives() -> None:
    told = run("why", "w-10-1", LOG).output
    assert "worker w-10-1 is there since record" in told
    assert "because of: start c-10" in told
    assert "taken: n1, 4 slots" in told
    assert "not taken: n3, n4" in told
    assert told.index("\nbefore\n") < told.index("\ndecided\n") < told.index("\nafter\n")
    assert json.loads(run("why", "w-10-1", LOG, "-o", "json").output)["taken"] == {"n1": 4, "n2": 2}
    run("why", "ghost", LOG, code=1)


def test_a_story_is_a_jobs_own() -> None:
    told = run("story", "beside", LOG).output
    assert "run_created beside/1" in told
    assert "wordcount" not in told
    lines = run("story", "beside", LOG, "-o", "json").output.splitlines()
    assert len(lines) < len(LOG.read_bytes().splitlines())
    assert json.loads(lines[0])["cause"].startswith("start ")
    run("story", "ghost", LOG, code=1)


def test_audit_ends_with_what_it_found(tmp_path: Path) -> None:
    whole = run("audit", LOG).output
    assert "records keep all six laws" in whole
    last = [item for item in read_file(LOG) if isinstance(item, Record)][-1]
    ghost = WorkerEnded(worker_id="ghost", state=WorkerState.FAILED)
    broken = tmp_path / "broken.jsonl"
    wrong = encode_record(Record(at=last.at, epoch=last.epoch, cause="test", events=[ghost]))
    broken.write_bytes(LOG.read_bytes() + wrong + b"\n")
    told = run("audit", broken, code=1).output
    assert "law 5 is broken at record" in told
    assert "worker_ended ghost" in told
    assert json.loads(run("audit", broken, "-o", "json", code=1).output)["violation"]["law"] == 5
    assert "can't be" in run("state", broken, code=1).output


@pytest.mark.parametrize(
    "arguments",
    [
        ("state", LOG, "--at", "yesterday"),
        ("diff", "1", "soon", LOG),
        ("events", "--from", "3"),
        ("events", "-o", "jsonl", "--job", "j"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_read(arguments: tuple[str | Path, ...]) -> None:
    run(*arguments, code=2)


def test_files_that_can_not_be_read_are_errors_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    for name, code in (("bad.jsonl", 1), ("none.jsonl", 2)):
        result = run("audit", tmp_path / name, code=code)
        assert result.output.startswith("error ")
        assert len(result.output.splitlines()) == 1


def test_why_and_story_tell_of_restarts_moves_and_dead_nodes() -> None:
    told = run("why", "again", LOG).output
    assert "its lease of 40 s is over: nobody has heard node n1 since" in told
    assert "run_created again/3" in told.split("\ndecided\n")[1]
    assert "restart 2 in a row, after" in told
    moved = run("story", "mover", LOG).output
    assert "run_stopping mover/1 reason='it moves off node" in moved
    assert "restart_of=1" in moved
    sentences = [text for record in read_file(LOG) if isinstance(record, Record)
                 for text in tell(record.events)]  # fmt: skip
    assert "again restarts: run 3 follows run 2" in sentences
    assert "mover moves: run 2 follows run 1" in sentences
    assert "large run 1 waits: 3 slots are missing" in sentences
    assert any(text.endswith(" is dead, says a person (c-107)") for text in sentences)
