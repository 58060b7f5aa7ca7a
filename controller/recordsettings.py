"""What an operator may say about recordings.

What lives here: the settings and their defaults. What may not: the recorder
(``controller.recorder``), which every command would load with its configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from schedulers.masking import DEFAULT_RULES
from schedulers.packing import Packing

MIB: Final = 1024 * 1024
FILE_BYTES: Final = 64 * MIB
TOTAL_BYTES: Final = 1024 * MIB
BUFFER_BYTES: Final = 16 * MIB


class RecordSettings(Struct, frozen=True, kw_only=True):
    """``name``: of the first file, by whose suffix it is compressed, else they are named by
    time and ``packing``; ``file_bytes``: of lines, about, after which another file begins;
    ``total_bytes``: of files on the disk, the oldest go first; ``buffer_bytes``: of lines that
    wait to be written."""

    folder: Path
    name: str = ""
    packing: Packing = Packing.GZIP
    file_bytes: int = FILE_BYTES
    total_bytes: int = TOTAL_BYTES
    buffer_bytes: int = BUFFER_BYTES
    mask: tuple[str, ...] = DEFAULT_RULES
