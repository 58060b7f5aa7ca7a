"""A leadership for show: enough of one that every metric has a value, and so its labels.

What lives here: the sample. What may not: any name of a metric.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from controller.metrics import Leading
from events.facts import NodeRegistered, Record
from events.ledger import Ledger
from schedulers.backend import Backend, Measure, Value
from schedulers.decide import Rules
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.scheduler import kubernetes_backend


class _Counts(Struct):
    messages: Counter[str]
    outcomes: Counter[str]
    records: int = 0
    loop_errors: int = 0


class _Led:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.rules = Rules()
        self.stats = self.dispatcher = _Counts(Counter(x=1), Counter(x=1))
        self.epoch = 1
        made = kubernetes_backend(KubernetesConfig())
        self.backend = msgspec.structs.replace(made, measures=lambda: _one_of_each(made))

    def __len__(self) -> int:
        return 0


def _one_of_each(backend: Backend) -> list[Measure]:
    measures = backend.measures() if backend.measures is not None else []
    return [
        msgspec.structs.replace(each, values=[Value(1, dict.fromkeys(each.labels, "x"))])
        for each in measures
    ]


def led_for_show() -> Leading:
    """One node is registered, and one of each thing was counted."""
    led = _Led()
    node = NodeRegistered(node_id="n", incarnation="i", task_slots=1)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    led.ledger.apply(Record(at=at, epoch=1, cause="sample", events=[node]))
    return led
