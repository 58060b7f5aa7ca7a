"""What waits to be recorded: bounded, in the engine's loop, which never waits for it.

What lives here: the buffer that every recorder of a controller has, and what is lost where it is
full. What may not: where lines go from here (``controller.recorder``, ``controller.tap``), their
JSON: making it is the work of whoever takes them, beside the loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct

from schedulers.masking import Mask
from schedulers.recording import (
    NO_JSON,
    Appended,
    Entered,
    Gap,
    LiveLine,
    Opening,
    Told,
    encode_line,
    encode_lines,
)

LINE_BYTES: Final = 220
"""What the line of a small message takes, about."""

STORED_BYTES: Final = 100
RECORD_BYTES: Final = 500
"""What a record takes in memory, about, that waits for its digest."""

AT_ONCE: Final = 256
"""Lines made into JSON in one go, in which Python does nothing else."""

OPENING_PAUSE_S: Final = 0.5
SNAPSHOT_BYTES_A_S: Final = 5_000_000
"""An opening is a snapshot of the whole ledger, made in the loop: after a large one the next is
longer in coming, so that gaps cost the loop a small part of its time."""


class RecordStats(Struct):
    """Counts, over all recorders that share them."""

    lines: int = 0
    lost: int = 0
    bytes: int = 0
    files: int = 0


class NewFile(Struct, frozen=True):
    """A mark among lines that wait: what follows goes into another file, of this name."""

    name: str


Item: TypeAlias = LiveLine | NewFile


class Made(Struct, frozen=True):
    """Lines as JSON, each with its end; ``unwritable``: how many have a gap in their place."""

    data: bytes
    lines: int
    unwritable: int = 0


class RecordBuffer:
    """Implements ``schedulers.recording.Recorder`` up to where lines are taken from it.
    ``too_slow``: why there is no room, if ever."""

    def __init__(
        self, limit_bytes: int, stats: RecordStats, *, too_slow: str = "the disk is too slow"
    ) -> None:
        self.stats = stats
        self.listens = True
        self._limit = limit_bytes
        self._too_slow = too_slow
        self._waiting: list[Item] = []
        self._buffered = 0
        self._since_file = 0
        """Bytes of lines, about, that were added since another file began."""
        self._some = asyncio.Event()
        self._blind = True
        """Nothing can be understood until there is an opening."""
        self._no_opening_before = -math.inf
        self._gap = 0
        self._why = ""

    @property
    def wants_opening(self) -> bool:
        if not self._blind or not self.listens or not self._has_room():
            return False
        return time.monotonic() >= self._no_opening_before

    def _has_room(self) -> bool:
        """For a snapshot: it comes however large it is, so only while little waits."""
        return self._buffered <= self._limit // 2

    def add(self, line: LiveLine) -> None:
        """Never waits, never raises; what has no room is counted, and leaves a gap."""
        if isinstance(line, Opening):
            self._open(line)
        elif self._blind:
            self.missed("nothing could be written")
        elif self._buffered > self._limit:
            self.missed(self._too_slow)
        else:
            self._put(line)

    def missed(self, reason: str, count: int = 1) -> None:
        if not self._blind or not self._why:
            self._why = reason
        self._blind = True
        self._gap += count
        self.stats.lost += count

    def _open(self, line: Opening) -> None:
        pause_s = max(OPENING_PAUSE_S, len(memoryview(line.ledger)) / SNAPSHOT_BYTES_A_S)
        self._no_opening_before = time.monotonic() + pause_s
        if self._why:
            self._put(Gap(count=self._gap, reason=self._why))
        self._blind, self._gap, self._why = False, 0, ""
        self._put(line)

    def _put(self, item: Item) -> None:
        if not self._waiting:
            self._some.set()
        self._waiting.append(item)
        if type(item) is Told:  # nearly all of them
            self._buffered += LINE_BYTES
            self._since_file += LINE_BYTES
        else:
            self._buffered += in_memory(item)
            self._since_file += in_file(item)

    def _take(self) -> list[Item]:
        """All that waits; its room stays taken until ``_written``."""
        taken, self._waiting = self._waiting, []
        self._some.clear()
        return taken

    def _written(self, taken: Sequence[Item]) -> None:
        self._buffered -= sum(map(in_memory, taken))


def in_file(item: Item) -> int:
    """About how many bytes it has there."""
    match item:
        case Entered():
            return LINE_BYTES + len(memoryview(item.message))
        case Opening():
            return LINE_BYTES + len(memoryview(item.ledger)) + LINE_BYTES * len(item.pulse.beats)
        case Appended():
            return STORED_BYTES
        case NewFile():
            return 0
        case _:
            return LINE_BYTES


def in_memory(item: Item) -> int:
    """About how many bytes it holds on to while it waits."""
    if type(item) is Told:
        return LINE_BYTES
    held = RECORD_BYTES * len(item.records) if isinstance(item, Appended) else 0
    return held + in_file(item)


def make(lines: Sequence[LiveLine], mask: Mask) -> Made:
    """Lines as JSON, masked; for a thread beside the loop. What can't be written leaves a gap,
    after which nothing can be understood until the next opening."""
    parts: list[bytes] = []
    unwritable = 0
    rest = iter(lines)
    while some := list(islice(rest, AT_ONCE)):
        try:
            data = encode_lines(some)
        except NO_JSON:
            told = [_line_or_gap(line) for line in some]
            unwritable += sum(isinstance(line, Gap) for line in told) - sum(
                isinstance(line, Gap) for line in some
            )
            data = encode_lines(told)
        parts.append(mask.apply_lines(data))
    return Made(b"".join(parts), len(lines), unwritable)


def _line_or_gap(line: LiveLine) -> LiveLine:
    try:
        encode_line(line)
    except NO_JSON as error:
        return Gap(count=1, reason=f"a message is no JSON: {error}")
    return line
