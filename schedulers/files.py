"""Recordings and exported event logs, read from files.

What lives here: their lines, torn ends, and how the two kinds are told apart. What may not:
compression (``schedulers.packing``), writing (``controller.recorder``), and what lines mean
(``schedulers.replaying``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from events.facts import Record
from events.ids import Position
from events.log import decode_record
from schedulers.packing import Damaged, Unpacked
from schedulers.recording import (
    UNREADABLE,
    AnyLine,
    Header,
    RecordingUnreadable,
    Torn,
    decode_line,
)
from schedulers.replaying import Replayed, replay

_LINE: Final = b'{"line":'
"""How a line of a recording begins; a record of the event log begins otherwise."""


class FileLines:
    """The whole lines of a file, without their ends. ``torn``: after them, whether the file
    ended within a line, or within what its compression needs."""

    def __init__(self, path: Path) -> None:
        self.torn = False
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        """Raises OSError, RecordingUnreadable."""
        unpacked = Unpacked(self._path)
        rest = b""
        try:
            for data in unpacked:
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
        except Damaged as error:
            raise RecordingUnreadable(str(error)) from error
        if rest and _is_whole(rest):  # all of it but the line's end: an editor's doing
            yield rest
            rest = b""
        self.torn = bool(rest) or not unpacked.whole


def _is_whole(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True


def read_file(path: Path) -> Iterator[AnyLine | Record]:
    """What a recording or an exported log holds, line by line; where its end is torn, a
    ``Torn`` at last.

    Raises OSError, RecordingUnreadable, LogUnreadable.
    """
    lines, number = FileLines(path), 0
    for number, line in enumerate(lines, start=1):
        if line.startswith(_LINE):
            yield decode_line(line, number)
        elif line.strip():
            yield decode_record(line, Position(number))
    if lines.torn:
        yield Torn(file=path.name, after=number)


def read_files(*paths: Path) -> Iterator[AnyLine | Record]:
    """The files of one recording, whatever their order, or of one exported log, in theirs.
    Raises as ``read_file``."""
    for path in _in_order(paths):
        yield from read_file(path)


def _in_order(paths: Sequence[Path]) -> Sequence[Path]:
    """As they were made, where each says when: names sort otherwise."""
    if len(paths) < 2:
        return paths
    made = [(_made_at(path), number, path) for number, path in enumerate(paths)]
    known = [(at, number, path) for at, number, path in made if at is not None]
    return [path for _, _, path in sorted(known)] if len(known) == len(made) else paths


def _made_at(path: Path) -> datetime | None:
    first = next(read_file(path), None)
    return first.made_at if isinstance(first, Header) else None


def replay_file(*paths: Path, watch: Callable[[Position, Record], None] | None = None) -> Replayed:
    """Plays the files of one recording, or folds one exported log. ``watch`` as for ``replay``.
    Raises as ``read_file`` and ``replay``."""
    return replay(read_files(*paths), watch=watch)
