"""Logs of every schema version stay readable, and fold to the same bytes as ever."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec
import pytest

from events.audit import audit
from events.facts import SCHEMA_VERSION, Record
from schedulers.files import read_file, replay_file
from schedulers.recording import FORMAT, Entered, Header, decode_lines, message_of
from schedulers.replaying import Diverged, replay
from tests.golden.make import EXAMPLE, FOLDER, LOG, RECORDING, example

LOGS = sorted(FOLDER.glob("log_v*.jsonl"))
RECORDINGS = sorted(FOLDER.glob("recording_v*.jsonl"))


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


def test_there_is_a_golden_recording_of_every_format_and_all_its_lines_are_read() -> None:
    names = [path.name for path in RECORDINGS]
    assert names == [f"recording_v{v}.jsonl" for v in range(1, FORMAT + 1)]
    for path in RECORDINGS:
        lines = list(read_file(path))
        assert isinstance(lines[0], Header)
        assert len(lines) == len(path.read_bytes().splitlines())
        assert all(message_of(line) for line in lines if isinstance(line, Entered))


def test_the_golden_recording_leads_to_the_golden_log_up_to_another_decision() -> None:
    """A version that decides otherwise than the one that recorded says where; up to there the
    log is the same."""
    heard: list[Record] = []
    with contextlib.suppress(Diverged):
        replay_file(RECORDING, watch=lambda _, record: heard.append(record))
    assert len(heard) > 10
    assert heard == records_of(LOG)[: len(heard)]


def test_the_example_project_has_a_recording_of_today() -> None:
    """A user's first look must not be at a divergence: ``python -m tests.golden.make``."""
    made = replay(decode_lines(example().splitlines()))
    assert replay_file(EXAMPLE).records == made.records
