"""A leadership for show: enough of one that every metric has a value, and so its labels.

What lives here: the sample. What may not: any name of a metric.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from msgspec import Struct

from controller.metrics import Leading
from events.facts import NodeRegistered, Record
from events.ledger import Ledger


class _Counts(Struct):
    messages: Counter[str]
    outcomes: Counter[str]
    records: int = 0
    loop_errors: int = 0


class _Led:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.stats = self.dispatcher = _Counts(Counter(x=1), Counter(x=1))
        self.epoch = 1

    def __len__(self) -> int:
        return 0


def led_for_show() -> Leading:
    """One node is registered, and one of each thing was counted."""
    led = _Led()
    node = NodeRegistered(node_id="n", incarnation="i", task_slots=1)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    led.ledger.apply(Record(at=at, epoch=1, cause="sample", events=[node]))
    return led
