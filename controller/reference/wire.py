"""The pages about what goes over the wire: subjects, messages, errors.

What lives here: their order and headings. What may not: facts of the event log
(``controller.reference.log``).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from typing import Final

from msgspec import Struct

import events
from controller.cli.running import exit_code_of
from controller.queue import CODE_HEADER, REASON_HEADER
from controller.reference.catalogue import (
    KINDS,
    ErrorFields,
    ErrorReply,
    Exchange,
    exchanges,
)
from controller.reference.markdown import (
    MESSAGES_PAGE,
    code,
    fields_table,
    link,
    nested,
    own_doc,
    prose,
    table,
)
from events import errors
from events.errors import SlotbusError
from events.facts import Record
from events.ids import ID_PATTERN
from events.log import LogError
from events.subjects import Subjects

_SUBJECTS_PAGE: Final = "subjects.md"
_WAYS: Final = {
    "client to leader": "Commands and queries",
    "agent to leader": "What agents say",
    "leader to agent": "Orders to agents",
    "client to agent": "What anybody may ask an agent",
    "leader to all": "What happened",
    "agent to all": "Output",
}


def subjects_page() -> str:
    """Every subject, who speaks on it, and the names of streams and buckets."""
    parts = [
        "# Subjects",
        f"Under the root {code(Subjects().root)}, which every program can be told to replace. "
        "A reply goes to the subject that the request asks for; errors come as "
        f"{link(ErrorReply, _SUBJECTS_PAGE)}.",
    ]
    for way, group in groupby(exchanges(), key=lambda exchange: exchange.way):
        rows = [
            (code(one.subject), _message(one), link(one.reply, _SUBJECTS_PAGE) if one.reply else "")
            for one in group
        ]
        parts += [f"## {_WAYS[way]}", f"From {way}.", table(("subject", "message", "reply"), rows)]
    at = Subjects()
    kept = [
        ("stream", code(at.log_stream), code(at.eventlog)),
        ("stream", code(at.event_stream), code(at.events)),
        (
            "stream",
            code(at.snapshot_stream),
            f"{code(at.snapshot('POSITION'))}: the ledger after that record, as zlib of its JSON "
            "in one or more messages, and then what it says of itself, as JSON",
        ),
        (
            "stream",
            code(at.queue_stream),
            f"{code(at.queue('COMMAND'))}: any command above, stored until a controller leads and "
            "then done once; its outcome is an event",
        ),
        (
            "stream",
            code(at.aside_stream),
            f"{code(at.aside('COMMAND'))}: what was queued and is no command, with "
            f"{code(CODE_HEADER)} and {code(REASON_HEADER)} as headers",
        ),
        ("key-value bucket", code(at.lease_bucket), "the lease of the leader"),
    ]
    parts += ["## What NATS keeps", table(("kind", "name", "of"), kept)]
    return "\n\n".join(parts)


def _message(exchange: Exchange) -> str:
    told = link(exchange.message, _SUBJECTS_PAGE)
    if exchange.many:
        told += ", one or more, a line each"
    if exchange.said:
        told += f" ({', '.join(map(code, exchange.said))} may be left out)"
    return told


def messages_page() -> str:
    """Every message with its fields, then the parts that they are made of."""
    parts = [
        "# Messages",
        "Plain JSON; an empty body is `{}`, unknown fields are ignored. An *id* matches "
        f"{code(ID_PATTERN.replace(chr(92) + 'Z', '$'))}; times are RFC 3339 in UTC. "
        "`slotbus schema NAME` prints the JSON Schema.",
    ]
    told = [kind for kind in KINDS if not issubclass(kind, Record)]
    for kind in told:
        parts += _section(kind)
    parts += ["# Parts of messages"]
    for kind in _parts(told):
        parts += _section(kind)
    return "\n\n".join(parts)


def _section(kind: type[Struct]) -> list[str]:
    where = [
        f"On {code(one.subject)}"
        + (f", answered with {link(one.reply, MESSAGES_PAGE)}." if one.reply else ".")
        for one in exchanges()
        if one.message is kind
    ]
    section = [f"## {kind.__name__}", *where, own_doc(kind), fields_table(kind, MESSAGES_PAGE)]
    return [text for text in section if text]


def _answered(exchange: Exchange) -> str:
    return f", answered with {link(exchange.reply, MESSAGES_PAGE)}" if exchange.reply else ""


def _parts(kinds: list[type[Struct]]) -> list[type[Struct]]:
    """Structs inside others, in the order in which a reader meets them."""
    found: dict[type[Struct], None] = {}
    waiting = [part for kind in kinds for part in nested(kind)]
    while waiting:
        part = waiting.pop(0)
        if part not in found and part not in kinds:
            found[part] = None
            waiting += nested(part)
    return list(found)


def errors_page() -> str:
    """Every code that a reply may hold, and those a client adds by itself."""
    known = list(_subclasses(SlotbusError))
    told = {cls.code: cls for cls in known if cls.__module__ == errors.__name__}
    return "\n\n".join(
        [
            "# Errors",
            own_doc(ErrorReply),
            own_doc(ErrorFields),
            "*Again*: whether the same command may be sent again, under the same `command_id`, "
            "and better may be expected. *Exit*: the exit code of the command line.",
            "## From the leader and from agents",
            _errors_table([told[name] for name in errors.CODES]),
            "## From a client, about what nobody answered",
            _errors_table([cls for cls in known if _is_a_clients(cls)]),
        ]
    )


def _subclasses(cls: type[SlotbusError]) -> Iterator[type[SlotbusError]]:
    """All below a class, once every module of ``events`` was imported; in order of name."""
    for module in pkgutil.iter_modules(events.__path__):
        import_module(f"{events.__name__}.{module.name}")
    below = {sub for sub in cls.__subclasses__() if sub.__module__.startswith("events.")}
    for sub in sorted(below, key=lambda sub: (sub.code, sub.__name__)):
        yield sub
        yield from _subclasses(sub)


def _is_a_clients(cls: type[SlotbusError]) -> bool:
    own = cls.__module__ != errors.__name__ and "code" in vars(cls)
    return own and not issubclass(cls, LogError)


def _errors_table(classes: list[type[SlotbusError]]) -> str:
    rows = [
        (
            code(cls.code),
            str(cls.status),
            "yes" if cls.retriable else "no",
            str(exit_code_of(cls.code)),
            code(cls.__name__),
            prose(vars(cls).get("__doc__")).replace("\n\n", " "),
        )
        for cls in classes
    ]
    return table(("code", "status", "again", "exit", "in Python", "meaning"), rows)
