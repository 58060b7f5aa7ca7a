"""The page about the event log: records, facts, and the tables of states.

What lives here: their order and headings. What may not: the wire's messages.
"""

from __future__ import annotations

from typing import Final, TypeVar, get_args

from controller.reference.markdown import EVENTS_PAGE, code, fields_table, nested, own_doc, table
from events.facts import AnyFact, Fact, PublishedRecord, Record
from events.messages import SchedulerConfig
from events.states import (
    NODE_TABLE,
    RUN_TABLE,
    WORKER_TABLE,
    NodeState,
    RunState,
    WorkerState,
)

FACTS: Final[tuple[type[Fact], ...]] = get_args(AnyFact)
S = TypeVar("S", WorkerState, RunState, NodeState)


def events_page() -> str:
    """Records and every fact that they may hold, then what may follow what."""
    parts = [
        "# Events",
        "The event log is a sequence of records, each a line of JSON. Every record is published "
        "on the subjects of the jobs and nodes that it concerns.",
        *_record_section(Record),
        *_record_section(PublishedRecord),
        "# Facts",
        "What a record's `events` hold; `type` tells which. Fields with their default are left "
        "out.",
    ]
    for fact in FACTS:
        parts += [
            f"## {fact.__struct_config__.tag}",
            own_doc(fact),
            fields_table(fact, EVENTS_PAGE),
        ]
    inner = {part for fact in FACTS for part in nested(fact)} - {SchedulerConfig}
    for part in sorted(inner, key=lambda part: part.__name__):
        parts += [f"## {part.__name__}", own_doc(part), fields_table(part, EVENTS_PAGE)]
    parts += ["# States", "A fact that these tables don't allow can't be in the log."]
    parts += ["## Worker states", _states(WORKER_TABLE)]
    parts += ["## Run states", _states(RUN_TABLE)]
    parts += ["## Node states", _states(NODE_TABLE)]
    return "\n\n".join(text for text in parts if text)


def _record_section(kind: type[Record]) -> list[str]:
    """Without naming every fact in the row of ``events``."""
    lines = fields_table(kind, EVENTS_PAGE).splitlines()
    short = [
        f"| {code('events')} | list of [facts](#facts) | needed |"
        if line.startswith(f"| {code('events')} ")
        else line
        for line in lines
    ]
    return [f"## {kind.__name__}", own_doc(kind), "\n".join(short)]


def _states(allowed: dict[tuple[S, str], frozenset[S]]) -> str:
    rows = [
        (code(str(state)), code(happening), " or ".join(sorted(code(str(t)) for t in targets)))
        for (state, happening), targets in allowed.items()
    ]
    return table(("from", "by", "to"), rows)
