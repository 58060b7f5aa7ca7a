"""Event records as lines for people.

What lives here: how a record and its facts are worded. What may not: reading the stream.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from events.facts import AnyFact
from events.following import EventRecord
from events.messages import SchedulerConfig

_LONG: Final = frozenset(
    {"program", "env_vars", "digest", "reply", "incarnation", "hash", "machine_id", "seq"}
)
"""Left out for people; ``--output json`` has everything."""

_EMPTY: Final[tuple[object, ...]] = ("", None, [], {}, SchedulerConfig())


def tell(record: EventRecord) -> list[str]:
    """One line for each fact of a record; the first says when and why."""
    facts = [tell_fact(fact) for fact in record.events]
    facts += [f"{kind} (unknown to this version)" for kind in record.unknown]
    head = f"{record.position:>6}  {record.at.astimezone():%H:%M:%S}.{_millis(record.at)}"
    lead = " " * len(head)
    lines = [f"{head if at == 0 else lead}  {text}" for at, text in enumerate(facts)]
    if not lines:
        lines = [head]
    lines[0] += f"   <- {record.cause}"
    return lines


def _millis(when: datetime) -> str:
    return f"{when.microsecond // 1000:03d}"


def tell_fact(fact: AnyFact) -> str:
    """``worker_assigned w1 j/1 n1 slots=4``: the type, what it is about, then what differs
    from the usual."""
    fields = {
        field.name: value
        for field in msgspec.structs.fields(fact)
        if (value := getattr(fact, field.name)) != field.default and field.name not in _LONG
    }
    about = [fields.pop("worker_id", None), _run_of(fields), fields.pop("node_id", None)]
    rest = [f"{name}={_value(value)}" for name, value in fields.items() if value not in _EMPTY]
    return " ".join([str(fact.__struct_config__.tag), *(str(who) for who in about if who), *rest])


def _run_of(fields: dict[str, object]) -> str:
    job, run = fields.pop("job_id", ""), fields.pop("run_id", None)
    return f"{job}/{run}" if job and run is not None else str(job)


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone():%H:%M:%S}"
    if isinstance(value, str):
        return value if " " not in value else f"'{value}'"
    return msgspec.json.encode(value).decode()
