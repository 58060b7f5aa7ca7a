"""Records as lines for people: what happened, when, and why.

What lives here: how a record and its facts are worded, and which records a story is made of.
What may not: clocks, the reader's time zone (an argument), printing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import Final

import msgspec
from msgspec import Struct

from events.concerns import Directory
from events.facts import AnyFact, Record
from events.ids import Position
from events.messages import SchedulerConfig

_LONG: Final = frozenset(
    {"program", "env_vars", "digest", "reply", "incarnation", "hash", "machine_id", "seq"}
)
"""Left out for people; JSON has everything."""

_EMPTY: Final[tuple[object, ...]] = ("", None, [], {}, SchedulerConfig())


class Numbered(Struct, frozen=True):
    """A record and where it stands in the log."""

    position: Position
    record: Record


def numbered(records: Iterable[Record], after: int = 0) -> list[Numbered]:
    """Records with their positions; the first stands behind ``after``."""
    return [Numbered(Position(at), record) for at, record in enumerate(records, after + 1)]


def about(
    records: Iterable[Numbered], *, job_id: str | None = None, node_id: str | None = None
) -> list[Numbered]:
    """The records that concern a job or a node, of a log from its beginning."""
    directory = Directory()
    found = []
    for each in records:
        concerns = directory.concerns(each.record)
        if job_id in concerns.jobs or node_id in concerns.nodes:
            found.append(each)
    return found


def tell_story(records: Iterable[Numbered], zone: tzinfo | None = UTC) -> str:
    """All of them, a line for each fact."""
    return "\n".join(
        line
        for each in records
        for line in tell_lines(
            each.position,
            each.record.at,
            each.record.cause,
            [tell_fact(fact, zone) for fact in each.record.events],
            zone,
        )
    )


def tell_lines(
    position: int, at: datetime, cause: str, facts: list[str], zone: tzinfo | None = None
) -> list[str]:
    """One line for each fact of a record; the first says when and why."""
    local = at.astimezone(zone)
    head = f"{position:>6}  {local:%H:%M:%S}.{at.microsecond // 1000:03d}"
    lead = " " * len(head)
    lines = [f"{head if at == 0 else lead}  {text}" for at, text in enumerate(facts)] or [head]
    lines[0] += f"   <- {cause}"
    return lines


def tell_fact(fact: AnyFact, zone: tzinfo | None = None) -> str:
    """``worker_assigned w1 j/1 n1 slots=4``: the type, what it is about, then what differs
    from the usual. Without a ``zone`` times are local."""
    fields = {
        field.name: value
        for field in msgspec.structs.fields(fact)
        if (value := getattr(fact, field.name)) != field.default and field.name not in _LONG
    }
    who = [fields.pop("worker_id", None), _run_of(fields), fields.pop("node_id", None)]
    rest = [f"{name}={_value(value, zone)}" for name, value in fields.items() if _says(value)]
    return " ".join([str(fact.__struct_config__.tag), *(str(each) for each in who if each), *rest])


def _says(value: object) -> bool:
    return value not in _EMPTY


def _run_of(fields: dict[str, object]) -> str:
    job, run = fields.pop("job_id", ""), fields.pop("run_id", None)
    return f"{job}/{run}" if job and run is not None else str(job)


def _value(value: object, zone: tzinfo | None) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(zone):%H:%M:%S}"
    if isinstance(value, str):
        return value if " " not in value else f"'{value}'"
    return msgspec.json.encode(value).decode()
