"""The state directory: held by one supervisor at a time, remembered in its journal.

What lives here: the lock, opening with what an earlier supervisor left, recording a change
and the growing ``seq``. What may not: processes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from pathlib import Path
from typing import Final

from schedulers.supervisor.api import StateDirBusy
from schedulers.supervisor.journal import Entry, Journal, Opened, SeqReserved
from schedulers.supervisor.state import SEQ_BLOCK, State

LOCK_NAME: Final = "lock"
SPARE_LINES: Final = 10_000
"""The journal is written anew when it has twice the lines it needs and this many more."""

_log = logging.getLogger(__name__)


class Memory:
    """State and journal together: a change is written, then folded."""

    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir
        self._journal = Journal(state_dir)
        self._lock: int | None = None
        self._unwritten = False
        self.state = State()

    def open(self) -> None:
        """Locks the directory (made if missing, for its owner only) and reads the journal.

        Raises StateDirBusy, and OSError if the directory can't be made or written.
        """
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = take_lock(self._dir)
        for entry in self._journal.read():
            self.state.apply(entry)
        self.state.seq = self.state.seq_reserved
        if not self.state.supervisor_id:
            self.state.apply(Opened(supervisor_id=secrets.token_hex(8)))
        self._journal.rewrite(self.state.entries())

    def record(self, entry: Entry) -> None:
        """Writes and folds. A disk that can't be written is logged, and the whole state is
        written as soon as it can: what happened to a process has happened all the same."""
        try:
            self._journal.append(entry)
        except OSError as error:
            _log.error("the journal can't be written: %s", error)
            self._unwritten = True
        self.state.apply(entry)

    def promise(self, entry: Entry) -> None:
        """Writes and folds what must be on disk before it is done. Raises OSError."""
        if self._unwritten:
            self.tidy()
        self._journal.append(entry)
        self.state.apply(entry)

    def next_seq(self) -> int:
        state = self.state
        state.seq += 1
        if state.seq > state.seq_reserved:
            self.record(SeqReserved(upto=state.seq + SEQ_BLOCK))
        return state.seq

    def tidy(self) -> None:
        """Writes the journal anew if it is long, or behind. Raises OSError."""
        needed = len(self.state.tombstones) + 4 * len(self.state.workers)
        if self._unwritten or self._journal.lines > 2 * needed + SPARE_LINES:
            self._journal.rewrite(self.state.entries())
            self._unwritten = False

    def close(self) -> None:
        """Gives the directory back."""
        self._journal.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def take_lock(state_dir: Path) -> int:
    """A descriptor that holds the directory until it is closed. Raises StateDirBusy."""
    path = state_dir / LOCK_NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        who = f" (pid {holder})" if holder else ""
        raise StateDirBusy(f"another supervisor{who} holds {state_dir}") from error
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
