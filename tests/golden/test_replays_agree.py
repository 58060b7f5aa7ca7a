"""One recording comes to the same bytes whenever, wherever and on whatever Python it is played."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from msgspec import Struct

from tests.golden.make import example, lived, recorded
from tests.golden.replayed import digest
from tests.support.binaries.fixtures import obtained
from tests.support.pythons import CHECKOUT, Python, ensure

TIMEOUT_S = 60.0


class Place(Struct, frozen=True):
    """What must not matter: hash seed, time zone, language, the time."""

    seed: str
    zone: str
    language: str
    wall: str


PLACES = [
    Place("0", "UTC", "C", "1971-03-01T00:00:00+00:00"),
    Place("1", "Asia/Kathmandu", "C.UTF-8", "2099-12-31T23:59:59+05:45"),
    Place("4242", "America/St_Johns", "C", "2026-03-08T02:30:00-03:30"),
]
OURS = Python(sys.version_info[:2], sys.executable)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A life that was just lived, and a short one."""
    folder = tmp_path_factory.mktemp("lives")
    (folder / "life.jsonl").write_bytes(recorded(lived()))
    (folder / "short.jsonl").write_bytes(example())
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def other_pythons(request: pytest.FixtureRequest) -> list[Python]:
    """Of each other version on this machine one, with what a replay needs."""
    return obtained(request, "other_pythons", ensure)


async def played(python: Python, path: Path, place: Place) -> str:
    settings = {"PYTHONHASHSEED": place.seed, "TZ": place.zone, "LC_ALL": place.language}
    process = await asyncio.create_subprocess_exec(
        *(python.program, "-P", "-m", "tests.golden.replayed", str(path), place.wall),
        cwd=CHECKOUT,
        env=python.environ() | settings,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    assert process.returncode == 0, f"Python {python.name}: {err.decode()}"
    return out.decode().strip()


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.zone)
async def test_at_any_time_in_any_zone_under_any_seed(recordings: list[Path], place: Place) -> None:
    for path in recordings:
        assert await played(OURS, path, place) == digest(path)


@pytest.mark.timeout(300, func_only=True)
async def test_on_each_python_of_this_machine(
    recordings: list[Path], other_pythons: list[Python]
) -> None:
    for python, place in zip(other_pythons, PLACES * len(other_pythons), strict=False):
        for path in recordings:
            assert await played(python, path, place) == digest(path), python.name
