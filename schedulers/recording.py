"""Recordings: everything that entered the inbox, in the leader's order, as lines of JSON.

What lives here: the lines, their bytes, the port by which the engine tells them, and a
recorder in memory. What may not: files (``controller.recorder``), playing them again
(``schedulers.replaying``).

An *opening* is where a replay can begin: a snapshot of ledger and pulse, the epoch and the
rules. Each leadership begins with one; so does what follows a gap, and each further file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias, get_args

import msgspec
from msgspec import Raw, Struct

from events.errors import SlotbusError
from events.facts import Record
from events.log import encode_record
from events.pulse import Beat, Pulse
from schedulers.decide import Rules
from schedulers.decide.messages import Inbound

FORMAT: Final = 1
"""Of the lines; a reader refuses a higher one."""


class Line(Struct, kw_only=True, frozen=True, tag_field="line", omit_defaults=True):
    """Base of every line."""


class Header(Line, kw_only=True, frozen=True, tag="recording", omit_defaults=True):
    """The first line of a file. ``masked``: the rules by which values were made unreadable.
    Where they found any, a replay gives the same decisions, with records that hold the masked
    values and hashes of these."""

    v: int = FORMAT
    version: str = ""
    made_at: datetime | None = None
    masked: list[str] = []


class PulseState(Struct, kw_only=True, frozen=True):
    """What is known of the nodes' last signs of life."""

    beats: dict[str, Beat]
    due: datetime | None = None

    @classmethod
    def of(cls, pulse: Pulse) -> PulseState:
        """A copy: a recorder may write it later."""
        copies = {node_id: msgspec.structs.replace(b) for node_id, b in pulse.beats.items()}
        return cls(beats=copies, due=pulse.due)

    def restore(self, pulse: Pulse) -> None:
        """Makes a fresh pulse what this one was."""
        copies = {node_id: msgspec.structs.replace(b) for node_id, b in self.beats.items()}
        pulse.adopt(copies, self.due)


class Opening(Line, kw_only=True, frozen=True, tag="opening", omit_defaults=True):
    """All that a replay of the following lines needs. ``ledger``: a snapshot."""

    epoch: int
    rules: Rules
    position: int
    ledger: Raw
    pulse: PulseState
    scheduler: str = ""


class Entered(Line, kw_only=True, frozen=True, tag="entry", omit_defaults=True):
    """A message in its turn. ``at``: when it was received; ``token``: what fresh ids are made
    of; ``refused``: the backend's own objection to a start; ``fault``: deciding it failed."""

    at: datetime
    token: str
    kind: str
    message: Raw
    refused: Any = None
    fault: str = ""


class Stored(Line, kw_only=True, frozen=True, tag="stored", omit_defaults=True):
    """An append was acknowledged: ``count`` records, the last at ``position``. ``digest``:
    ``digest_of`` them."""

    position: int
    count: int
    digest: str


class Unstored(Line, kw_only=True, frozen=True, tag="unstored", omit_defaults=True):
    """The log refused an append because of its size; what it held is decided again."""

    reason: str


class Healed(Line, kw_only=True, frozen=True, tag="healed", omit_defaults=True):
    """The ledger was read again, ``at`` this time."""

    at: datetime


class Gap(Line, kw_only=True, frozen=True, tag="gap", omit_defaults=True):
    """``count`` lines are missing here, and why."""

    count: int
    reason: str


class Ended(Line, kw_only=True, frozen=True, tag="ended", omit_defaults=True):
    """The leadership is over; "" where it was closed in order."""

    reason: str = ""


class Snapshot(Line, kw_only=True, frozen=True, tag="snapshot", omit_defaults=True):
    """The ledger up to ``position``; the records of an exported log's stretch follow."""

    position: int
    ledger: Raw


AnyLine: TypeAlias = (
    Header | Snapshot | Opening | Entered | Stored | Unstored | Healed | Gap | Ended
)

_KINDS: Final[dict[str, type[Inbound]]] = {kind.__name__: kind for kind in get_args(Inbound)}
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(AnyLine)
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class RecordingUnreadable(SlotbusError):
    """A recording can't be understood: which ``number`` of line, and why."""

    code = "invalid"
    status = 400


def entered(
    message: Inbound, at: datetime, token: str, *, refused: SlotbusError | None, fault: str = ""
) -> Entered:
    """The line of a message. Raises TypeError, ValueError, RecursionError, OverflowError for
    one that is no JSON (made in Python, and never checked)."""
    return Entered(
        at=at,
        token=token,
        kind=type(message).__name__,
        message=Raw(_ENCODER.encode(message)),
        refused=None if refused is None else refused.body(),
        fault=fault,
    )


def message_of(entry: Entered) -> Inbound:
    """What entered. Raises RecordingUnreadable."""
    kind = _KINDS.get(entry.kind)
    if kind is None:
        raise RecordingUnreadable(f"no message is called {entry.kind}: upgrade slotbus")
    try:
        return msgspec.json.decode(entry.message, type=kind)
    except UNREADABLE as error:
        raise RecordingUnreadable(f"a {entry.kind} can't be read: {error}") from error


def digest_of(records: Sequence[Record]) -> str:
    """The first 8 bytes of SHA-256 over the records as they are stored, as hex."""
    hashed = hashlib.sha256()
    for record in records:
        hashed.update(encode_record(record))
    return hashed.hexdigest()[:16]


def encode_line(line: AnyLine) -> bytes:
    """One line of JSON, without its end."""
    data = _ENCODER.encode(line)
    if b"\n" in data:  # raw JSON written over several lines
        data = msgspec.json.format(data, indent=-1)
    return data


def decode_line(data: bytes, number: int) -> AnyLine:
    """Reads what ``encode_line`` wrote. Raises RecordingUnreadable."""
    try:
        line = _DECODER.decode(data)
    except UNREADABLE as error:
        raise RecordingUnreadable(
            f"line {number} of the recording can't be read: {error}", number=number
        ) from error
    if isinstance(line, Header) and line.v > FORMAT:
        raise RecordingUnreadable(
            f"the recording has format {line.v}; this slotbus reads up to {FORMAT}: upgrade it",
            number=number,
        )
    return line


def decode_lines(lines: Iterable[bytes]) -> list[AnyLine]:
    """All the lines of a recording that is held in memory. Raises RecordingUnreadable."""
    return [decode_line(data, number) for number, data in enumerate(lines, start=1) if data]


class Recorder(Protocol):
    """What the engine tells as it happens; every call is cheap and never raises."""

    @property
    def wants_opening(self) -> bool:
        """Whether nothing can be understood from here on without an opening."""
        ...

    def add(self, line: AnyLine) -> None:
        """This happened."""
        ...

    def missed(self, reason: str) -> None:
        """Something happened that can't be written down."""
        ...


class MemoryRecorder:
    """Keeps the lines as bytes: what a file would hold."""

    def __init__(self) -> None:
        self.lines: list[bytes] = [encode_line(Header())]
        self.wants_opening = True

    def add(self, line: AnyLine) -> None:
        if isinstance(line, Opening):
            self.wants_opening = False
        if not self.wants_opening:
            self.lines.append(encode_line(line))

    def missed(self, reason: str) -> None:
        self.lines.append(encode_line(Gap(count=1, reason=reason)))
        self.wants_opening = True

    def recording(self) -> list[AnyLine]:
        """What was recorded so far, read from its bytes."""
        return decode_lines(self.lines)
