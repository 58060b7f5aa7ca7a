"""Recorders that need nothing from outside.

What lives here: a recorder in memory, and several as one. What may not: the port and the lines
(``schedulers.recording``), files and NATS (``controller``).
"""

from __future__ import annotations

from collections.abc import Sequence

from schedulers.recording import (
    NO_JSON,
    AnyLine,
    Gap,
    Header,
    LiveLine,
    Opening,
    Recorder,
    decode_lines,
    encode_line,
)


class Recorders:
    """Several, told the same."""

    def __init__(self, *recorders: Recorder) -> None:
        self._all: Sequence[Recorder] = recorders

    @property
    def listens(self) -> bool:
        for recorder in self._all:  # noqa: SIM110  asked for each message: no generator
            if recorder.listens:
                return True
        return False

    @property
    def wants_opening(self) -> bool:
        return any(recorder.wants_opening for recorder in self._all)

    def add(self, line: LiveLine) -> None:
        for recorder in self._all:
            if recorder.listens:
                recorder.add(line)

    def missed(self, reason: str, count: int = 1) -> None:
        for recorder in self._all:
            if recorder.listens:
                recorder.missed(reason, count)


class MemoryRecorder:
    """Keeps the lines as bytes: what a file would hold."""

    listens = True

    def __init__(self) -> None:
        self.lines: list[bytes] = [encode_line(Header())]
        self.wants_opening = True

    def add(self, line: LiveLine) -> None:
        if isinstance(line, Opening):
            self.wants_opening = False
        if self.wants_opening:
            return
        try:
            self.lines.append(encode_line(line))
        except NO_JSON as error:
            self.missed(f"a message is no JSON: {error}")

    def missed(self, reason: str, count: int = 1) -> None:
        self.lines.append(encode_line(Gap(count=count, reason=reason)))
        self.wants_opening = True

    def recording(self) -> list[AnyLine]:
        """What was recorded so far, read from its bytes."""
        return decode_lines(self.lines)
