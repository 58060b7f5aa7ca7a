"""A recording in files: written beside the engine, which never waits for it.

What lives here: when another file begins, and the task that has lines written; gaps where the
disk took nothing. What may not: what waits (``controller.recordbuffer``), the files themselves
(``controller.recordfiles``).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

import structlog
from msgspec import Struct

from controller.recordbuffer import Item, NewFile, RecordBuffer, RecordStats
from controller.recordfiles import RecordFiles
from controller.recordsettings import RecordSettings
from schedulers.masking import Mask
from schedulers.recording import Gap, Header, Opening

GATHER_S: Final = 0.1
"""What comes in this time is written together: a compressor likes more at once."""

RETRY_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 5.0

_log = structlog.get_logger("slotbus.recorder")


class Origin(Struct, frozen=True):
    """What a header says of where lines come from: the version of slotbus that made them, and
    by which rules values were masked before they came here."""

    version: str = ""
    masked: tuple[str, ...] = ()


class FileRecorder(RecordBuffer):
    """Implements ``schedulers.recording.Recorder``. ``run`` is a task of its owner. ``trouble``
    hears of a disk that takes nothing; else it is logged."""

    def __init__(
        self,
        settings: RecordSettings,
        *,
        version: str = "",
        stats: RecordStats | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        trouble: Callable[[OSError], None] | None = None,
    ) -> None:
        super().__init__(settings.buffer_bytes, stats or RecordStats())
        self.origin = Origin(version)
        self._settings = settings
        self._now = now
        self._trouble = trouble or self._log_trouble
        self._files = RecordFiles(settings, Mask(settings.mask, secrets.token_bytes(32)))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotbus-recorder")
        self._no_file = True
        """Another one has to begin with the next opening."""
        self._begun: Origin | None = None
        """What the file's header says."""

    # --- in the engine's loop -----------------------------------------------------------

    @property
    def wants_opening(self) -> bool:
        if self._blind:
            return super().wants_opening
        return self._is_long() and self.listens and self._has_room()

    def _is_long(self) -> bool:
        return self._since_file > self._settings.file_bytes

    def _open(self, line: Opening) -> None:
        another = self._no_file or self._is_long()
        if another:
            self._put(self._files.another(line.epoch, self._now()))
        if another or self._begun != self.origin:
            self._begun = self.origin
            masked = sorted({*self._settings.mask, *self.origin.masked})
            self._put(Header(version=self.origin.version, made_at=self._now(), masked=masked))
        super()._open(line)
        if another:
            self._no_file, self._since_file = False, 0  # however large the opening is

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
        if not self.listens:
            return
        if self._why and self._begun is not None:
            self._put(Gap(count=self._gap, reason=self._why))
            self._gap, self._why = 0, ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._write_waiting()
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._files.close)
        self.listens = False
        self._thread.shutdown(wait=False)

    async def _write_waiting(self) -> bool:
        """False where the disk took nothing: another file begins, after a gap."""
        taken = self._take()
        if not taken:
            return True
        loop = asyncio.get_running_loop()
        try:
            wrote = await asyncio.shield(
                loop.run_in_executor(self._thread, self._files.write, taken)
            )
        except OSError as error:
            self._trouble(error)
            self._drop([*taken, *self._take()], str(error))
            return False
        self._written(taken)
        self.stats.lines += wrote.lines
        self.stats.bytes += wrote.bytes
        self.stats.files += wrote.files
        if wrote.unwritable:  # the gap is in the file already
            self.stats.lost += wrote.unwritable
            self._blind = True
        return True

    def _log_trouble(self, error: OSError) -> None:
        _log.warning("recording interrupted", folder=str(self._settings.folder), cause=error)

    def _drop(self, items: Sequence[Item], reason: str) -> None:
        self._written(items)
        self._why = ""
        self.missed(reason, sum(not isinstance(item, NewFile) for item in items))
        self._no_file = True
