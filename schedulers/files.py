"""Recordings and exported event logs, read from files.

What lives here: which files there are (plain lines, gzip by suffix), torn ends, and how the
two kinds are told apart. What may not: writing them (``controller.recorder``), and what they
mean (``schedulers.replaying``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from events.facts import Record
from events.ids import Position
from events.log import decode_record
from schedulers.recording import AnyLine, RecordingUnreadable, decode_line
from schedulers.replaying import Replayed, replay

GZIP, ZSTD = ".gz", ".zst"
CHUNK_BYTES: Final = 256 * 1024
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_LINE: Final = b'{"line":'
"""How a line of a recording begins; a record of the event log begins otherwise."""


def read_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a file, without their ends; a torn last one (of a writer that was
    killed, or is still writing) is left out. Raises OSError, RecordingUnreadable."""
    if path.suffix == ZSTD:
        raise RecordingUnreadable(f"{path.name}: unpack it first, with `unzstd {path.name}`")
    torn = b""
    with path.open("rb") as file:
        for data in _unpacked(file, path.name) if path.suffix == GZIP else _plain(file):
            *lines, torn = (torn + data).split(b"\n")
            yield from lines


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(CHUNK_BYTES):
        yield data


def _unpacked(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Not with the gzip module: of a file without its end it gives bytes that are in none."""
    unpacking = zlib.decompressobj(_GZIP_WINDOW)
    try:
        for data in _plain(file):
            yield unpacking.decompress(data)
            while unpacking.eof and unpacking.unused_data:
                rest, unpacking = unpacking.unused_data, zlib.decompressobj(_GZIP_WINDOW)
                yield unpacking.decompress(rest)
    except zlib.error as error:
        raise RecordingUnreadable(f"{name} is not gzip: {error}") from error


def read_file(path: Path) -> Iterator[AnyLine | Record]:
    """What a recording or an exported log holds, line by line.

    Raises OSError, RecordingUnreadable, LogUnreadable.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith(_LINE):
            yield decode_line(line, number)
        elif line.strip():
            yield decode_record(line, Position(number))


def replay_file(*paths: Path, watch: Callable[[Position, Record], None] | None = None) -> Replayed:
    """Plays one recording, in the order of its files, or folds one exported log. ``watch``
    as for ``replay``. Raises as ``read_file`` and ``replay``."""
    return replay((item for path in paths for item in read_file(path)), watch=watch)
