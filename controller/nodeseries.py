"""The series of single nodes on ``/metrics``: many, and so written in slices.

What lives here: free and held slots by node, and their text a thousand nodes at a time. What
may not: sums over nodes (``controller.metrics``), and anything but names and numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from events.ledger import Ledger

SLICE: Final = 500
"""Nodes written in one step of the event loop: about 2 ms."""

LABEL: Final = "node_id"


def node_families(ledger: Ledger, node_ids: Sequence[str]) -> list[Metric]:
    """Free slots of those nodes that are not expired, and held slots of all of them."""
    free = GaugeMetricFamily("slotbus_node_free_slots", "Free slots of a node.", labels=[LABEL])
    held = GaugeMetricFamily(
        "slotbus_node_scheduled_slots", "Slots held by a node's workers.", labels=[LABEL]
    )
    for node_id in node_ids:
        node = ledger.nodes.get(node_id)
        if node is None:
            continue
        held.add_metric([node_id], ledger.held_slots(node_id))
        if not node.expired:
            free.add_metric([node_id], ledger.free_slots(node_id))
    return [free, held]


async def node_pages(ledger: Callable[[], Ledger | None]) -> bytes:
    """The text of all of them. Others have their turn between two slices; a node is shown as
    it is when its slice is written. ``ledger()`` None: nobody leads here (any more)."""
    known = ledger()
    node_ids = list(known.nodes) if known is not None else []
    texts: list[bytes] = []
    lines: list[list[bytes]] = [[] for _ in node_families(Ledger(), ())]
    for first in range(0, len(node_ids), SLICE):
        await asyncio.sleep(0)
        known = ledger()
        if known is None:
            return b""
        families = node_families(known, node_ids[first : first + SLICE])
        for family, of_family in zip(families, lines, strict=True):
            text = generate_latest(_registry_of(family))
            of_family.append(text if not of_family else _without_head(text))
    for of_family in lines:
        texts += of_family
    return b"".join(texts)


class _Only(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _registry_of(family: Metric) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Only(family))
    return registry


def _without_head(text: bytes) -> bytes:
    """Without what a family says of itself, once."""
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
