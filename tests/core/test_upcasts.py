"""Logs of older schema versions: what they meant then is what is read now."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from events import log as logs
from events import upcasts
from events.facts import SCHEMA_VERSION, NodeCordoned, NodeUncordoned, Record
from events.filelog import FileLog
from events.ids import START, Position
from events.log import LogUnreadable, MemoryLog, decode_lines, decode_record, encode_record
from events.upcasts import UPCASTS, NoUpcast, Tree, upcast
from schedulers.files import read_file

AT = "2020-01-01T00:00:00Z"
HEAD = {"at": AT, "epoch": 1, "cause": "test"}


def first_to_second(tree: Tree) -> Tree:
    """In the first version a fact had one word for both ways."""
    for fact in tree["events"]:
        if fact["type"] == "node_marked":
            fact["type"] = "node_cordoned" if fact.pop("closed") else "node_uncordoned"
    return tree


def second_to_third(tree: Tree) -> Tree:
    """In the second one a node was named by its host."""
    for fact in tree["events"]:
        if "host" in fact:
            fact["node_id"] = fact.pop("host")
    return tree


def line(v: int, *facts: dict[str, object]) -> bytes:
    return msgspec.json.encode({"v": v, **HEAD, "events": list(facts)})


OLDEST = line(1, {"type": "node_marked", "host": "n1", "closed": True})
OLD = line(2, {"type": "node_uncordoned", "host": "n1"})
NEW = line(3, {"type": "node_cordoned", "node_id": "n1"})
LINES = (OLDEST, OLD, NEW)


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slotbus of schema version 3, which knows the two before it."""
    monkeypatch.setattr(logs, "SCHEMA_VERSION", 3)
    monkeypatch.setitem(UPCASTS, 1, first_to_second)
    monkeypatch.setitem(UPCASTS, 2, second_to_third)


def check(records: list[Record]) -> None:
    assert [record.events for record in records] == [
        [NodeCordoned(node_id="n1")],
        [NodeUncordoned(node_id="n1")],
        [NodeCordoned(node_id="n1")],
    ]
    assert {record.v for record in records} == {3}


def test_there_is_a_step_from_every_version_before_this_one() -> None:
    assert sorted(upcasts.UPCASTS) == list(range(1, SCHEMA_VERSION))


@pytest.mark.usefixtures("third")
def test_records_of_all_versions_are_read_as_of_this_one() -> None:
    check([decode_record(data, Position(at)) for at, data in enumerate(LINES, 1)])
    check(decode_lines(b"\n".join(LINES), 3, Position(1)))


@pytest.mark.usefixtures("third")
async def test_so_they_are_in_every_log_and_in_exported_files(tmp_path: Path) -> None:
    kept = MemoryLog()
    kept._lines = list(LINES)
    check([record async for batch in kept.read() for record in batch])
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(data + b"\n" for data in LINES))
    check([item for item in read_file(path) if isinstance(item, Record)])
    file = FileLog(path)
    check([record async for batch in file.read() for record in batch])
    await file.close()


@pytest.mark.usefixtures("third")
def test_what_is_written_anew_is_of_this_version() -> None:
    again = encode_record(decode_record(OLDEST, START))
    assert msgspec.json.decode(again) == msgspec.json.decode(NEW)


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize(
    ("data", "match"),
    [
        (line(0), "record 7 .* nobody knows what version 0 meant"),
        (line(1, {"type": "node_marked", "host": "n1"}), "it is none of version 1: KeyError"),
        (line(2, {"type": "node_marked"}), "record 7 of the event log can't be read"),
        (line(4), "schema version 4; this slotbus reads up to 3: upgrade it"),
        (b'{"v": 1', "record 7 of the event log can't be read"),
    ],
)
def test_what_can_not_be_brought_here_is_named(data: bytes, match: str) -> None:
    with pytest.raises(LogUnreadable, match=match):
        decode_record(data, Position(7))


def test_a_missing_step_is_said() -> None:
    with pytest.raises(NoUpcast, match="version 2"):
        upcast(OLDEST, 1, to=3, steps={1: first_to_second})
