"""JSON Schema of everything that goes over the wire or into the event log.

What lives here: schemas made of the structs by msgspec, put right where msgspec or Python
speak another dialect. What may not: descriptions of messages (their structs have them).
"""

from __future__ import annotations

import difflib
from typing import Any, Final, Union, get_args

import msgspec
from msgspec import Raw, Struct, field

from controller.reference.catalogue import KINDS, exchanges, on_subject
from events.errors import Invalid
from events.facts import AnyFact, Fact, Record

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FACTS: Final[tuple[type[Fact], ...]] = get_args(AnyFact)
_REF: Final = "#/$defs/{name}"

Schema = dict[str, Any]
"""A schema is JSON of any shape."""


def whole_schema() -> Schema:
    """One document that defines every message, reply, fact and record."""
    return {
        "$schema": DIALECT,
        "title": "slotbus",
        "description": "Every message of slotbus, and the records of its event log.",
        "$defs": _definitions(),
    }


def schema_of(name: str) -> Schema:
    """The schema of one of ``names()``, with what it refers to. Raises Invalid."""
    definitions = _definitions()
    exchange = on_subject(name)
    found = names().get(name) or (exchange.message.__name__ if exchange else None)
    found = found or _any_case(name, definitions)
    if found is None:
        near = difflib.get_close_matches(name, [*names(), *definitions], n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise Invalid(f"there is no message {name!r}{hint}", path="message")
    needed: dict[str, Schema] = {}
    _collect(found, definitions, needed)
    return {"$schema": DIALECT, "$ref": _REF.format(name=found), "$defs": needed}


def names() -> dict[str, str]:
    """What messages and facts may be called by: their struct, their subject, a fact's tag."""
    called = {exchange.subject: exchange.message.__name__ for exchange in exchanges()}
    called |= {_tag(fact): fact.__name__ for fact in FACTS}
    return called | {kind.__name__: kind.__name__ for kind in KINDS}


def _definitions() -> dict[str, Schema]:
    facts = [_describable(fact) for fact in FACTS]
    records = [_record(kind, facts) for kind in KINDS if issubclass(kind, Record)]
    kinds = [_describable(kind) for kind in KINDS if not issubclass(kind, Record)]
    _, definitions = msgspec.json.schema_components(
        [*kinds, *records, *facts], schema_hook=_any_json, ref_template=_REF
    )
    by_subject = {e.message.__name__: e.said for e in exchanges() if e.said}
    for name, said in by_subject.items():
        required = definitions[name]["required"]
        definitions[name]["required"] = [one for one in required if one not in said]
    return {name: _translated(definitions[name]) for name in sorted(definitions)}


def _record(kind: type[Record], facts: list[type[Struct]]) -> type[Struct]:
    """A kind of record that holds these facts."""
    fields = [
        _field_like(one, list[Union[tuple(facts)]])  # type: ignore[misc]  # noqa: UP007
        if one.name == "events"
        else _field_like(one, one.type)
        for one in msgspec.structs.fields(kind)
    ]
    own = {"__doc__": kind.__doc__}
    return msgspec.defstruct(kind.__name__, fields, namespace=own, kw_only=True)


def _any_json(kind: type) -> Schema:
    """What structs annotate as ``object`` is any JSON. Raises NotImplementedError."""
    if kind is object:
        return {"description": "any JSON"}
    raise NotImplementedError(kind)


def _describable(kind: type[Struct]) -> type[Struct]:
    """The same struct, with ``Any`` for fields that keep their JSON raw: msgspec can't
    write the default of such a field into a schema."""
    if all(one.type is not Raw for one in msgspec.structs.fields(kind)):
        return kind
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        [
            (one.name, Any, field(default_factory=dict))
            if one.type is Raw
            else _field_like(one, one.type)
            for one in msgspec.structs.fields(kind)
        ],
        namespace={"__doc__": kind.__doc__},
        kw_only=True,
        tag_field=config.tag_field,
        tag=config.tag,
    )


def _field_like(one: msgspec.structs.FieldInfo, hint: Any) -> tuple[str, Any, Any]:
    if one.required:
        return (one.name, hint, field())
    if one.default is msgspec.NODEFAULT:
        return (one.name, hint, field(default_factory=one.default_factory))
    return (one.name, hint, field(default=one.default))


def _translated(schema: Any) -> Any:
    """Python's ``\\Z`` is plain ``$`` in the regular expressions of JSON Schema; docstrings
    lose the line breaks of their source."""
    if isinstance(schema, list):
        return [_translated(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _translated(value) for key, value in schema.items()}
    if isinstance(made.get("pattern"), str):
        made["pattern"] = made["pattern"].replace("\\Z", "$")
    if isinstance(made.get("description"), str):
        made["description"] = " ".join(made["description"].split())
    return made


def _collect(name: str, definitions: dict[str, Schema], needed: dict[str, Schema]) -> None:
    if name in needed:
        return
    needed[name] = definitions[name]
    for referred in _references(definitions[name]):
        _collect(referred, definitions, needed)


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for one in schema for name in _references(one)]
    if not isinstance(schema, dict):
        return []
    prefix = _REF.format(name="")
    found = [name for value in schema.values() for name in _references(value)]
    ref = schema.get("$ref")
    return [ref.removeprefix(prefix), *found] if isinstance(ref, str) else found


def _any_case(name: str, definitions: dict[str, Schema]) -> str | None:
    return next((known for known in definitions if known.lower() == name.lower()), None)


def _tag(fact: type[Fact]) -> str:
    return str(fact.__struct_config__.tag)
