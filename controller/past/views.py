"""What was true at a moment, as rows, and how two moments differ.

What lives here: pure functions over a ledger. What may not: reading, printing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from events.ledger import Ledger
from events.pulse import Pulse
from events.queries import (
    JobRow,
    JobsReply,
    NodeRow,
    NodesReply,
    QueryJobs,
    QueryNodes,
    QueryWorkers,
    WorkerRow,
    WorkersReply,
)
from schedulers.decide import Rules, decide

PAGE: Final = 5_000
UNINTERESTING: Final = frozenset({"since", "heartbeat_age_s", "pid"})
"""They differ because something else does."""

Q = TypeVar("Q", QueryNodes, QueryJobs, QueryWorkers)


class View(Struct, frozen=True, kw_only=True):
    """A cluster at a moment: after the record at ``position``, which was written ``at``."""

    position: int
    at: datetime | None
    epoch: int
    nodes: list[NodeRow]
    jobs: list[JobRow]
    workers: list[WorkerRow]


class Change(Struct, frozen=True, kw_only=True):
    """One thing that differs: it came, it went, or ``fields`` changed, each as
    ``before -> after``."""

    kind: Literal["node", "job", "worker"]
    id: str
    change: Literal["came", "went", "changed"]
    fields: dict[str, str]


class Difference(Struct, frozen=True, kw_only=True):
    """From one moment to another."""

    before: int
    after: int
    changes: list[Change]


def view(ledger: Ledger, *, ended: bool = False) -> View:
    """The rows that queries would have shown; ``ended``: workers that are over, too."""
    return View(
        position=ledger.position,
        at=ledger.state.at,
        epoch=ledger.state.epoch,
        nodes=[row for page in _pages(ledger, QueryNodes(limit=PAGE)) for row in _nodes(page)],
        jobs=[row for page in _pages(ledger, QueryJobs(limit=PAGE)) for row in _jobs(page)],
        workers=[
            row
            for page in _pages(ledger, QueryWorkers(limit=PAGE, all=ended))
            for row in _workers(page)
        ],
    )


def difference(before: Ledger, after: Ledger) -> Difference:
    """What came, went and changed, in the order of nodes, jobs, workers and their ids."""
    old, new = view(before, ended=True), view(after, ended=True)
    return Difference(
        before=old.position,
        after=new.position,
        changes=[
            *_changes("node", _by_id(old.nodes, "node_id"), _by_id(new.nodes, "node_id")),
            *_changes("job", _by_id(old.jobs, "job_id"), _by_id(new.jobs, "job_id")),
            *_changes("worker", _by_id(old.workers, "worker_id"), _by_id(new.workers, "worker_id")),
        ],
    )


def _pages(ledger: Ledger, query: Q) -> list[object]:
    at = ledger.state.at or datetime(1970, 1, 1, tzinfo=UTC)
    pulse, rules, pages = Pulse(timedelta.max), Rules(), []
    while True:
        answer = decide(ledger, pulse, rules, query, now=at, epoch=0, token="view").answer
        pages.append(cast(object, answer))
        cursor = str(getattr(answer, "next", ""))
        if not cursor:
            return pages
        query = msgspec.structs.replace(query, cursor=cursor)


def _nodes(page: object) -> list[NodeRow]:
    assert isinstance(page, NodesReply)
    return page.nodes


def _jobs(page: object) -> list[JobRow]:
    assert isinstance(page, JobsReply)
    return page.jobs


def _workers(page: object) -> list[WorkerRow]:
    assert isinstance(page, WorkersReply)
    return page.workers


def _by_id(rows: Sequence[Struct], name: str) -> dict[str, Struct]:
    return {str(getattr(row, name)): row for row in rows}


def _changes(
    kind: Literal["node", "job", "worker"], old: dict[str, Struct], new: dict[str, Struct]
) -> list[Change]:
    found = []
    for who in sorted(old.keys() | new.keys()):
        before, after = old.get(who), new.get(who)
        if before is None:
            assert after is not None
            state = str(getattr(after, "state", ""))
            found.append(Change(kind=kind, id=who, change="came", fields={"state": state}))
        elif after is None:
            state = str(getattr(before, "state", ""))
            found.append(Change(kind=kind, id=who, change="went", fields={"state": state}))
        else:
            fields = {
                field.name: f"{_shown(was)} -> {_shown(now)}"
                for field in msgspec.structs.fields(after)
                if (was := getattr(before, field.name)) != (now := getattr(after, field.name))
                and field.name not in UNINTERESTING
            }
            if fields:
                found.append(Change(kind=kind, id=who, change="changed", fields=fields))
    return found


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value or '""'
    return msgspec.json.encode(value).decode()
