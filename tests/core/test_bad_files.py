"""Job files, configuration files and the environment: whatever they hold, one clear refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.job_file import StartArguments, build_start, read_program
from controller.config import load_controller
from events.errors import Invalid, TooLarge

DEEP = 100_000
HUGE = b"1" + b"0" * 5_000
NEEDED = b'job_id = "j"\nslots = 1\n'
JOBS: dict[str, tuple[str, bytes]] = {
    "lists in lists": ("j.json", b"[" * DEEP),
    "objects in objects": ("j.json", b'{"a":' * DEEP),
    "lists in lists, TOML": ("j.toml", b"a = " + b"[" * DEEP),
    "closed": ("j.toml", NEEDED + b"program = " + b"[" * DEEP + b"]" * DEEP),
    "a long key": ("j.toml", b".".join([b"a"] * 1_000) + b" = 1"),
    "huge number": ("j.toml", NEEDED + b"program = " + HUGE),
    "huge number, JSON": ("j.json", b'{"job_id": "j", "slots": ' + HUGE + b"}"),
    "beyond int64": ("j.toml", b'job_id = "j"\nslots = 9223372036854775808'),
    "huge float": ("j.json", b'{"job_id": "j", "slots": 1, "wait_s": 1e999}'),
    "nan": ("j.toml", NEEDED + b"wait_s = nan"),
    "inf": ("j.toml", NEEDED + b"wait_s = inf"),
    "nan in the program": ("j.toml", NEEDED + b"program = [[nan]]"),
    "inf in the program": ("j.toml", NEEDED + b"program = { a = inf }"),
    "null byte": ("j.toml", NEEDED + b'name = "\0"'),
    "escaped null byte": ("j.toml", NEEDED + b'name = "\\u0000"'),
    "lone surrogate": ("j.toml", NEEDED + b'name = "\\ud800"'),
    "lone surrogate, JSON": ("j.json", b'{"job_id": "j", "slots": 1, "name": "\\ud800"}'),
    "bad UTF-8": ("j.toml", NEEDED + b'name = "\xff"'),
    "a date for a name": ("j.toml", b"job_id = 2026-01-01\nslots = 1"),
    "twice": ("j.toml", NEEDED + NEEDED),
    "nothing": ("j.json", b""),
    "zero slots": ("j.toml", b'job_id = "j"\nslots = 0'),
    "a dotted id": ("j.toml", b'job_id = "a.b"\nslots = 1'),
    "a long id": ("j.toml", b'job_id = "' + b"x" * 300 + b'"\nslots = 1'),
    "a reserved variable": ("j.toml", NEEDED + b'env_vars = { SLOTBUS_X = "1" }'),
}
CONFIGS: dict[str, bytes] = {
    "lists in lists": b"worker_command = " + b"[" * DEEP,
    "huge number": b"task_slots = " + HUGE,
    "beyond the slots of a node": b"task_slots = 1000001",
    "nan": b"node_expiry_s = nan",
    "inf": b"stop_timeout_s = inf",
    "wrong type": b"server = 1",
    "a dotted id": b'cluster = "a.b"',
    "wildcards": b'root = "a.*"',
    "bad UTF-8": b'server = "\xff"',
    "null byte": b'state_dir = "\\u0000"',
    "misspelt": b'schedular = "node"',
}
VARIABLES: dict[str, tuple[str, str]] = {
    "a word for a number": ("TASK_SLOTS", "many"),
    "nan": ("NODE_EXPIRY_S", "nan"),
    "inf": ("STOP_TIMEOUT_S", "inf"),
    "huge float": ("HEARTBEAT_S", "1e999"),
    "huge number": ("LEASE_TTL_S", HUGE.decode()),
    "lists in lists": ("WORKER_COMMAND", "[" * DEEP),
    "objects in objects": ("KUBERNETES", '{"a":' * DEEP),
    "an open quote": ("WORKER_COMMAND", '"sleep'),
    "bytes that are no text": ("SERVER", "nats://\udcff"),
    "wildcards": ("ROOT", ">"),
    "misspelt": ("SCHEDULAR", "node"),
}


def saved(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("what", JOBS)
def test_a_job_file_that_cant_be_is_refused(what: str, tmp_path: Path) -> None:
    name, data = JOBS[what]
    with pytest.raises(Invalid) as caught:
        build_start(StartArguments(file=saved(tmp_path, name, data)))
    assert caught.value.message
    assert len(caught.value.message) < 10_000


@pytest.mark.parametrize("what", CONFIGS)
def test_a_configuration_that_cant_be_is_refused(what: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        load_controller(file=saved(tmp_path, "c.toml", CONFIGS[what]), use_selected=False)
    assert caught.value.message


@pytest.mark.parametrize("what", VARIABLES)
def test_a_variable_that_cant_be_is_refused(what: str) -> None:
    name, value = VARIABLES[what]
    with pytest.raises(Invalid) as caught:
        load_controller(environ={f"SLOTBUS_CFG_{name}": value}, use_selected=False)
    assert caught.value.message


@pytest.mark.parametrize("text", ["[" * DEEP, HUGE.decode(), "NaN", '"\\ud800"', "\0", "@a\0b", ""])
def test_a_program_that_cant_be_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        read_program(text)


def test_arguments_that_are_no_text_are_refused() -> None:
    for arguments in (
        StartArguments(job_id="j", slots=1, name="\udcff"),
        StartArguments(job_id="j", slots=1, env=["A=\udcff"]),
        StartArguments(job_id="j", slots=1, selector=["a=\udcff"]),
        StartArguments(job_id="j", slots=1, command=["\udcff"]),
        StartArguments(job_id="j", slots=1, file=Path("a\0b")),
    ):
        with pytest.raises(Invalid):
            build_start(arguments)


def test_parts_over_their_limits_are_too_large() -> None:
    for arguments, limit in (
        (StartArguments(job_id="j", slots=1, program=f'"{"p" * 600_000}"'), 512 * 1024),
        (StartArguments(job_id="j", slots=1, env=["A=" + "e" * 200_000]), 128 * 1024),
        (StartArguments(job_id="j", slots=1, selector=["a=" + "s" * 70_000]), 64 * 1024),
    ):
        with pytest.raises(TooLarge) as caught:
            build_start(arguments)
        assert caught.value.facts["limit"] == limit
