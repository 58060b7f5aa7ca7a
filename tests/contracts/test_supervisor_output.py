"""What both supervisors give to a worker, and what they keep of its words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schedulers.supervisor.api import OutputTail
from tests.support import workers
from tests.support.supervision import NODE, Home
from tests.support.waiting import until


def environment_in(tail: OutputTail) -> dict[str, str]:
    pairs = (line.partition("=") for line in tail.data.decode().splitlines())
    return {name: value for name, _, value in pairs}


async def test_what_a_worker_sees(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    await home.launch(
        "w",
        workers.tells_environment(),
        program=b'{"a":[1,2]}',
        env_vars={"COLOUR": "red", "SLOTBUS_SLOTS": "99", "HOME": "/elsewhere"},
    )
    seen = environment_in(await home.printed("w", b"CWD="))
    told = {name: value for name, value in seen.items() if name.startswith("SLOTBUS_")}
    assert told.pop("SLOTBUS_SUPERVISOR") in home.marks
    assert told == {
        "SLOTBUS_JOB_ID": "job",
        "SLOTBUS_RUN_ID": "3",
        "SLOTBUS_WORKER_ID": "w",
        "SLOTBUS_SLOTS": "2",
        "SLOTBUS_NODE_ID": NODE,
        "SLOTBUS_NAME": "a name",
        "SLOTBUS_HASH": "abc",
        "SLOTBUS_WASM_PATH": "/some.wasm",
        "SLOTBUS_PROGRAM": '{"a":[1,2]}',
    }
    assert (seen["COLOUR"], seen["HOME"]) == ("red", "/elsewhere")
    assert seen["CWD"] == str(home.workdir)


async def test_of_the_supervisors_environment_only_what_is_listed(home: Home) -> None:
    # Python's own test runner has set this one, in either supervisor's environment.
    await home.launch("w", workers.tells_environment())
    seen = environment_in(await home.printed("w", b"CWD="))
    assert "PATH" in seen
    assert "PYTEST_CURRENT_TEST" not in seen
    assert "PYTHONPATH" not in seen


@pytest.mark.parametrize("size", [64 * 1024 - 2, 512 * 1024])
async def test_a_program_arrives_as_text_or_as_a_file(
    home: Home, tmp_path: Path, size: int
) -> None:
    program = b'"' + b"x" * size + b'"'
    copy = tmp_path / "copy"
    if len(program) <= 64 * 1024:
        command = workers.shell(f'printf %s "$SLOTBUS_PROGRAM" > {copy}')
    else:
        command = workers.copies_program_file(copy)
    await home.launch("w", command, program=program)
    assert (await home.end("w")).exit_code == 0
    assert copy.read_bytes() == program


async def test_output_is_read_by_offset_of_the_living_and_the_ended(home: Home) -> None:
    await home.launch("w", workers.shell("echo one; echo two >&2"))
    await home.end("w")
    supervisor = home.supervisor
    assert await supervisor.output("w", since=0, max_bytes=100) == OutputTail(b"one\ntwo\n", 8)
    assert await supervisor.output("w", since=0, max_bytes=3) == OutputTail(b"one", 3)
    assert await supervisor.output("w", since=4, max_bytes=100) == OutputTail(b"two\n", 8)
    assert await supervisor.output("w", since=8, max_bytes=100) == OutputTail(b"", 8)
    assert await supervisor.output("w", since=-1, max_bytes=4) == OutputTail(b"two\n", 8)
    await supervisor.acknowledge(["w"])
    assert await supervisor.output("w", since=-1, max_bytes=100) == OutputTail(b"one\ntwo\n", 8)


@pytest.mark.parametrize("name", ["nobody", "../state", ""])
async def test_an_unknown_worker_has_none(home: Home, name: str) -> None:
    tail = await home.supervisor.output(name, since=-1, max_bytes=100)
    assert tail == OutputTail(b"", 0)


async def test_offsets_survive_rotation(home: Home) -> None:
    """20,000 bytes a file, three files: of 500,000 bytes the last ones stay, but for lines
    written in the microseconds between the copy of a file and its emptying."""
    width, lines = 100, 5_000
    await home.launch("w", workers.prints(lines, width))
    position, text = 0, b""
    async with asyncio.timeout(30):
        while not text.endswith(f"{lines - 1:0{width - 1}d}\n".encode()):
            tail = await home.supervisor.output("w", since=position, max_bytes=1_000_000)
            begin = tail.offset - len(tail.data)
            assert begin >= position
            text = text + tail.data if begin == position else tail.data
            position = tail.offset
            await asyncio.sleep(0.002)
    lost, rest = divmod(width * lines - position, width)
    assert rest == 0
    assert 0 <= lost <= 20
    kept = [int(line) for line in text.splitlines()[1:]]
    assert kept == sorted(set(kept))
    assert kept[-1] - kept[0] + 1 - len(kept) <= lost
    folder = home.state_dir / "workers" / "w"
    await until(lambda: (folder / "output.log").stat().st_size <= 20_000)
    assert sum(1 for _ in folder.glob("output*.log")) <= 3
    last = await home.supervisor.output("w", since=-1, max_bytes=10 * width)
    assert last.offset == position
    assert [int(line) for line in last.data.split()] == kept[-10:]


async def test_output_of_the_longest_ended_is_removed(local_home: Home) -> None:
    names = [f"w{i:03d}" for i in range(local_home.settings.kept_outputs + 3)]
    for name in names:
        await local_home.launch(name, workers.shell("echo here"))
        await local_home.end(name)
    folders = sorted(path.name for path in (local_home.state_dir / "workers").iterdir())
    assert folders == names[3:]
