"""The event log in a file: a line of JSON for each record, readable with ``jq``.

What lives here: appending under compare-and-swap, one writer at a time by a lock file,
repair of a line that a crash tore, and rolling back what a full disk cut off. What may
not: what records mean.

All work on the file runs in the one thread of this log, in order; nothing blocks the loop.
Only the writer repairs; a reader takes a line for whole when its end is there.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias, TypeVar

import structlog
from msgspec import Struct

from events.facts import Record
from events.ids import START, Position
from events.log import (
    READ_BATCH,
    LogConflict,
    LogError,
    LogFull,
    LogLost,
    LogUnsettled,
    conflict,
    decode_lines,
    encode_record,
    lost,
)
from events.wholefiles import sync_folder

Fsync: TypeAlias = Literal["always", "interval", "never"]
FSYNC_INTERVAL_S: Final = 1.0
SCAN_BYTES: Final = 1024 * 1024
BLOCK_BYTES: Final = READ_BATCH * 60
"""The shortest record has 62 bytes, so that a block and the rest of its last line hold no
more than READ_BATCH of them."""

BLOCKS: Final = SCAN_BYTES // BLOCK_BYTES
"""Read in one go in the log's thread."""

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

T = TypeVar("T")
_log = structlog.get_logger("slotbus.filelog")


class _End(Struct, frozen=True):
    """The end of the last whole line: how many bytes, how many records."""

    offset: int = 0
    position: int = 0

    def after(self, lines: bytes) -> _End:
        return _End(self.offset + len(lines), self.position + lines.count(b"\n"))


class FileLog:
    """An ``EventLog`` in the file ``path``, made at the first append.

    ``fsync`` says what an acknowledged append survives: ``always`` a power cut,
    ``interval`` one that comes a second later, ``never`` the death of this process. The
    first append takes ``<path>.lock`` and keeps it until ``close()``; while another writer
    holds it, appending raises LogConflict. Torn bytes are kept in ``<path>.torn``.
    """

    def __init__(self, path: Path, *, fsync: Fsync = "always") -> None:
        self._path = path
        self._fsync = fsync
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotbus-filelog")
        self._closed = False
        self._file: int | None = None
        self._lock: int | None = None
        self._known = _End()
        self._settled = False
        """Whether ``_known`` is the end of the file that ``_file`` has open."""
        self._identity: tuple[int, int] | None = None
        self._sync_failure: OSError | None = None
        self._synced_at = 0.0
        self._unsynced = False
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
        file = await self._in_thread(self._open_reader)
        if file is None:
            if after > START:
                raise lost(after, 0)
            return
        try:
            stop = await self._in_thread(lambda: os.fstat(file.fileno()).st_size)
            end = await self._in_thread(lambda: self._seek(file, after, stop))
            while blocks := await self._in_thread(lambda: _blocks(file, stop)):
                for lines in blocks:
                    begin, end = end, end.after(lines)
                    count = end.position - begin.position
                    yield decode_lines(lines, count, Position(begin.position + 1))
            await self._in_thread(lambda: self._learn(end))
        finally:
            file.close()

    async def append(
        self, records: Sequence[Record], *, expected: Position, timeout_s: float
    ) -> None:
        data = b"".join([encode_record(record) + b"\n" for record in records])
        writing = self._submit(lambda: self._append(data, len(records), expected))
        try:
            done, _ = await asyncio.wait({writing}, timeout=timeout_s)
        except asyncio.CancelledError:
            writing.add_done_callback(_heard)
            raise
        if not done:
            writing.add_done_callback(_heard)
            raise LogUnsettled(
                f"{self._path} did not take an append within {timeout_s:g} s", expected=expected
            )
        writing.result()
        if self._unsynced and self._timer is None and self._fsync == "interval":
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FSYNC_INTERVAL_S, self._sync_soon)

    async def close(self) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._in_thread(self._let_go)
        finally:
            self._closed = True
            self._thread.shutdown(wait=False)

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._closed:
            raise LogError(f"the log {self._path} is closed")
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await self._submit(work)
        except OSError as error:
            raise LogUnsettled(f"{self._path} can't be used: {error}") from error

    def _sync_soon(self) -> None:
        self._timer = None
        self._submit(self._sync_if_due).add_done_callback(_heard)

    # --- below: in the log's thread ---------------------------------------------------------

    def _open_reader(self) -> BinaryIO | None:
        try:
            file = self._path.open("rb", buffering=SCAN_BYTES)
        except FileNotFoundError:
            if self._identity is not None:
                raise LogLost(f"{self._path} is gone") from None
            return None
        try:
            self._identify(os.fstat(file.fileno()))
        except LogLost:
            file.close()
            raise
        return file

    def _identify(self, found: os.stat_result) -> None:
        """Raises LogLost when the file at our path is not the one we knew."""
        identity = (found.st_dev, found.st_ino)
        if self._identity not in (None, identity):
            raise LogLost(f"{self._path} was replaced by another file")
        self._identity = identity

    def _learn(self, end: _End) -> None:
        """Remembers how far whole lines were seen, for those who go on from there."""
        if not self._settled and end.offset > self._known.offset:
            self._known = end

    def _seek(self, file: BinaryIO, after: int, stop: int) -> _End:
        """Moves behind the line number ``after``. Raises LogLost when there is none."""
        known = self._known
        if stop < known.offset:
            raise LogLost(f"{self._path} has {stop} bytes, and had {known.offset}")
        at = known if known.position <= after else _End()
        file.seek(at.offset)
        while at.position < after:
            lines = _whole_lines(file, stop)
            if not lines:
                raise lost(after, at.position)
            at = at.after(_first(lines, after - at.position))
        file.seek(at.offset)
        return at

    def _append(self, data: bytes, count: int, expected: int) -> None:
        if self._sync_failure is not None:
            failure, self._sync_failure = self._sync_failure, None
            raise LogUnsettled(
                f"{self._path} may have lost its last records: {failure}"
            ) from failure
        try:
            file = self._writer()
        except FileNotFoundError:
            raise LogLost(f"{self._path} is gone") from None
        except OSError as error:
            self._settled = False
            raise LogUnsettled(f"{self._path} can't be written: {error}") from error
        if self._known.position != expected:
            raise conflict(expected, self._known.position)
        try:
            _write_all(file, data, self._known.offset)
            self._sync(file)
        except OSError as error:
            self._roll_back(file, error)
        self._known = _End(self._known.offset + len(data), self._known.position + count)

    def _writer(self) -> int:
        """The file, open for writing, with ``_known`` at its end."""
        if self._lock is None:
            self._lock = self._take_lock()
        if self._file is None:
            made = not self._path.exists()
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if made and self._fsync != "never":
                sync_folder(self._path.parent)
            self._identify(os.fstat(self._file))
        found = self._path.stat()
        self._identify(found)
        if not self._settled or found.st_size != self._known.offset:
            self._settled = False
            self._known = self._repair(self._file)
            self._settled = True
        return self._file

    def _take_lock(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        path = self._path.with_name(f"{self._path.name}.lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise LogConflict(f"another writer has {self._path} (pid {holder})") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _repair(self, file: int) -> _End:
        """Finds the end of the last whole line and cuts off what comes after it."""
        size = os.fstat(file).st_size
        at = self._known
        if size < at.offset:
            raise LogLost(f"{self._path} has {size} bytes, and had {at.offset}")
        with os.fdopen(os.dup(file), "rb", buffering=SCAN_BYTES) as scan:
            scan.seek(at.offset)
            while lines := _whole_lines(scan, size):
                at = at.after(lines)
        if at.offset < size:
            self._keep_torn(os.pread(file, size - at.offset, at.offset))
            os.ftruncate(file, at.offset)
            if self._fsync != "never":
                os.fsync(file)
        return at

    def _keep_torn(self, torn: bytes) -> None:
        path = self._path.with_name(f"{self._path.name}.torn")
        with path.open("ab") as kept:
            kept.write(torn + b"\n")
            kept.flush()
            os.fsync(kept.fileno())
        _log.warning("torn line cut off", log=str(self._path), bytes=len(torn), kept=str(path))

    def _roll_back(self, file: int, cause: OSError) -> None:
        """Takes back a write that failed; raises the error that says what it came to."""
        self._settled = False
        try:
            os.ftruncate(file, self._known.offset)
            self._sync(file)
        except OSError as error:
            raise LogUnsettled(
                f"{self._path} took a write half ({cause}) and can't be cut back: {error}"
            ) from cause
        if cause.errno not in DISK_FULL:
            # A failed fsync may have dropped what was written before, too.
            raise LogUnsettled(f"{self._path} can't be written: {cause}") from cause
        self._settled = True
        raise LogFull(f"{self._path} takes no more: {cause}") from cause

    def _sync(self, file: int) -> None:
        if self._fsync == "always":
            os.fdatasync(file)
        elif self._fsync == "interval":
            self._unsynced = True
            self._sync_if_due()

    def _sync_if_due(self) -> None:
        now = time.monotonic()
        if self._file is None or not self._unsynced or now < self._synced_at + FSYNC_INTERVAL_S:
            return
        self._synced_at = now
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._sync_failure, self._settled = error, False
            raise
        self._unsynced = False

    def _let_go(self) -> None:
        file, lock, self._file, self._lock = self._file, self._lock, None, None
        self._settled = False
        try:
            if file is not None and self._unsynced:
                os.fdatasync(file)
        finally:
            for descriptor in (file, lock):
                if descriptor is not None:
                    os.close(descriptor)


def _blocks(file: BinaryIO, stop: int) -> list[bytes]:
    """What ``_whole_lines`` gives, several times."""
    blocks = [_whole_lines(file, stop) for _ in range(BLOCKS)]
    return [lines for lines in blocks if lines]


def _whole_lines(file: BinaryIO, stop: int) -> bytes:
    """The next lines that end at or before the offset ``stop``."""
    left = max(0, stop - file.tell())
    lines = file.read(min(BLOCK_BYTES, left))
    if not lines.endswith(b"\n"):
        lines += file.readline()
    return lines[: lines.rfind(b"\n", 0, left) + 1]


def _first(lines: bytes, count: int) -> bytes:
    """The first ``count`` lines, or all if there are fewer."""
    if lines.count(b"\n") <= count:
        return lines
    end = 0
    for _ in range(count):
        end = lines.index(b"\n", end) + 1
    return lines[:end]


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view = view[written:]
        offset += written


def _heard(work: asyncio.Future[None]) -> None:
    """The end of work that nobody waits for; a failed sync shows at the next append."""
    if not work.cancelled() and (error := work.exception()) is not None:
        _log.error("late failure of the log's file", cause=str(error))
