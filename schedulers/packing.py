"""Files that may be compressed: gzip or zstd, by their suffix.

What lives here: which is which, writing and reading their bytes. What may not: what the bytes
mean.

A writer's ``flush`` ends a block, so that all that was written can be read by whoever opens the
file then, or after the writer was killed.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast

import zstandard

CHUNK_BYTES: Final = 64 * 1024
GZIP_LEVEL: Final = 1
ZSTD_LEVEL: Final = 1
"""Lines of a recording are mostly ids that are new: higher levels cost much and save little."""

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class Packing(StrEnum):
    """How a file is compressed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"

    @property
    def suffix(self) -> str:
        """What such a file's name ends in."""
        return _SUFFIXES[self]


_SUFFIXES: Final = {Packing.NONE: "", Packing.GZIP: ".gz", Packing.ZSTD: ".zst"}


class Damaged(Exception):
    """A file does not hold what its suffix says."""


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def packing_of(path: Path) -> Packing:
    """By the last suffix."""
    found = (packing for packing, suffix in _SUFFIXES.items() if suffix == path.suffix)
    return next(found, Packing.NONE)


def create(path: Path) -> BinaryIO:
    """A new file to write into. Raises OSError, FileExistsError too."""
    packing = packing_of(path)
    if packing is Packing.GZIP:
        return cast(BinaryIO, gzip.open(path, "xb", GZIP_LEVEL))
    file = path.open("xb")
    if packing is Packing.ZSTD:
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(file)
    return file


class Unpacked:
    """The bytes of a file, in pieces. ``whole``: after them, whether the file ended where a
    writer ends it; one that was killed, or still writes, leaves less."""

    def __init__(self, path: Path) -> None:
        self.whole = True
        self._path = path
        self._packing = packing_of(path)

    def __iter__(self) -> Iterator[bytes]:
        """Raises OSError, Damaged."""
        with self._path.open("rb") as file:
            if self._packing is Packing.NONE:
                yield from _chunks(file)
                return
            try:
                yield from self._unpack(file)
            except (zlib.error, zstandard.ZstdError) as error:
                text = f"{self._path.name} is not {self._packing}: {error}"
                raise Damaged(text) from error

    def _unpack(self, file: BinaryIO) -> Iterator[bytes]:
        """Not with the gzip module: of a file without its end it gives bytes that are in none."""
        unpacker: _Unpacker | None = None
        self.whole = False
        for data in _chunks(file):
            while data:
                if unpacker is None:
                    unpacker = self._unpacker()
                yield unpacker.decompress(data)
                data = b""
                if unpacker.eof:
                    data, unpacker = unpacker.unused_data, None
            self.whole = unpacker is None

    def _unpacker(self) -> _Unpacker:
        if self._packing is Packing.GZIP:
            return zlib.decompressobj(_GZIP_WINDOW)
        return zstandard.ZstdDecompressor().decompressobj()


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(CHUNK_BYTES):
        yield data
