"""Snapshots in files beside a ``FileLog``: one a file, its head first, as a line of JSON.

What lives here: writing them whole, and reading. What may not: what is in them
(``events.snapshots``).

All work on files runs in threads of the loop's pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from events.ids import Position
from events.snapshots import (
    Head,
    Snapshot,
    SnapshotFailed,
    SnapshotUnreadable,
    decode_head,
    encode_head,
)
from events.wholefiles import write_whole

SUFFIX: Final = ".snapshot"
HEAD_BYTES: Final = 64 * 1024

T = TypeVar("T")


class FileSnapshots:
    """A ``SnapshotStore`` in ``folder``, which is made with the first one; usual for a log
    in ``log.jsonl`` is ``log.jsonl.snapshots``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def beside(cls, log: Path) -> FileSnapshots:
        """Those of the ``FileLog`` at a path."""
        return cls(log.with_name(f"{log.name}.snapshots"))

    async def positions(self) -> list[Position]:
        return await self._work(self._positions)

    async def head(self, position: Position) -> Head:
        return await self._work(lambda: self._read(position, whole=False).head)

    async def load(self, position: Position) -> Snapshot:
        return await self._work(lambda: self._read(position, whole=True))

    async def keep(self, snapshot: Snapshot) -> None:
        await self._work(lambda: self._write(snapshot))

    async def drop(self, position: Position) -> None:
        await self._work(lambda: self._path(position).unlink(missing_ok=True))

    async def _work(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise SnapshotFailed(f"snapshots in {self._folder}: {error}") from error

    def _path(self, position: int) -> Path:
        return self._folder / f"{position:019d}{SUFFIX}"

    # --- below: in a thread -----------------------------------------------------------------

    def _positions(self) -> list[Position]:
        names = [path.stem for path in self._folder.glob(f"*{SUFFIX}")]
        return sorted(Position(int(name)) for name in names if name.isdecimal())

    def _read(self, position: Position, *, whole: bool) -> Snapshot:
        try:
            with self._path(position).open("rb") as file:
                head = decode_head(file.readline(HEAD_BYTES))
                data = file.read(head.packed) if whole else b""
        except FileNotFoundError:
            raise SnapshotUnreadable("it is gone") from None
        if head.position != position:
            raise SnapshotUnreadable(f"its file holds the one at {head.position}")
        return Snapshot(head=head, data=data)

    def _write(self, snapshot: Snapshot) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(snapshot.head.position)
        write_whole(path, encode_head(snapshot.head) + b"\n" + snapshot.data)
