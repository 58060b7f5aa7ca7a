"""Why something is as it is: the decision, what else could have been, before and after.

What lives here: finding it in the records. What may not: reading, printing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from controller.past.history import History
from controller.past.views import view
from events.audit import Auditor, Violation
from events.auditing import audit_from
from events.codec import error_from_body
from events.errors import Invalid
from events.facts import (
    CommandDone,
    CommandTaken,
    NodeRegistered,
    PassedOver,
    Record,
    RunCreated,
    RunPlaced,
    RunWaiting,
    WorkerAssigned,
)
from events.ledger import Ledger
from events.states import NodeState
from events.stories import Numbered, tell_fact

Kind: TypeAlias = Literal["worker", "job", "node", "command"]
KINDS: Final[tuple[Kind, ...]] = ("worker", "job", "node", "command")
BEFORE: Final = 3
"""Records told from before a decision."""

CANDIDATES: Final = 20


class Told(Struct, frozen=True, kw_only=True):
    """A record, and what of it is about the thing asked for."""

    position: int
    at: datetime
    cause: str
    facts: list[str]


class Why(Struct, frozen=True, kw_only=True):
    """``decided``: the record in which the thing came to be; ``candidates``: the nodes that had
    room then, with their free slots, the first few; ``taken``: the nodes of that decision, with
    their slots; ``passed_over``: every other one, by reason; ``refused``: why there was no start,
    "" where there was one. ``before``: what last happened to these nodes and this job until then;
    ``after``: all that followed."""

    kind: Kind
    id: str
    decided: Told
    candidates: dict[str, int]
    taken: dict[str, int]
    passed_over: list[PassedOver]
    refused: str
    before: list[Told]
    after: list[Told]


class Broken(Struct, frozen=True, kw_only=True):
    """The first violation of a law, and the records about what is involved."""

    law: int
    position: int
    sentence: str
    facts: dict[str, str]
    story: list[Told]


def why(history: History, thing: str) -> Why:
    """Looks for a worker, a job, a node or a command of that id. Raises Invalid."""
    everything = history.all()
    for kind in KINDS:
        found = _decision(everything, kind, thing)
        if found is not None:
            return _explain(history, kind, thing, found)
    text = f"nothing in this log is called {thing}: give a worker, job, node or command"
    raise Invalid(text, path="ID")


def first_violation(history: History) -> Broken | None:
    """Reads the log against the laws; of one that begins later, with the ledger of then.
    Outcomes that were due by its last record are missing."""
    auditor = audit_from(Ledger.restore(history.base)) if history.after else Auditor()
    for each in history.all():
        broken = auditor.observe(each.position, each.record)
        if broken:
            return _told_law(history, broken[0])
    last = history.records[-1].at if history.records else None
    broken = auditor.finish(last)
    return _told_law(history, broken[0]) if broken else None


def _told_law(history: History, broken: Violation) -> Broken:
    names = set(broken.facts.values())
    involved = [
        told
        for each in history.all()
        if each.position <= broken.position and (told := _about(each, names)) is not None
    ]
    return Broken(
        law=broken.law,
        position=broken.position,
        sentence=broken.sentence,
        facts=broken.facts,
        story=involved,
    )


def _decision(everything: list[Numbered], kind: Kind, thing: str) -> Numbered | None:
    """The record in which it came to be; of a job, its newest run's, or the refusal of one
    that never ran."""
    begun = [
        each for each in everything if any(_begins(f, kind, thing) for f in each.record.events)
    ]
    if kind != "job":
        return begun[0] if begun else None
    if begun:
        return begun[-1]
    refused = [
        each
        for each in everything
        if any(isinstance(f, CommandTaken) and f.job_id == thing for f in each.record.events)
    ]
    return refused[-1] if refused else None


def _begins(fact: object, kind: Kind, thing: str) -> bool:
    match kind:
        case "worker":
            return isinstance(fact, WorkerAssigned) and fact.worker_id == thing
        case "job":
            return isinstance(fact, RunCreated) and fact.job_id == thing
        case "node":
            return isinstance(fact, NodeRegistered) and fact.node_id == thing
        case "command":
            return isinstance(fact, CommandTaken) and fact.command_id == thing


def _explain(history: History, kind: Kind, thing: str, decided: Numbered) -> Why:
    record, everything = decided.record, history.all()
    names = {thing} | _same_matter(everything, kind, thing)
    taken: dict[str, int] = {}
    for fact in record.events:
        if isinstance(fact, WorkerAssigned):
            taken[fact.node_id] = taken.get(fact.node_id, 0) + fact.slots
    passed_over = [
        over
        for fact in record.events
        if isinstance(fact, RunPlaced | RunWaiting | CommandDone)
        for over in fact.passed_over
    ]
    concerned = names | set(taken)
    before = [
        told
        for each in everything
        if each.position < decided.position and (told := _about(each, concerned)) is not None
    ]
    after = [
        told
        for each in everything
        if each.position > decided.position and (told := _about(each, names)) is not None
    ]
    return Why(
        kind=kind,
        id=thing,
        decided=_whole(decided),
        candidates=_candidates(history, decided),
        taken=taken,
        passed_over=passed_over,
        refused=next(filter(None, map(_refusal, record.events)), ""),
        before=before[-BEFORE:],
        after=after,
    )


def _candidates(history: History, decided: Numbered) -> dict[str, int]:
    """Where a start could have gone, as the leader saw it."""
    starts = any(isinstance(f, CommandTaken) and f.kind == "start" for f in decided.record.events)
    if not starts and not any(isinstance(f, RunPlaced) for f in decided.record.events):
        return {}
    nodes = view(history.ledger_at(decided.position - 1)).nodes
    room = [node for node in nodes if node.state is NodeState.READY and node.free_slots > 0]
    room.sort(key=lambda node: (-node.free_slots, node.node_id))
    return {node.node_id: node.free_slots for node in room[:CANDIDATES]}


def _refusal(fact: object) -> str:
    """What a command was answered that was not done; "" for everything else."""
    if not isinstance(fact, CommandDone) or fact.ok:
        return ""
    error = error_from_body(msgspec.json.encode(fact.reply))
    return "" if error is None else f"{error.code}: {error.message}"


def _same_matter(everything: Iterable[Numbered], kind: Kind, thing: str) -> set[str]:
    """Under which other ids its story goes on: the workers of a job or of a command."""
    names: set[str] = set()
    if kind in ("job", "command"):
        for each in everything:
            about = [getattr(fact, "job_id", "") for fact in each.record.events]
            taken = _commands(each.record)
            if (kind == "job" and thing in about) or thing in taken:
                names |= {
                    fact.worker_id
                    for fact in each.record.events
                    if isinstance(fact, WorkerAssigned)
                }
    return names


def _commands(record: Record) -> set[str]:
    return {fact.command_id for fact in record.events if isinstance(fact, CommandTaken)}


def _about(each: Numbered, names: set[str]) -> Told | None:
    """What of a record names one of these, directly or in a list."""
    facts = [tell_fact(fact) for fact in each.record.events if names & _names_in(fact)]
    return _told(each, facts) if facts else None


def _names_in(fact: Struct) -> set[str]:
    found: set[str] = set()
    for field in msgspec.structs.fields(fact):
        value = getattr(fact, field.name)
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, list):
            found |= {item for item in value if isinstance(item, str)}
    return found


def _whole(each: Numbered) -> Told:
    return _told(each, [tell_fact(fact) for fact in each.record.events])


def _told(each: Numbered, facts: list[str]) -> Told:
    record = each.record
    return Told(position=each.position, at=record.at, cause=record.cause, facts=facts)
