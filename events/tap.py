"""What enters the leader's inbox, over NATS: asked for, published in pieces, put together.

What lives here: the messages of ``<root>.tap`` and ``<root>.inbox``, and both ends of a stream of
lines that may lose some on its way. What may not: what a line says (``schedulers.recording``),
NATS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct, field

from events.ids import Id
from events.messages import Message

HOLD_S: Final = 10.0
LONGEST_HOLD_S: Final = 60.0
PIECE_BYTES: Final = 256 * 1024
ENVELOPE_BYTES: Final = 1_024
"""What a piece needs beside its lines."""

LONGEST_CHARACTER: Final = 4
"""Bytes of a character of JSON inside a JSON string: two where it is escaped, up to four else."""


class TapInbox(Message, kw_only=True, frozen=True):
    """Asks the leader to publish what enters its inbox, for ``hold_s`` seconds from now; asked
    again in time, it goes on. 0 lets go. ``tap_id``: of who asks. ``opening``: nothing can be
    understood without one, so begin anew with all that a replay needs."""

    tap_id: Id
    hold_s: Annotated[float, Meta(ge=0, le=LONGEST_HOLD_S)] = HOLD_S
    opening: bool = False


class TapReply(Message, kw_only=True, frozen=True):
    """``epoch``: of the leader that publishes."""

    epoch: int


class InboxPiece(Message, kw_only=True, frozen=True, omit_defaults=True):
    """Some of what entered the inbox of the leader of this ``epoch``, as lines of a recording.

    ``number`` grows by one with each piece, and ``line`` is how many lines came before this one:
    so who misses some knows it, and how many. A line too long for a message comes as ``text``, in
    parts, of which all but the last say ``more`` and all but the first are ``continued``.
    """

    epoch: int
    number: int
    line: int
    lines: list[Raw] = field(default_factory=list)
    text: str = ""
    more: bool = False
    continued: bool = False


class Cutter:
    """The leader's end: lines become pieces."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._number = 0
        self._line = 0

    def interrupt(self) -> None:
        """What comes next does not follow what came last, and nobody knows what is missing."""
        self._number += 1

    def cut(self, lines: Sequence[bytes], max_payload: int) -> Iterator[bytes]:
        """Bodies of at most ``max_payload`` bytes."""
        most = min(PIECE_BYTES, max_payload) - ENVELOPE_BYTES
        taken: list[Raw] = []
        size = 0
        for line in lines:
            if taken and size + len(line) > most:
                yield self._piece(lines=taken)
                taken, size = [], 0
            if len(line) > most:
                yield from self._parts(line.decode(), most // LONGEST_CHARACTER)
            else:
                taken.append(Raw(line))
                size += len(line) + 1
        if taken:
            yield self._piece(lines=taken)

    def _parts(self, text: str, length: int) -> Iterator[bytes]:
        for at in range(0, len(text), length):
            more = at + length < len(text)
            yield self._piece(text=text[at : at + length], more=more, continued=at > 0)

    def _piece(
        self,
        *,
        lines: list[Raw] | None = None,
        text: str = "",
        more: bool = False,
        continued: bool = False,
    ) -> bytes:
        lines = lines or []
        self._number += 1
        piece = InboxPiece(
            epoch=self._epoch,
            number=self._number,
            line=self._line,
            lines=lines,
            text=text,
            more=more,
            continued=continued,
        )
        self._line += len(lines) + bool(text and not more)
        return msgspec.json.encode(piece)


LOST_ON_THE_WAY: Final = "messages were lost between the leader and the recorder"


class Lost(Struct, frozen=True):
    """Here something is missing: so many ``lines``; 0 where nobody knows how many."""

    lines: int
    reason: str


class Joiner:
    """The other end: pieces become lines, and what is missing is said."""

    def __init__(self) -> None:
        self.epoch = 0
        self._number = 0
        self._line = 0
        self._parts: list[str] = []

    def take(self, piece: InboxPiece) -> list[bytes | Lost]:
        """The lines that are whole with this piece. What a leader says that is none any more is
        left out."""
        if piece.epoch < self.epoch:
            return []
        found: list[bytes | Lost] = [*self._missing(piece)]
        if found:
            self._parts = []
        self.epoch, self._number = piece.epoch, piece.number
        self._line = piece.line + len(piece.lines)
        found += [bytes(line) for line in piece.lines]
        if piece.text:
            found += self._part(piece)
        return found

    def _part(self, piece: InboxPiece) -> Iterator[bytes | Lost]:
        """The line that is whole with this part of it, or lost with its beginning."""
        known = bool(self._parts) == piece.continued
        if known:
            self._parts.append(piece.text)
        if piece.more:
            return
        yield "".join(self._parts).encode() if known else Lost(1, LOST_ON_THE_WAY)
        self._parts = []
        self._line += 1

    def _missing(self, piece: InboxPiece) -> Iterator[Lost]:
        if self.epoch and piece.epoch != self.epoch:
            yield Lost(0, f"the leader of epoch {self.epoch} was followed by one of {piece.epoch}")
        elif self.epoch and piece.number != self._number + 1:
            missing = max(0, piece.line - self._line)
            yield Lost(missing, LOST_ON_THE_WAY)
