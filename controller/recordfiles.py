"""The files of a recording: their names, which of them stay, and writing into the last.

What lives here: what one thread does, and the names that the loop chooses for it. What may not:
when another file begins (``controller.recorder``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

import structlog
from msgspec import Struct

from controller.recordbuffer import Item, NewFile, make
from controller.recordsettings import RecordSettings
from schedulers.masking import Mask
from schedulers.packing import create, packing_of
from schedulers.recording import LiveLine

LINES: Final = ".jsonl"
_OURS: Final = re.compile(r"\d{8}T\d{12}-\d+-\d{4}\.jsonl(\.gz|\.zst)?\Z")
"""The name of a file of a recording that goes into a folder."""

_log = structlog.get_logger("slotbus.recorder")


class Wrote(Struct):
    """What became of some lines."""

    lines: int = 0
    bytes: int = 0
    files: int = 0
    unwritable: int = 0


class RecordFiles:
    """``another`` is the loop's, all else one thread's."""

    def __init__(self, settings: RecordSettings, mask: Mask) -> None:
        self._settings = settings
        self._mask = mask
        self._made = 0
        self._file: BinaryIO | None = None

    def another(self, epoch: int, now: datetime) -> NewFile:
        """Where the next lines go."""
        self._made += 1
        if self._settings.name:
            return NewFile(numbered(self._settings.name, self._made))
        stem = f"{now:%Y%m%dT%H%M%S%f}-{epoch}-{self._made:04d}"
        return NewFile(f"{stem}{LINES}{self._settings.packing.suffix}")

    def write(self, items: Sequence[Item]) -> Wrote:
        """Raises OSError."""
        wrote = Wrote()
        lines: list[LiveLine] = []
        for item in items:
            if isinstance(item, NewFile):
                self._append(lines, wrote)
                lines = []
                self._begin(item.name)
                wrote.files += 1
            else:
                lines.append(item)
        self._append(lines, wrote)
        if self._file is not None:
            self._file.flush()
        return wrote

    def _append(self, lines: Sequence[LiveLine], wrote: Wrote) -> None:
        if not lines:
            return
        if self._file is None:
            raise OSError("the file of this recording is gone")
        made = make(lines, self._mask)
        self._file.write(made.data)
        wrote.lines += made.lines
        wrote.bytes += len(made.data)
        wrote.unwritable += made.unwritable

    def _begin(self, name: str) -> None:
        self.close()
        folder = self._settings.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._make_room(folder)
        self._file = create(folder / name)

    def _make_room(self, folder: Path) -> None:
        """The oldest files of this kind go, until another whole one fits."""
        sizes = {path: path.stat().st_size for path in self._ours(folder)}
        limit = max(0, self._settings.total_bytes - self._settings.file_bytes)
        for path, size in list(sizes.items()):
            if sum(sizes.values()) <= limit:
                return
            del sizes[path]
            path.unlink(missing_ok=True)
            _log.info("old recording removed", file=path.name, bytes=size)

    def _ours(self, folder: Path) -> list[Path]:
        """From the oldest on."""
        if not self._settings.name:
            return sorted(path for path in folder.iterdir() if _OURS.match(path.name))
        names = (numbered(self._settings.name, number) for number in range(1, self._made + 1))
        return [folder / name for name in names if (folder / name).exists()]

    def close(self) -> None:
        """Ends the file, so that it is whole."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def numbered(name: str, number: int) -> str:
    """The first file has the name itself: ``a.jsonl.gz``, then ``a-0002.jsonl.gz``."""
    if number == 1:
        return name
    packing = packing_of(Path(name)).suffix
    plain = name.removesuffix(packing)
    suffix = Path(plain).suffix
    return f"{plain.removesuffix(suffix)}-{number:04d}{suffix}{packing}"


def in_the_way(path: Path) -> Path | None:
    """A file of an older recording of this name; None where there is none."""
    first_two = (path.with_name(numbered(path.name, number)) for number in (1, 2))
    return next((other for other in first_two if other.exists()), None)
