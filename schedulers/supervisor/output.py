"""What workers print: one growing file each, rotated by size, read by absolute offsets.

What lives here: the files below ``workers/<worker_id>/``. What may not: processes.

A worker writes to its file itself, so it keeps writing whoever dies. Since it holds the
descriptor, rotation copies and truncates; the name of a rotated file says at which byte
since the worker's start it begins. What is printed between the last copy and the truncation
(some microseconds) is lost, and only that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from events.ids import ID_RE
from schedulers.supervisor.api import OutputTail

FILE_BYTES: Final = 4 * 1024 * 1024
FILES: Final = 3
"""The one that grows and those that were rotated away, together."""

KEPT_OUTPUTS: Final = 100
"""Ended workers whose output stays readable; the oldest is removed first."""

MAX_READ_BYTES: Final = 1024 * 1024
"""More is not returned by one read, whatever was asked for."""

_LAST_LOOKS: Final = 8
_COPY_BYTES: Final = 1024 * 1024
_CURRENT: Final = "output.log"


class _Piece(NamedTuple):
    """A file that holds the output from byte ``start`` on."""

    start: int
    size: int
    path: Path


class OutputFile:
    """The output of one worker."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self._folder = folder
        self._current = folder / _CURRENT
        self._file_bytes = file_bytes
        self._files = files

    def open_for_worker(self) -> int:
        """A descriptor to append to, to be closed by the caller. Raises OSError."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(self._current, flags, 0o600)

    def recover(self) -> None:
        """Settles a rotation in whose middle an earlier supervisor died."""
        for part in self._folder.glob("output.*.part"):
            if part.stat().st_size > _size(self._current):
                part.rename(part.with_suffix(".log"))
            else:
                part.unlink()

    def rotate(self) -> bool:
        """Moves the output aside if it has grown too long. Raises OSError (disk full)."""
        size = _size(self._current)
        if size <= self._file_bytes:
            return False
        rotated = self._rotated()
        base = rotated[-1].start + rotated[-1].size if rotated else 0
        skip = max(0, size - 2 * self._file_bytes)
        part = self._folder / f"output.{base + skip:020d}.part"
        fd = os.open(self._current, os.O_RDWR | os.O_CLOEXEC)
        try:
            with part.open("wb", buffering=0) as target:
                _copy(fd, skip, target.fileno())
            os.ftruncate(fd, 0)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        part.rename(part.with_suffix(".log"))
        for old in self._rotated()[: -(self._files - 1) or None]:
            old.path.unlink(missing_ok=True)
        return True

    def read(self, since: int, max_bytes: int) -> OutputTail:
        """From byte ``since`` of all that was ever written, or the last ``max_bytes``. What
        was rotated out of existence is skipped, at the start only: ``data`` has no holes,
        and begins later than ``since`` where something is missing."""
        pieces = self._pieces()
        end = pieces[-1].start + pieces[-1].size
        limit = max(0, min(max_bytes, MAX_READ_BYTES))
        position = max(0, end - limit) if since < 0 else min(since, end)
        data = bytearray()
        for piece in pieces:
            if position < piece.start:
                if data:
                    break
                position = piece.start
            count = min(limit - len(data), piece.start + piece.size - position)
            if count > 0:
                chunk = _read_at(piece.path, position - piece.start, count)
                data += chunk
                position += len(chunk)
        return OutputTail(data=bytes(data), offset=position)

    def _rotated(self) -> list[_Piece]:
        found = []
        for path in self._folder.glob("output.*.log"):
            start = path.name.split(".")[1]
            if start.isdigit():
                found.append(_Piece(int(start), _size(path), path))
        return sorted(found)

    def _pieces(self) -> list[_Piece]:
        rotated = self._rotated()
        base = rotated[-1].start + rotated[-1].size if rotated else 0
        return [*rotated, _Piece(base, _size(self._current), self._current)]


class OutputStore:
    """The folders of all workers of a state directory."""

    def __init__(self, root: Path, file_bytes: int, files: int, kept: int) -> None:
        self._root = root
        self._file_bytes = file_bytes
        self._files = files
        self._kept = kept
        self._ended: deque[str] = deque()

    def recover(self, living: set[str]) -> None:
        """Takes over what an earlier supervisor left. Raises OSError."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        folders = sorted(self._root.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for folder in folders:
            if folder.name in living:
                self._file(folder.name).recover()
            else:
                self.ended(folder.name)

    def create(self, worker_id: str) -> Path:
        """The worker's folder, made. Raises OSError."""
        folder = self._root / worker_id
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def open_for_worker(self, worker_id: str) -> int:
        """A descriptor to append to, to be closed by the caller. Raises OSError."""
        return self._file(worker_id).open_for_worker()

    def rotate(self, worker_ids: Iterator[str]) -> None:
        """Raises OSError (disk full)."""
        for worker_id in worker_ids:
            self._file(worker_id).rotate()

    def ended(self, worker_id: str) -> None:
        """No more will come; the oldest ended output beyond the number kept is removed."""
        self._ended.append(worker_id)
        while len(self._ended) > self._kept:
            shutil.rmtree(self._root / self._ended.popleft(), ignore_errors=True)

    def remove(self, worker_id: str) -> None:
        """This worker never ran: nothing of it stays."""
        shutil.rmtree(self._root / worker_id, ignore_errors=True)

    def read(self, worker_id: str, since: int, max_bytes: int) -> OutputTail:
        """Empty at offset 0 for a worker without output."""
        if not ID_RE.match(worker_id) or not (self._root / worker_id).is_dir():
            return OutputTail(data=b"", offset=0)
        return self._file(worker_id).read(since, max_bytes)

    def _file(self, worker_id: str) -> OutputFile:
        return OutputFile(self._root / worker_id, self._file_bytes, self._files)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_at(path: Path, offset: int, count: int) -> bytes:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        return file.read(count)
    return b""


def _copy(source: int, offset: int, target: int) -> None:
    """To the end, and once more for what came meanwhile; a flood is not waited for."""
    end = os.fstat(source).st_size
    for _ in range(_LAST_LOOKS):
        while offset < end:
            data = os.pread(source, min(_COPY_BYTES, end - offset), offset)
            if not data:
                return
            os.write(target, data)
            offset += len(data)
        end = os.fstat(source).st_size
        if end <= offset:
            return
