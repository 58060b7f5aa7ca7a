"""Playing what was recorded again, through the same decisions, without a loop or a clock.

What lives here: ``replay`` and what it gives. What may not: reading files, and any decision
of its own: a replay is only worth something if it decides as the leader did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from events.entities import LedgerState
from events.errors import Invalid, SlotbusError, error_from_wire
from events.facts import Record
from events.ids import START, Position
from events.ledger import Ledger
from events.messages import StartPipelineReq
from events.pulse import Pulse
from events.states import IllegalTransition
from schedulers.decide import Draft, Rules, decide
from schedulers.masking import MASKED_PREFIX
from schedulers.recording import (
    AnyLine,
    Ended,
    Entered,
    Gap,
    Header,
    Healed,
    Opening,
    Snapshot,
    Stored,
    Torn,
    Unstored,
    digest_of,
    message_of,
)

_MASKED: Final = f'"{MASKED_PREFIX}'.encode()
DEFAULT_EXPIRY: Final = timedelta(seconds=Rules().expiry_s)


class Diverged(SlotbusError):
    """A replay decided otherwise than the leader did: at which ``position``, and how."""

    code = "internal"
    status = 500


class Stretch(Struct, kw_only=True):
    """Records that follow one another. ``after``: the position before the first; ``epoch``:
    who led; ``ended``: why it was over, None where the recording just stops."""

    after: Position
    epoch: int
    records: list[Record] = field(default_factory=list)
    ended: str | None = None

    @property
    def position(self) -> Position:
        """Of its last record."""
        return Position(self.after + len(self.records))


class Replayed(Struct, kw_only=True):
    """What a replay came to: the last ledger and pulse, and every record that was written.

    ``lines``: entries that were decided; ``missing``: lines that the recording says it lost, or
    that can't be understood after a gap; ``gaps``: why there are gaps; ``torn``: a sentence for
    each file whose end is missing.
    """

    ledger: Ledger
    pulse: Pulse
    stretches: list[Stretch] = field(default_factory=list)
    lines: int = 0
    missing: int = 0
    gaps: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """All of them, in order."""
        return [record for stretch in self.stretches for record in stretch.records]

    @property
    def position(self) -> Position:
        """Of the last record."""
        return self.stretches[-1].position if self.stretches else START


def replay(
    source: Iterable[AnyLine | Record],
    *,
    watch: Callable[[Position, Record], None] | None = None,
) -> Replayed:
    """Plays a recording, or folds the records of an event log, from its beginning or after a
    snapshot. ``watch``: called with each record, in order, and its position.

    From a log alone nobody knows who was heard when: the pulse is that of a leader who just
    took over. Raises Diverged, RecordingUnreadable, and IllegalTransition for records that
    can't follow one another.
    """
    folder, player = _Folder(watch), Player(watch)
    for item in source:
        if isinstance(item, Record | Snapshot):
            folder.take(item)
        else:
            player.play(item)
    if not folder.used:
        return player.replayed
    folder.torn(player.replayed.torn)
    if player.replayed.stretches:
        raise Invalid("records of a log and lines of a recording are mixed")
    return folder.done()


class _Folder:
    """Folds a log."""

    def __init__(self, watch: Callable[[Position, Record], None] | None) -> None:
        self.used = False
        self._folded = Replayed(ledger=Ledger(), pulse=Pulse(DEFAULT_EXPIRY))
        self._watch = watch

    def take(self, item: Record | Snapshot) -> None:
        folded, self.used = self._folded, True
        if isinstance(item, Snapshot):
            folded.ledger = Ledger.restore(bytes(item.ledger))
            folded.stretches.append(_stretch_after(folded.ledger))
            return
        if not folded.stretches:
            folded.stretches.append(_stretch_after(folded.ledger))
        folded.ledger.apply(item)
        stretch = folded.stretches[-1]
        stretch.records.append(item)
        stretch.epoch = item.epoch
        if self._watch is not None:
            self._watch(stretch.position, item)

    def torn(self, sentences: list[str]) -> None:
        """Files of the log ended too soon."""
        self._folded.torn += sentences

    def done(self) -> Replayed:
        folded = self._folded
        at = folded.ledger.state.at
        if at is not None:
            folded.pulse.follow(folded.ledger, at)
        return folded


def _stretch_after(ledger: Ledger) -> Stretch:
    return Stretch(after=Position(ledger.position), epoch=ledger.state.epoch)


class Player:
    """Plays lines one by one; ``replayed`` is what it came to so far.

    What was decided and not acknowledged is in its ledger, as it was in the leader's, and not
    in its records. ``watch``: called with each record as it is found stored.
    """

    def __init__(self, watch: Callable[[Position, Record], None] | None = None) -> None:
        self.replayed = Replayed(ledger=Ledger(), pulse=Pulse(DEFAULT_EXPIRY))
        self._watch = watch
        self._rules = Rules()
        self._epoch = 0
        self._masks = False
        self._blurred = False
        """Values were masked: what the leader made of them can't be compared any more."""
        self._open = False
        self._told = False
        """Whether the recording itself says that something is missing before what follows."""
        self._base = b""
        self._stretch_base = 0
        self._drafts: list[Draft] = []

    def play(self, line: AnyLine) -> None:
        """Raises Diverged, RecordingUnreadable."""
        match line:
            case Header():
                self._masks = bool(line.masked)
            case Opening():
                self._opening(line)
            case Gap():
                self.replayed.missing += line.count
                self.replayed.gaps.append(line.reason)
                self._open, self._told = False, True
            case Torn():
                self.replayed.torn.append(line.sentence)
                self._open, self._told = False, True
            case Entered() if self._open:
                self._entered(line)
            case Stored() if self._open:
                self._stored(line)
            case Unstored() if self._open:
                self._drafts.clear()
            case Healed() if self._open:
                self._healed(line)
            case Ended() if self._open:
                self.replayed.stretches[-1].ended = line.reason
                self._open = False
            case Entered():  # between a gap and the next opening nothing can be understood
                self.replayed.missing += 1
            case _:
                pass

    def _opening(self, line: Opening) -> None:
        """Takes up what the leader knew; where nothing is missing, it must be what we know."""
        played = self.replayed
        self._look_for_masked(line.ledger)
        follows = self._open and played.position == line.position and self._epoch == line.epoch
        if follows and not self._blurred and played.ledger.snapshot() != bytes(line.ledger):
            text = f"at record {line.position} the replayed ledger is not the leader's"
            raise Diverged(text, position=line.position)
        if played.stretches and line.position > played.position and not self._told:
            first = played.position + 1
            played.gaps.append(f"records {first} to {line.position} are in none of the files")
        self._told = False
        self._rules, self._epoch, self._open = line.rules, line.epoch, True
        self._base, self._drafts = bytes(line.ledger), []
        played.ledger = Ledger(msgspec.json.decode(self._base, type=LedgerState))
        played.pulse = Pulse(line.rules.expiry)
        line.pulse.restore(played.pulse)
        if not follows:
            played.stretches.append(Stretch(after=Position(line.position), epoch=line.epoch))
        self._stretch_base = line.position - played.stretches[-1].after

    def _entered(self, line: Entered) -> None:
        played = self.replayed
        played.lines += 1
        self._look_for_masked(line.message)
        try:
            draft = decide(
                played.ledger,
                played.pulse,
                self._rules,
                message_of(line),
                now=line.at,
                epoch=self._epoch,
                token=line.token,
                check=_objection(line),
            )
        except (IllegalTransition, KeyError, AssertionError, TypeError, ValueError) as error:
            if not line.fault:
                text = f"after record {played.position} a {line.kind} fails: {error!r}"
                raise Diverged(text, position=int(played.position)) from error
            return  # as it did then: the ledger is read again next
        if not line.fault and draft.record is not None:
            self._drafts.append(draft)

    def _look_for_masked(self, raw: Raw) -> None:
        self._blurred = self._blurred or (self._masks and _MASKED in bytes(raw))

    def _stored(self, line: Stored) -> None:
        records = [draft.record for draft in self._drafts if draft.record is not None]
        self._drafts.clear()
        stretch = self.replayed.stretches[-1]
        same = self._blurred or digest_of(records) == line.digest
        if len(records) != line.count or not same:
            first = int(stretch.position) + 1
            told = ", ".join(record.cause for record in records) or "nothing"
            raise Diverged(
                f"records {first} to {line.position} of the log are {line.count}, the replay "
                f"decided otherwise: {told}",
                position=first,
            )
        for record in records:
            stretch.records.append(record)
            if self._watch is not None:
                self._watch(stretch.position, record)
        if stretch.position != line.position:
            text = f"the log is at {line.position}, the replay at {stretch.position}"
            raise Diverged(text, position=line.position)

    def _healed(self, line: Healed) -> None:
        played = self.replayed
        ledger = Ledger(msgspec.json.decode(self._base, type=LedgerState))
        for record in played.stretches[-1].records[self._stretch_base :]:
            ledger.apply(record)
        self._drafts.clear()
        played.ledger.become(ledger)
        played.pulse.follow(played.ledger, line.at)


def _objection(line: Entered) -> Callable[[StartPipelineReq], None] | None:
    """What the backend said of a start, which can't be asked again."""
    if line.refused is None:
        return None
    facts = dict(line.refused["error"])
    error = error_from_wire(facts.pop("code"), facts.pop("message"), facts)

    def check(_: StartPipelineReq) -> None:
        raise error

    return check
