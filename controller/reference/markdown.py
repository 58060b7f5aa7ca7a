"""Structs and docstrings as Markdown.

What lives here: tables, types in words, defaults, prose. What may not: what is on which page.
"""

from __future__ import annotations

import inspect as python
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec import inspect as types

from events import facts
from events.ids import ID_PATTERN, MAX_INT

MESSAGES_PAGE: Final = "messages.md"
EVENTS_PAGE: Final = "events.md"
_NEEDED: Final = "needed"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; what would break it is escaped."""
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


def code(text: str) -> str:
    return f"`{text}`"


def prose(text: str | None) -> str:
    """A docstring as paragraphs; its double backticks are Markdown's single ones."""
    cleaned = python.cleandoc(text or "").replace("``", "`")
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", cleaned))
    return "\n\n".join(paragraphs)


def own_doc(kind: type) -> str:
    """The docstring of this very class, not of one that it comes from."""
    return prose(vars(kind).get("__doc__"))


def anchor(name: str) -> str:
    """What GitHub makes of a heading of plain words."""
    return re.sub(r"[^a-z0-9_-]", "", name.lower().replace(" ", "-"))


def link(kind: type, here: str) -> str:
    """A struct's name, leading to where it is described, from the page ``here``."""
    page = EVENTS_PAGE if kind.__module__ == facts.__name__ else MESSAGES_PAGE
    return f"[{kind.__name__}]({'' if page == here else page}#{anchor(kind.__name__)})"


def fields_table(kind: type[Struct], here: str) -> str:
    """The fields of a struct, as they are on the wire."""
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    rows = [
        (code(one.encode_name), in_words(one.type, here), default_of(one)) for one in info.fields
    ]
    return table(("field", "type", "default"), rows) if rows else "No fields."


def nested(kind: type[Struct]) -> list[type[Struct]]:
    """The structs that a struct's fields are made of, directly."""
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    return [struct for one in info.fields for struct in _structs_in(one.type)]


def _structs_in(found: types.Type) -> list[type[Struct]]:
    match found:
        case types.StructType():
            return [found.cls]
        case types.Metadata():
            return _structs_in(found.type)
        case types.ListType():
            return _structs_in(found.item_type)
        case types.DictType():
            return _structs_in(found.value_type)
        case types.UnionType():
            return [struct for one in found.types for struct in _structs_in(one)]
        case _:
            return []


def default_of(one: types.Field) -> str:
    """A field's default as JSON, or that it is needed."""
    if one.required:
        return _NEEDED
    value: Any = one.default
    if value is msgspec.NODEFAULT:
        value = one.default_factory()
    if isinstance(value, msgspec.Raw):
        return code(bytes(value).decode())
    return code(msgspec.json.encode(value).decode())


def description_of(found: types.Type) -> str:
    """What ``Meta(description=...)`` says of a type."""
    if isinstance(found, types.Metadata):
        extra = found.extra_json_schema or {}
        return str(extra.get("description", "")) or description_of(found.type)
    return ""


def in_words(found: types.Type, here: str = "") -> str:
    """A type for a person to read, on the page ``here``."""
    match found:
        case types.Metadata():
            return in_words(found.type, here)
        case types.BoolType():
            return "boolean"
        case types.IntType() | types.FloatType():
            return _number(found)
        case types.StrType():
            return "id" if found.pattern == ID_PATTERN else "text"
        case types.DateTimeType():
            return "time"
        case types.NoneType():
            return "null"
        case types.AnyType() | types.RawType() | types.CustomType():
            return "any JSON"
        case types.LiteralType():
            return " or ".join(code(str(value)) for value in found.values)
        case types.EnumType():
            return " or ".join(code(str(one.value)) for one in found.cls)
        case types.StructType():
            return link(found.cls, here)
        case types.ListType():
            return f"list of {in_words(found.item_type, here)}"
        case types.DictType():
            return f"object of {in_words(found.value_type, here)}"
        case types.UnionType():
            return " or ".join(in_words(one, here) for one in found.types)
        case _:
            raise TypeError(f"no words for {found}")


def _number(found: types.IntType | types.FloatType) -> str:
    word = "integer" if isinstance(found, types.IntType) else "number"
    low, high = found.ge, found.le
    if found.gt is not None:
        return f"{word} above {found.gt:,}" + ("" if high is None else f", to {high:,}")
    if low is not None and high == MAX_INT:
        return f"{word} from {low}"
    if low is not None and high is not None:
        return f"{word}, {low:,} to {high:,}"
    return f"{word} from {low:,}" if low is not None else word
