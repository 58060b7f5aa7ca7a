"""Logs of every schema version stay readable, and fold to the same bytes as ever."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import msgspec
import pytest

from events.audit import audit
from events.facts import SCHEMA_VERSION, Record
from schedulers.files import read_file
from schedulers.replaying import replay
from tests.golden.make import FOLDER, LOG, lived
from tests.golden.replayed import digest

LOGS = sorted(FOLDER.glob("log_v*.jsonl"))
CHECKOUT = FOLDER.parents[1]


def records_of(path: Path) -> list[Record]:
    records = list(read_file(path))
    assert all(isinstance(record, Record) for record in records)
    return [record for record in records if isinstance(record, Record)]


def test_there_is_a_golden_log_of_every_version() -> None:
    assert [path.name for path in LOGS] == [f"log_v{v}.jsonl" for v in range(1, SCHEMA_VERSION + 1)]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_it_folds_to_the_same_bytes_and_keeps_the_laws(path: Path) -> None:
    records = records_of(path)
    known = path.with_suffix("").with_suffix(".ledger.json").read_bytes()
    folded = msgspec.json.format(replay(records).ledger.snapshot(), indent=1) + b"\n"
    assert folded == known
    assert not audit(records, records[-1].at)


def test_the_golden_log_has_nearly_every_fact() -> None:
    told = set(re.findall(rb'"type":"(\w+)"', LOG.read_bytes()))
    assert len(told) >= 23
    assert b"node_forgotten" in told


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A life that was just lived, recorded."""
    path = tmp_path_factory.mktemp("life") / "life.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lived().recorder.lines))
    return path


@pytest.mark.parametrize(
    ("seed", "zone", "language"),
    [("0", "UTC", "C"), ("1", "Asia/Kathmandu", "C.UTF-8"), ("4242", "America/St_Johns", "C")],
)
async def test_a_replay_is_the_same_under_any_seed_zone_and_language(
    recording: Path, seed: str, zone: str, language: str
) -> None:
    settings = {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": language}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "tests.golden.replayed", str(recording)),
        cwd=CHECKOUT,
        env=os.environ | settings | {"PYTHONPATH": str(CHECKOUT)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode().strip() == digest(recording)
