"""A recording in files: written beside the engine, which never waits for it.

What lives here: the bounded buffer, the one thread that writes, rotation, the limit on what
is kept, and gaps where the buffer or the disk was full. What may not: what lines are
(``schedulers.recording``), masking rules (``schedulers.masking``).
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import math
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, cast

import structlog
from msgspec import Struct

from controller.recordsettings import RecordSettings
from schedulers.masking import Mask
from schedulers.recording import AnyLine, Gap, Header, Opening, encode_line

GATHER_S: Final = 0.1
"""What comes in this time is written together: a compressor likes more at once."""

OPENING_PAUSE_S: Final = 0.5
"""After an opening, a snapshot of the whole ledger, until the next one after a gap."""

RETRY_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 5.0
GZIP_LEVEL: Final = 3

_log = structlog.get_logger("slotbus.recorder")


class RecordStats(Struct):
    """Counts, over all recorders that share them."""

    lines: int = 0
    lost: int = 0
    bytes: int = 0
    files: int = 0


class _Chunk(Struct, frozen=True):
    """Lines to write; ``name``: of a file that begins with them."""

    data: bytes
    name: str = ""


class FileRecorder:
    """Implements ``schedulers.recording.Recorder``. ``run`` is a task of its owner."""

    def __init__(
        self,
        settings: RecordSettings,
        *,
        version: str = "",
        stats: RecordStats | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.stats = stats or RecordStats()
        self._settings = settings
        self._version = version
        self._now = now
        self._mask = Mask(settings.mask, secrets.token_bytes(32))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotbus-recorder")
        self._waiting: list[_Chunk] = []
        self._buffered = 0
        self._some = asyncio.Event()
        self._blind = True
        """Nothing can be understood until there is an opening."""
        self._full = False
        """The file is long enough: another one begins with the next opening."""
        self._in_file = 0
        self._opened_at = -math.inf
        self._made = 0
        self._gap = 0
        self._why = ""
        self._file: BinaryIO | None = None
        self._closed = False

    # --- in the engine's loop -----------------------------------------------------------

    @property
    def wants_opening(self) -> bool:
        if not (self._blind or self._full) or self._closed:
            return False
        room = self._buffered <= self._settings.buffer_bytes // 2
        rested = time.monotonic() >= self._opened_at + OPENING_PAUSE_S
        return room and (rested or not self._blind)

    def add(self, line: AnyLine) -> None:
        """Never waits, never raises; what has no room is counted, and leaves a gap."""
        if isinstance(line, Opening):
            self._begin(line)
        elif self._blind:
            self._lose("nothing could be written")
        else:
            self._put(encode_line(line))

    def missed(self, reason: str) -> None:
        self._lose(reason)

    def _begin(self, line: Opening) -> None:
        name = ""
        lines: list[bytes] = []
        if self._full or self._made == 0:
            self._made += 1
            name = self._name(line.epoch)
            masked = list(self._settings.mask)
            header = Header(version=self._version, made_at=self._now(), masked=masked)
            lines.append(encode_line(header))
            self._in_file = 0
        if self._gap:
            lines.append(encode_line(Gap(count=self._gap, reason=self._why)))
        self._opened_at = time.monotonic()
        self._blind, self._full, self._gap = False, False, 0
        self._append(b"\n".join([*lines, encode_line(line)]), name)

    def _put(self, data: bytes) -> None:
        if self._closed or self._buffered + len(data) > self._settings.buffer_bytes:
            self._lose("the disk is too slow")
            return
        self._append(data)
        self._in_file += len(data)
        self._full = self._full or self._in_file > self._settings.file_bytes

    def _append(self, data: bytes, name: str = "") -> None:
        self._waiting.append(_Chunk(data, name))
        self._buffered += len(data)
        self._some.set()

    def _lose(self, reason: str) -> None:
        self._blind, self._why = True, reason
        self._gap += 1
        self.stats.lost += 1

    def _name(self, epoch: int) -> str:
        suffix = ".jsonl.gz" if self._settings.compress else ".jsonl"
        return f"{self._now():%Y%m%dT%H%M%S%f}-{epoch}-{self._made:04d}{suffix}"

    # --- beside it ----------------------------------------------------------------------

    async def run(self) -> None:
        """Writes what comes, until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_S)
            if not await self._write_waiting():
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Writes what waits, for at most CLOSE_TIMEOUT_S seconds, and lets go of the file."""
        if self._closed:
            return
        if self._gap and self._made:
            self._append(encode_line(Gap(count=self._gap, reason=self._why)))
            self._gap = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._write_waiting()
        self._closed = True
        self._thread.submit(self._let_go)
        self._thread.shutdown(wait=False)

    async def _write_waiting(self) -> bool:
        """False where the disk took nothing: another file begins, after a gap."""
        chunks, self._waiting = self._waiting, []
        self._some.clear()
        if not chunks:
            return True
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(self._thread, self._write, chunks)
        try:
            written = await asyncio.shield(writing)
        except OSError as error:
            _log.warning("recording interrupted", folder=str(self._settings.folder), cause=error)
            lost = sum(chunk.data.count(b"\n") + 1 for chunk in chunks + self._waiting)
            self._waiting = []
            self._buffered = 0
            self._blind, self._full, self._why = True, True, str(error)
            self._gap += lost
            self.stats.lost += lost
            return False
        self._buffered -= sum(len(chunk.data) for chunk in chunks)
        self.stats.lines += written
        return True

    # --- below: in the recorder's thread ------------------------------------------------

    def _write(self, chunks: list[_Chunk]) -> int:
        lines = 0
        for chunk in chunks:
            if chunk.name:
                self._begin_file(chunk.name)
            if self._file is None:
                raise OSError("the file of this recording is gone")
            data = b"\n".join(self._mask.apply(line) for line in chunk.data.split(b"\n"))
            self._file.write(data + b"\n")
            lines += data.count(b"\n") + 1
            self.stats.bytes += len(data) + 1
        if self._file is not None:
            self._file.flush()  # gzip's ends a block: all that is there can be read
        return lines

    def _begin_file(self, name: str) -> None:
        self._let_go()
        folder = self._settings.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._make_room(folder)
        path = folder / name
        self._file = path.open("xb") if path.suffix != ".gz" else _gzip(path)
        self.stats.files += 1

    def _make_room(self, folder: Path) -> None:
        """The oldest recordings go, until another whole one fits."""
        kept = sorted(folder.glob("*.jsonl")) + sorted(folder.glob("*.jsonl.gz"))
        sizes = {path: path.stat().st_size for path in sorted(kept, key=lambda path: path.name)}
        limit = max(0, self._settings.total_bytes - self._settings.file_bytes)
        for path, size in list(sizes.items()):
            if sum(sizes.values()) <= limit:
                return
            del sizes[path]
            path.unlink(missing_ok=True)
            _log.info("old recording removed", file=path.name, bytes=size)

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _gzip(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "xb", GZIP_LEVEL))
