"""Recordings: everything that entered the inbox, in the leader's order, as lines of JSON.

What lives here: the lines, their bytes, and the port by which the engine tells them. What may
not: who takes them (``schedulers.recorders``), files (``schedulers.files``), playing them again
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
from events.messages import CordonReq, StopWorkersReq, UncordonReq
from events.pulse import Beat, Pulse
from events.traffic import HeartbeatNodeReq
from schedulers.decide import Rules
from schedulers.decide.messages import Inbound, Launched, StopAnswered, Tick

FORMAT: Final = 1
"""Of the lines; a reader refuses a higher one."""


class Line(Struct, kw_only=True, frozen=True, tag_field="line", omit_defaults=True):
    """Base of every line."""


class Header(Line, kw_only=True, frozen=True, tag="recording", omit_defaults=False):
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


class Told(Line, frozen=True, tag="entry", omit_defaults=True):
    """``Entered`` as the engine tells it: the message itself, which becomes JSON later, beside
    the engine. Only for messages that nobody changes any more, and that have a bounded size."""

    at: datetime
    token: str
    kind: str
    message: Inbound
    refused: Any = None
    fault: str = ""


class Stored(Line, kw_only=True, frozen=True, tag="stored", omit_defaults=True):
    """An append was acknowledged: ``count`` records, the last at ``position``. ``digest``:
    ``digest_of`` them."""

    position: int
    count: int
    digest: str


class Appended(Struct, frozen=True):
    """``Stored`` as the engine tells it: the records, whose digest is made later."""

    position: int
    records: Sequence[Record]

    def line(self) -> Stored:
        """As it is written."""
        count, digest = len(self.records), digest_of(self.records)
        return Stored(position=self.position, count=count, digest=digest)


class Unstored(Line, kw_only=True, frozen=True, tag="unstored", omit_defaults=True):
    """The log refused an append because of its size; what it held is decided again."""

    reason: str


class Healed(Line, kw_only=True, frozen=True, tag="healed", omit_defaults=True):
    """The ledger was read again, ``at`` this time."""

    at: datetime


class Gap(Line, kw_only=True, frozen=True, tag="gap", omit_defaults=True):
    """``count`` lines are missing here, and why; 0 where nobody knows how many."""

    count: int
    reason: str


class Torn(Line, kw_only=True, frozen=True, tag="torn", omit_defaults=True):
    """Of no recording: what a reader finds where a file ends within a line. ``after``: how many
    whole lines it has."""

    file: str
    after: int

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"{self.file} ends in the middle of something after line {self.after}: its writer was "
            "killed, or still writes; all up to there was read"
        )


class Ended(Line, kw_only=True, frozen=True, tag="ended", omit_defaults=True):
    """The leadership is over; "" where it was closed in order."""

    reason: str = ""


class Snapshot(Line, kw_only=True, frozen=True, tag="snapshot", omit_defaults=True):
    """The ledger up to ``position``; the records of an exported log's stretch follow."""

    position: int
    ledger: Raw


AnyLine: TypeAlias = (
    Header | Snapshot | Opening | Entered | Stored | Unstored | Healed | Gap | Ended | Torn
)
LiveLine: TypeAlias = AnyLine | Told | Appended
"""What an engine tells a recorder."""

_KINDS: Final[dict[str, type[Inbound]]] = {kind.__name__: kind for kind in get_args(Inbound)}
_SMALL: Final = frozenset(
    {StopWorkersReq, CordonReq, UncordonReq, HeartbeatNodeReq, Launched, StopAnswered, Tick}
)
"""Kinds of messages that are many, and some hundred bytes at the most."""

LONG_DIGEST: Final = 128
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(AnyLine)
NO_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What encoding raises for a message that was made in Python, and never checked."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class RecordingUnreadable(SlotbusError):
    """A recording can't be understood: which ``number`` of line, and why."""

    code = "invalid"
    status = 400


def told(
    message: Inbound, at: datetime, token: str, refused: SlotbusError | None, fault: str
) -> Told | Entered:
    """The line of a message. Raises NO_JSON."""
    kind = type(message)
    objection = None if refused is None else refused.body()
    long = type(message) is HeartbeatNodeReq and len(message.digest) > LONG_DIGEST
    if kind in _SMALL and not long:
        return Told(at, token, kind.__name__, message, objection, fault)
    return Entered(
        at=at,
        token=token,
        kind=kind.__name__,
        message=Raw(_ENCODER.encode(message)),
        refused=objection,
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
    data = _ENCODER.encode_lines(records)
    if data.count(b"\n") != len(records):
        data = b"\n".join(encode_record(record) for record in records)
    return hashlib.sha256(data.replace(b"\n", b"")).hexdigest()[:16]


def encode_line(line: LiveLine) -> bytes:
    """One line of JSON, without its end. Raises NO_JSON for a message that can't be written."""
    data = _ENCODER.encode(line.line() if isinstance(line, Appended) else line)
    if b"\n" in data:  # raw JSON written over several lines
        data = msgspec.json.format(data, indent=-1)
    return data


def encode_lines(lines: Sequence[LiveLine]) -> bytes:
    """All of them, each with its end; much cheaper than one by one. Raises as ``encode_line``."""
    told = [line.line() if isinstance(line, Appended) else line for line in lines]
    data = _ENCODER.encode_lines(told)
    if data.count(b"\n") != len(told):
        return b"".join(encode_line(line) + b"\n" for line in told)
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
    def listens(self) -> bool:
        """Whether anything that is told now is of use."""
        ...

    @property
    def wants_opening(self) -> bool:
        """Whether nothing can be understood from here on without an opening."""
        ...

    def add(self, line: LiveLine) -> None:
        """This happened."""
        ...

    def missed(self, reason: str, count: int = 1) -> None:
        """So many things happened that can't be written down; 0: nobody knows how many."""
        ...
