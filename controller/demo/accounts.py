"""The slot accounts, from four sides that know nothing of each other.

What lives here: who has how many free slots according to the controller's queries, its gauges,
a fold of the event log made here, and the process table; and whether they agree. What may not:
deciding when to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import aiohttp
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from controller.demo.processes import LiveWorker
from events.ledger import Ledger
from events.log import EventLog
from events.queries import NodeRow
from events.states import NodeState

HTTP_TIMEOUT_S = 5.0
PER_NODE = "slotbus_node_free_slots"
FREE, REGISTERED, NODES = (
    "slotbus_free_slots",
    "slotbus_registered_slots",
    "slotbus_registered_nodes",
)


class Account(Struct, frozen=True, kw_only=True):
    """Free slots per node that answers, and the totals over them. `source`: who says so."""

    source: str
    free: dict[str, int]
    registered: int
    nodes: int

    @property
    def total_free(self) -> int:
        return sum(self.free.values())


def agree(accounts: Sequence[Account]) -> str:
    """Empty when all say the same, else the first two that differ."""
    for other in accounts[1:]:
        if _said(other) != _said(accounts[0]):
            return f"{accounts[0].source} {_said(accounts[0])}, {other.source} {_said(other)}"
    return ""


def _said(account: Account) -> tuple[dict[str, int], int, int]:
    return (account.free, account.registered, account.nodes)


def from_queries(rows: Iterable[NodeRow]) -> Account:
    """What `query.nodes` answers."""
    alive = [row for row in rows if row.state is not NodeState.EXPIRED]
    return Account(
        source="query.nodes",
        free={row.node_id: row.free_slots for row in alive},
        registered=sum(row.registered_slots for row in alive),
        nodes=len(alive),
    )


def from_ledger(ledger: Ledger) -> Account:
    """What the event log says, folded by whoever read it."""
    alive = [node for node in ledger.nodes.values() if not node.expired]
    return Account(
        source="event log",
        free={node.node_id: ledger.free_slots(node.node_id) for node in alive},
        registered=sum(node.task_slots for node in alive),
        nodes=len(alive),
    )


def from_processes(workers: Iterable[LiveWorker], offered: dict[str, int]) -> Account:
    """What the process table says of nodes that offer so many slots each."""
    free = dict(offered)
    for worker in workers:
        free[worker.node_id] = free.get(worker.node_id, 0) - worker.slots
    return Account(
        source="process table", free=free, registered=sum(offered.values()), nodes=len(offered)
    )


def from_metrics(text: str, alive: Iterable[str]) -> Account:
    """What `/metrics` says in the text format. Raises ValueError where a gauge is missing, or
    its totals are not those of its nodes."""
    totals: dict[str, float] = {}
    free: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == PER_NODE and sample.labels["node_id"] in set(alive):
                free[sample.labels["node_id"]] = int(sample.value)
            elif sample.name in (FREE, REGISTERED, NODES):
                totals[sample.name] = sample.value
    missing = {FREE, REGISTERED, NODES} - set(totals)
    if missing:
        raise ValueError(f"/metrics has no {', '.join(sorted(missing))}")
    if totals[FREE] != sum(free.values()):
        raise ValueError(f"{FREE} is {totals[FREE]:g}, its nodes have {sum(free.values())}")
    return Account(
        source="/metrics", free=free, registered=int(totals[REGISTERED]), nodes=int(totals[NODES])
    )


async def fetch_metrics(url: str) -> str:
    """The controller's metrics page. Raises aiohttp.ClientError, TimeoutError."""
    timeout = aiohttp.ClientTimeout(total=HTTP_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url) as response:
        response.raise_for_status()
        return await response.text()


async def fold(log: EventLog) -> Ledger:
    """Reads a log from its first record and folds it. Raises LogError."""
    ledger = Ledger()
    async for records in log.read():
        for record in records:
            ledger.apply(record)
    return ledger
