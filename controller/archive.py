"""The archive: what was purged from the event log, in files that time travel reads.

What lives here: writing stretches of the log into files, verified before anything is
purged, and finding them again. What may not: when (``controller.retention``), and what is
made of them (``controller.past``).

A file ``log-<first>-<last>.jsonl.gz`` holds these records, a line of JSON each, after a
snapshot of what came before them, where anything did: as ``slotbus events -o jsonl`` writes
them, so that each file can be read alone. Files of several controllers can be put together.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from msgspec import Raw, Struct

from events.errors import SlotbusError
from events.ids import START, Position
from events.log import EventLog, LogLost, decode_record, encode_record
from events.snapshots import SnapshotStore, SnapshotUnreadable, unpack
from events.wholefiles import sync_folder
from schedulers.files import FileLines
from schedulers.packing import Damaged, Unpacked, create
from schedulers.recording import Snapshot, encode_line

SLICE_RECORDS: Final = 100
_NAME: Final = re.compile(r"log-(\d{19})-(\d{19})\.jsonl\.gz\Z", re.ASCII)

T = TypeVar("T")


class ArchiveFailed(SlotbusError):
    """The archive could not be written, or what was written is not what was meant: nothing
    is purged."""


class Part(Struct, frozen=True, order=True):
    """A file of the archive, and which records it holds."""

    first: int
    last: int
    path: Path


def parts_of(folder: Path) -> list[Part]:
    """The files of an archive in the order of their records, which may overlap. Raises
    OSError."""
    found = [(path, _NAME.match(path.name)) for path in folder.iterdir()]
    return sorted(Part(int(m[1]), int(m[2]), path) for path, m in found if m is not None)


class Archive:
    """A folder, which is made with the first file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def export(
        self, log: EventLog, store: SnapshotStore, positions: Sequence[Position], first: int
    ) -> Position:
        """Writes what the log holds up to the last of the ``positions``, at each of which
        there is a snapshot, a file for the stretch between two. ``first``: where the log
        begins. Returns up to where the archive goes.

        Raises ArchiveFailed, LogError, SnapshotUnreadable, SnapshotFailed.
        """
        newest = await self._work(self._newest)
        if newest is not None and newest.last >= first:
            await self._check(log, newest)
        done = START if newest is None else Position(newest.last)
        bases = [START, *positions] if first <= 1 else list(positions)
        begin = max((base for base in bases if base <= done), default=bases[0])
        for base, last in itertools.pairwise(bases):
            if base >= begin and last > done:
                await self._write(log, store, base, last)
                done = last
        return done

    def _newest(self) -> Part | None:
        if not self._folder.is_dir():
            return None
        return max(parts_of(self._folder), key=lambda part: part.last, default=None)

    async def _check(self, log: EventLog, part: Part) -> None:
        """Raises ArchiveFailed where a file is of another log."""
        archived = decode_record(await self._work(lambda: _last_line(part)), Position(part.last))
        try:
            async with aclosing(log.read(Position(part.last - 1))) as batches:
                async for records in batches:
                    found = records[0]
                    break
        except LogLost as error:
            raise ArchiveFailed(f"{part.path} is of another log: {error.message}") from error
        if (found.at, found.epoch) != (archived.at, archived.epoch):
            raise ArchiveFailed(f"{part.path} is of another log: give this one another folder")

    async def _write(
        self, log: EventLog, store: SnapshotStore, base: Position, last: Position
    ) -> None:
        """Writes the file of the records behind ``base`` up to ``last``."""
        path = self._folder / f"log-{base + 1:019d}-{last:019d}.jsonl.gz"
        writing = _Writing(path)
        await self._work(writing.open)
        try:
            if base:
                await self._work(writing.add, await _snapshot_line(store, base))
            position = base
            async with aclosing(log.read(base)) as batches:
                async for records in batches:
                    wanted = records[: last - position]
                    for at in range(0, len(wanted), SLICE_RECORDS):
                        some = wanted[at : at + SLICE_RECORDS]
                        lines = b"".join(encode_record(record) + b"\n" for record in some)
                        await self._work(writing.add, lines)
                    position = Position(position + len(wanted))
                    if position >= last:
                        break
            if position < last:
                raise ArchiveFailed(f"the log ends at {position}, before {last}")
            await self._work(writing.finish)
        finally:
            await self._work(writing.let_go)

    async def _work(self, work: Callable[..., T], *arguments: bytes) -> T:
        """In a thread, for it waits for the disk."""
        try:
            return await asyncio.to_thread(work, *arguments)
        except (OSError, Damaged) as error:
            raise ArchiveFailed(f"the archive {self._folder}: {error}") from error


def _last_line(part: Part) -> bytes:
    last = b""
    for line in FileLines(part.path):
        last = line
    return last


async def _snapshot_line(store: SnapshotStore, base: Position) -> bytes:
    try:
        data = await asyncio.to_thread(unpack, await store.load(base))
    except SnapshotUnreadable as error:
        raise ArchiveFailed(f"the snapshot at {base}: {error.message}") from error
    return await asyncio.to_thread(
        lambda: encode_line(Snapshot(position=base, ledger=Raw(data))) + b"\n"
    )


class _Writing:
    """One file, under another name until it was read again and is right."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".partial-{path.name}")
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._partial.unlink(missing_ok=True)
        self._file = create(self._partial)

    def add(self, lines: bytes) -> None:
        assert self._file is not None
        self._file.write(lines)
        self._hash.update(lines)

    def finish(self) -> None:
        """Raises Damaged where the disk holds something else than was written."""
        self._close()
        descriptor = os.open(self._partial, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        found, unpacked = hashlib.sha256(), Unpacked(self._partial)
        for data in unpacked:
            found.update(data)
        if not unpacked.whole or found.digest() != self._hash.digest():
            raise Damaged(f"{self._partial.name} is not what was written")
        self._partial.replace(self._path)
        sync_folder(self._path.parent)

    def let_go(self) -> None:
        self._close()
        self._partial.unlink(missing_ok=True)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
