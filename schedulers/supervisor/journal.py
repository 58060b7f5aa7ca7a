"""What the supervisor remembers across its own death: one JSON line for each change.

What lives here: the records, and the file that keeps them. What may not: what they mean
(``state``). Written with one ``write`` each and no fsync: it has to outlive a process, not
a power failure, and after one there are no workers left either.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from events.states import WorkerState
from events.traffic import Stamp

NAME: Final = "journal.jsonl"
VERSION: Final = 1

_log = logging.getLogger(__name__)


class Opened(Struct, frozen=True, tag="opened", kw_only=True):
    """First line of every file. ``supervisor_id`` belongs to the directory for ever."""

    supervisor_id: str
    version: int = VERSION


class Launching(Struct, frozen=True, tag="launching", kw_only=True):
    """Written before the process is made, so that none is ever unknown."""

    worker_id: str
    job_id: str
    run_id: int
    slots: int
    stamp: Stamp
    stop_after_s: float | None = None


class Running(Struct, frozen=True, tag="running", kw_only=True):
    """``start`` in clock ticks after the boot named by ``boot``."""

    worker_id: str
    pid: int
    start: int
    boot: str


class Stopping(Struct, frozen=True, tag="stopping", kw_only=True):
    """``asked``: somebody wanted it; else it is its lease that ran out."""

    worker_id: str
    grace_s: float
    reason: str
    asked: bool = True


class Ended(Struct, frozen=True, tag="ended", kw_only=True):
    worker_id: str
    state: WorkerState
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""


class Renewed(Struct, frozen=True, tag="renewed", kw_only=True):
    """Leases count from ``at``, in seconds after the boot named by ``boot``: who takes over
    does not begin them anew."""

    at: float
    boot: str


class Acknowledged(Struct, frozen=True, tag="acknowledged", kw_only=True):
    worker_ids: list[str]


class Tombstone(Struct, frozen=True, tag="tombstone", kw_only=True):
    """This worker never runs (again). ``ran``: it once did."""

    worker_id: str
    reason: str
    ran: bool = False


class EpochSeen(Struct, frozen=True, tag="epoch", kw_only=True):
    epoch: int


class SeqReserved(Struct, frozen=True, tag="seq", kw_only=True):
    """No seq above this was given out before this line."""

    upto: int


Entry: TypeAlias = (
    Opened
    | Launching
    | Running
    | Stopping
    | Ended
    | Renewed
    | Acknowledged
    | Tombstone
    | EpochSeen
    | SeqReserved
)


class Journal:
    """An append-only file of entries that is written anew when it has grown long."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / NAME
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(Entry)
        self._fd: int | None = None
        self._torn = False
        self.lines = 0

    def read(self) -> list[Entry]:
        """Every readable entry. A torn line (a death in mid-write) is logged and left out."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        entries: list[Entry] = []
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line:
                continue
            try:
                entries.append(self._decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                _log.warning("%s: line %d can't be read and is left out", self._path, number)
        return entries

    def append(self, entry: Entry) -> None:
        """Raises OSError (disk full); what was half written is then a torn line."""
        if self._fd is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
        line = self._encoder.encode(entry) + b"\n"
        if self._torn:
            line = b"\n" + line
        self._torn = True
        if os.write(self._fd, line) != len(line):
            raise OSError(f"{self._path}: the entry could not be written whole")
        self._torn = False
        self.lines += 1

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replaces the file in one step by one with these entries. Raises OSError."""
        lines = [self._encoder.encode(entry) for entry in entries]
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(b"\n".join(lines) + b"\n")
        fresh.rename(self._path)
        self.close()
        self._torn = False
        self.lines = len(lines)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
