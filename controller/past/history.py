"""The records of a log with their positions, wherever they come from.

What lives here: ``History`` and its sources. What may not: what is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from events.errors import Invalid
from events.facts import Record
from events.ids import START, Position
from events.ledger import Ledger
from events.states import IllegalTransition
from events.stories import Numbered, numbered
from schedulers.files import read_file, read_files
from schedulers.recording import Opening, Snapshot, Torn
from schedulers.replaying import Stretch, replay

Moment: TypeAlias = int | datetime | None
"""A position, a time, or the end."""


class History(Struct, frozen=True, kw_only=True):
    """Records that follow one another; ``base``: the ledger's snapshot before the first, empty
    where that is the log's beginning. ``torn``: what is missing, in sentences."""

    records: list[Record]
    base: bytes = b""
    after: Position = START
    torn: list[str] = []

    def all(self) -> list[Numbered]:
        """Each with its position."""
        return numbered(self.records, self.after)

    def ledger_at(self, moment: Moment) -> Ledger:
        """As it was after the last record up to a moment. Raises Invalid for one before the
        first record that is here, and for records that can't follow one another."""
        ledger = Ledger.restore(self.base) if self.base else Ledger()
        end = self.after + len(self.records)
        if isinstance(moment, int) and not self.after <= moment <= end:
            raise Invalid(f"there are records {self.after + 1} to {end}, and no {moment}")
        for record in self.until(moment):
            _apply(ledger, record)
        if isinstance(moment, datetime) and ledger.position == START:
            raise Invalid(f"the log begins after {moment:%Y-%m-%d %H:%M:%S %Z}")
        return ledger

    def until(self, moment: Moment) -> Iterator[Record]:
        """The records up to a moment, that one included."""
        for position, record in enumerate(self.records, self.after + 1):
            if isinstance(moment, int) and position > moment:
                return
            if isinstance(moment, datetime) and record.at > moment:
                return
            yield record

    def between(self, begin: Moment, end: Moment) -> list[Numbered]:
        """The records after ``begin`` (a time: from it on) up to ``end``."""
        return [
            each
            for each in self.all()
            if not (isinstance(begin, int) and each.position < begin)
            and not (isinstance(begin, datetime) and each.record.at < begin)
            and not (isinstance(end, int) and each.position > end)
            and not (isinstance(end, datetime) and each.record.at > end)
        ]


def history_of_files(*paths: Path) -> History:
    """An exported log, as it is, or a recording, played again: of records that don't all follow
    one another the last ones. Raises OSError, SlotbusError."""
    items = list(read_files(*paths))
    torn = [item.sentence for item in items if isinstance(item, Torn)]
    records = [item for item in items if isinstance(item, Record)]
    if records or not any(isinstance(item, Opening) for item in items):
        base = next((item for item in items if isinstance(item, Snapshot)), None)
        if base is None:
            return History(records=records, torn=torn)
        after = Position(base.position)
        return History(records=records, base=bytes(base.ledger), after=after, torn=torn)
    played = replay(items)
    stretches = _that_follow(played.stretches)
    first = stretches[0]
    torn += [f"something is missing: {gap}" for gap in played.gaps]
    if first is not played.stretches[0]:
        torn.append(
            f"the files go on after record {first.after}, and what they have of earlier ones does "
            "not lead there: it is left out"
        )
    bases = [
        bytes(item.ledger)
        for item in items
        if isinstance(item, Opening) and (item.position, item.epoch) == (first.after, first.epoch)
    ]
    return History(
        records=[record for stretch in stretches for record in stretch.records],
        base=bases[-1] if first.after else b"",
        after=first.after,
        torn=torn,
    )


def ledger_of_file(path: Path, moment: Moment) -> Ledger | None:
    """As ``history_of_files(path).ledger_at(moment)``, reading no further than needed and
    holding no record in memory; None for what has to be held: a recording, a torn end, a moment
    that is not there. Raises OSError, SlotbusError."""
    ledger = Ledger()
    for item in read_file(path):
        if isinstance(item, Record):
            if _is_over(ledger, item, moment):
                break
            _apply(ledger, item)
        elif isinstance(item, Snapshot) and ledger.position == START:
            ledger = Ledger.restore(bytes(item.ledger))
        else:
            return None
    missed = isinstance(moment, int) and ledger.position != moment
    return None if missed or ledger.position == START else ledger


def _is_over(ledger: Ledger, following: Record, moment: Moment) -> bool:
    if isinstance(moment, int):
        return ledger.position >= moment
    return moment is not None and following.at > moment


def _apply(ledger: Ledger, record: Record) -> None:
    try:
        ledger.apply(record)
    except IllegalTransition as error:
        raise Invalid(f"record {ledger.position + 1} can't be: {error}") from error


def _that_follow(stretches: list[Stretch]) -> list[Stretch]:
    """The last one, and those before it that lead to it without a gap: each leader begins one."""
    first = len(stretches) - 1
    while first and stretches[first - 1].position == stretches[first].after:
        first -= 1
    return stretches[first:]
