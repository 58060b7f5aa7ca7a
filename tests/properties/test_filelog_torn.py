"""However a crash tore the file: no whole line is lost, and the log goes on behind it."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from events.facts import Record
from events.filelog import FileLog
from events.ids import Position
from events.log import encode_record
from tests.support.records import a_record, read_all, some_records

CAUSES = st.text(max_size=12)


async def _recover(path: Path, whole: list[Record]) -> None:
    reader = FileLog(path)
    assert await read_all(reader) == whole
    log = FileLog(path, fsync="never")
    new = a_record(99)
    await log.append([new], expected=Position(len(whole)), timeout_s=10)
    assert await read_all(log) == await read_all(reader) == [*whole, new]
    await log.close()
    await reader.close()


def _check(records: list[Record], cut: int) -> None:
    lines = [encode_record(record) + b"\n" for record in records]
    data = b"".join(lines)[:cut]
    count = data.count(b"\n")
    torn = data[len(b"".join(lines[:count])) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(data)
        asyncio.run(_recover(path, records[:count]))
        kept = path.with_name("events.jsonl.torn")
        assert (kept.read_bytes() if torn else b"\n") == torn + b"\n"
        assert kept.exists() == bool(torn)


def test_torn_at_every_byte() -> None:
    records = some_records(2)
    for cut in range(sum(len(encode_record(record)) + 1 for record in records) + 1):
        _check(records, cut)


@settings(deadline=None, max_examples=60)
@given(causes=st.lists(CAUSES, max_size=6), data=st.data())
def test_torn_anywhere_whatever_was_written(causes: list[str], data: st.DataObject) -> None:
    records = [a_record(n, cause=f"c {cause}") for n, cause in enumerate(causes, 1)]
    size = sum(len(encode_record(record)) + 1 for record in records)
    _check(records, data.draw(st.integers(0, size)))
