"""The page about recordings: their lines, and the messages that entries hold.

What lives here: their order and headings. What may not: facts of the event log
(``controller.reference.log``).
"""

from __future__ import annotations

from typing import Final, get_args

import msgspec
from msgspec import Struct

from controller.reference.catalogue import KINDS
from controller.reference.markdown import code, link, own_doc, prose, table
from schedulers.decide.messages import Inbound
from schedulers.recording import FORMAT, AnyLine, Line, Torn

PAGE: Final = "recordings.md"


def recordings_page() -> str:
    """Every line that a recording may hold."""
    lines = [kind for kind in get_args(AnyLine) if kind is not Torn]
    return "\n\n".join(
        [
            "# Recordings",
            "A recording is lines of JSON, each of which says in `line` what it is. Format "
            f"{FORMAT}; fields with their default are left out, but in the header. Which lines "
            "there are is kept; what a version decides on them may change, and a replay that "
            "decides otherwise says so. `ledger` is the state that a "
            "[log](events.md) had led to. How to make and play recordings: "
            "[Testing with recorded logs](../testing-with-recorded-logs.md).",
            table(("line", "fields", "meaning"), [_row(kind) for kind in lines]),
            "## Entries",
            "The `kind` of an entry, and the fields of its `message`.",
            table(("kind", "fields"), [_message(kind) for kind in get_args(Inbound)]),
        ]
    )


def _row(kind: type[Line]) -> tuple[str, str, str]:
    return code(str(kind.__struct_config__.tag)), _fields(kind), prose(own_doc(kind))


def _message(kind: type[Struct]) -> tuple[str, str]:
    name = link(kind, PAGE) if kind in KINDS else code(kind.__name__)
    return name, _fields(kind)


def _fields(kind: type[Struct]) -> str:
    return ", ".join(code(field.encode_name) for field in msgspec.structs.fields(kind))
