"""From arguments and job files to a start request: every mistake is named."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.cli.job_file import (
    MAX_FILE_BYTES,
    StartArguments,
    build_start,
    moment,
    pairs,
    read_job_file,
    read_program,
)
from events.errors import Invalid, TooLarge
from events.messages import SchedulerConfig, StartPipelineReq
from events.policies import RestartOptions
from events.waits import wait_for_start

TOML = """\
job_id = "wordcount"
slots = 6
name = "Word count"
wasm_path = "/opt/count.wasm"

[program]
source = "words"
windows = [1, 5]

[env_vars]
LOG = "info"
KEEP = "yes"

[scheduler_config]
command = ["python3", "count.py"]
selector = { zone = "a" }
"""


def saved(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_job_file_says_it_all(tmp_path: Path) -> None:
    request = build_start(StartArguments(file=saved(tmp_path, "job.toml", TOML)))
    assert request == StartPipelineReq(
        wait_s=wait_for_start(),
        job_id="wordcount",
        slots=6,
        name="Word count",
        wasm_path="/opt/count.wasm",
        program={"source": "words", "windows": [1, 5]},
        env_vars={"LOG": "info", "KEEP": "yes"},
        scheduler_config=SchedulerConfig(command=["python3", "count.py"], selector={"zone": "a"}),
    )


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    tree = read_job_file(saved(tmp_path, "job.toml", TOML))
    as_json = saved(tmp_path, "job.json", json.dumps(tree))
    assert build_start(StartArguments(file=as_json)) == build_start(
        StartArguments(file=tmp_path / "job.toml")
    )


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    request = build_start(
        StartArguments(
            file=saved(tmp_path, "job.toml", TOML),
            job_id="other",
            slots=2,
            env=["LOG=debug", "URL=http://x/?a=b"],
            program='{"source": "numbers"}',
            command=["sh", "-c", "exit 3"],
            spread="even",
            wait_s=0,
            run_id=4,
        )
    )
    assert (request.job_id, request.slots, request.run_id, request.wait_s) == ("other", 2, 4, 0)
    assert request.env_vars == {"LOG": "debug", "KEEP": "yes", "URL": "http://x/?a=b"}
    assert request.program == {"source": "numbers"}
    assert request.scheduler_config == SchedulerConfig(
        command=["sh", "-c", "exit 3"], selector={"zone": "a"}, spread="even"
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.toml", 'job_id = "a"\nslot = 1\n', "there is no field 'slot', did you mean slots?"),
        ("job.json", '{"wasmpath": ""}', "there is no field 'wasmpath', did you mean wasm_path?"),
        ("job.toml", "[scheduler_config]\ncmd = 'x'\n", "no field 'scheduler_config.cmd'"),
        ("job.toml", "[scheduler_config]\nselektor = {}\n", "did you mean selector?"),
        ("job.toml", "job_id = \n", "job.toml is not TOML"),
        ("job.json", "{", "job.json is not JSON"),
        ("job.json", "[1]", "job.json holds no object"),
        ("job.toml", 'job_id = "a"\nslots = 1\nenv_vars = "x"\n', "`object`"),
        ("job.toml", 'job_id = "a b"\nslots = 1\n', "matching regex"),
        ("job.toml", 'job_id = "a"\nslots = 0\n', ">= 1"),
        ("job.toml", 'job_id = "a"\nslots = "six"\n', "Expected `int`"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        build_start(StartArguments(file=saved(tmp_path, name, text)))
    assert said in caught.value.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"nothing\.toml can't be read: No such file"):
        build_start(StartArguments(file=tmp_path / "nothing.toml"))
    with pytest.raises(Invalid, match="Is a directory"):
        build_start(StartArguments(file=tmp_path))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(Invalid, match="is not UTF-8"):
        build_start(StartArguments(file=tmp_path / "latin.toml"))
    with pytest.raises(Invalid, match="larger than"):
        build_start(StartArguments(file=saved(tmp_path, "big.toml", "#" * (MAX_FILE_BYTES + 1))))


def test_what_is_needed_is_asked_for() -> None:
    with pytest.raises(Invalid, match="job_id is needed: say JOB"):
        build_start(StartArguments(slots=1))
    with pytest.raises(Invalid, match="slots is needed: say --slots N"):
        build_start(StartArguments(job_id="a"))


@pytest.mark.parametrize("text", ["LOG", "=x", ""])
def test_a_pair_without_a_name_or_an_equals_sign(text: str) -> None:
    with pytest.raises(Invalid, match="is not K=V"):
        pairs([text], "--env")


def test_a_reserved_variable_is_refused() -> None:
    with pytest.raises(Invalid, match="reserved"):
        build_start(StartArguments(job_id="a", slots=1, env=["SLOTBUS_JOB_ID=x"]))


def test_a_program_is_json_in_place_in_a_file_or_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_program("[1, null]") == [1, None]
    assert read_program(f"@{saved(tmp_path, 'p.json', '{}')}") == {}
    monkeypatch.setattr("sys.stdin", io.StringIO('"text"'))
    assert read_program("@-") == "text"
    with pytest.raises(Invalid, match="a file is given as @FILE"):
        read_program("p.json")
    with pytest.raises(Invalid, match=r"p\.json is not JSON"):
        read_program(f"@{saved(tmp_path, 'p.json', '{')}")


def test_a_program_over_the_limit(tmp_path: Path) -> None:
    path = saved(tmp_path, "p.json", json.dumps("x" * 600_000))
    with pytest.raises(TooLarge, match="store it elsewhere"):
        build_start(StartArguments(job_id="a", slots=1, program=f"@{path}"))


def test_policies_come_from_flags_and_from_the_file(tmp_path: Path) -> None:
    file = saved(
        tmp_path,
        "job.toml",
        'job_id = "j"\nslots = 2\non_lost = "restart"\npriority = 3\n'
        "not_after = 2026-01-31T12:00:00Z\n"
        "[restart]\nlimit = 5\nfirst_s = 2\n",
    )
    request = build_start(
        StartArguments(
            file=file,
            on_failure="restart",
            on_drain="stop",
            on_shortage="wait",
            restart={"first_s": 0.5, "quiet_s": None},
        )
    )
    assert request == StartPipelineReq(
        wait_s=wait_for_start(),
        job_id="j",
        slots=2,
        on_failure="restart",
        on_lost="restart",
        on_drain="stop",
        on_shortage="wait",
        priority=3,
        not_after=datetime(2026, 1, 31, 12, tzinfo=UTC),
        restart=RestartOptions(first_s=0.5, limit=5),
    )


def test_a_time_is_one_with_its_zone_or_seconds_from_now() -> None:
    assert moment("2026-01-31T12:00:00+01:00", "--not-after").astimezone(UTC).hour == 11
    in_a_minute = moment("60", "--not-after") - datetime.now(UTC)
    assert timedelta(seconds=55) < in_a_minute <= timedelta(seconds=60)
    for text in ("soon", "2026-01-31T12:00:00", "1e400", "nan"):
        with pytest.raises(Invalid, match="--not-after"):
            moment(text, "--not-after")


@pytest.mark.parametrize(
    ("field", "value"),
    [("on_failure", "explode"), ("on_drain", "fly"), ("priority", 5_000), ("on_shortage", "cry")],
)
def test_a_policy_that_is_none_names_its_field(field: str, value: object) -> None:
    with pytest.raises(Invalid) as wrong:
        build_start(StartArguments(job_id="j", slots=1, **{field: value}))  # type: ignore[arg-type]
    assert wrong.value.path == f"$.{field}"


def test_a_limit_of_no_restarts_is_refused() -> None:
    with pytest.raises(Invalid) as wrong:
        build_start(StartArguments(job_id="j", slots=1, restart={"limit": 0}))
    assert wrong.value.path == "$.restart.limit"
