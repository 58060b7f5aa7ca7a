"""The engine's side of a recording: what it tells, at which points of its loop.

What lives here: making lines of what happens, and nothing where nobody records. What may
not: what lines are (``schedulers.recording``) and where they go (a recorder).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Raw

from events.errors import SlotbusError
from events.facts import Record
from events.ids import Position
from events.messages import StartPipelineReq
from schedulers.inbox import Entry
from schedulers.recording import (
    NO_JSON,
    Appended,
    Ended,
    Healed,
    Opening,
    PulseState,
    Recorder,
    Unstored,
    told,
)

if TYPE_CHECKING:
    from schedulers.loop import EngineLoop

Check = Callable[[StartPipelineReq], None]


class Tape:
    """With no recorder, or none that listens, every call is a look at a field or two."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder
        self._refused: SlotbusError | None = None
        self._running = False

    @property
    def listens(self) -> bool:
        """Whether somebody records at the moment."""
        return self.recorder is not None and self.recorder.listens

    def open(self, engine: EngineLoop) -> None:
        """A leadership begins; nothing was decided yet."""
        self._running = True
        if self.recorder is not None and self.recorder.listens:
            self.recorder.add(
                Opening(
                    epoch=engine.epoch,
                    rules=engine.rules,
                    position=engine.ledger.position,
                    ledger=Raw(engine.ledger.snapshot()),
                    pulse=PulseState.of(engine.pulse),
                    scheduler=engine.backend.name,
                )
            )

    @property
    def wants_opening(self) -> bool:
        """Whether the next round of the loop is to open the recording."""
        return self.recorder is not None and self.recorder.wants_opening

    def open_if_wanted(self, engine: EngineLoop) -> None:
        """All that was decided is stored: a new file may begin here."""
        if self.wants_opening:
            self.open(engine)

    def overheard(self, check: Check | None) -> Check | None:
        """The backend's check of a start, whose answer is part of what came in."""
        self._refused = None
        if check is None or not self.listens:
            return check

        def listening(request: StartPipelineReq) -> None:
            try:
                check(request)
            except SlotbusError as error:
                self._refused = error
                raise

        return listening

    def decided(self, entry: Entry, fault: str = "") -> None:
        """A message had its turn."""
        recorder = self.recorder
        if recorder is None or not recorder.listens:
            return
        refused, self._refused = self._refused, None
        try:
            recorder.add(told(entry.message, entry.at, entry.token, refused, fault))
        except NO_JSON as error:
            recorder.missed(f"a {type(entry.message).__name__} is no JSON: {error}")

    def faulted(self, entry: Entry, error: Exception) -> None:
        """Deciding a message failed, by a fault of ours."""
        self.decided(entry, fault=repr(error) or "fault")

    def stored(self, position: Position, records: Sequence[Record]) -> None:
        """An append was acknowledged."""
        if self.recorder is not None and self.recorder.listens:
            self.recorder.add(Appended(position, records))

    def unstored(self, error: SlotbusError) -> None:
        """An append was refused for its size."""
        if self.recorder is not None and self.recorder.listens:
            self.recorder.add(Unstored(reason=error.message))

    def healed(self, at: datetime) -> None:
        """The ledger was read again."""
        if self.recorder is not None and self.recorder.listens:
            self.recorder.add(Healed(at=at))

    def ended(self, error: SlotbusError | None) -> None:
        """The leadership is over; told once."""
        running, self._running = self._running, False
        if running and self.recorder is not None and self.recorder.listens:
            self.recorder.add(Ended(reason="" if error is None else error.message))
