"""Where in a value a mistake is: what msgspec says of it, with the keys that it leaves out.

What lives here: the path of a validation error, in words. What may not: errors of ours
(``events.errors``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect

Step: TypeAlias = str | int | None
"""A name, a place in a list, or a key that msgspec did not name."""

MOST_KEYS: Final = 1_000
"""Of a map that are tried, to find the one that is wrong."""

_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<place>\d+)\]|(?P<some>\[\.\.\.\])")


def mistake(error: msgspec.ValidationError, tree: object, kind: Any) -> tuple[str, str]:
    """What is wrong and the path of it, like ``$.env_vars['A']``. ``tree``: the parsed value
    that is no ``kind``; of a map msgspec only says that something is wrong inside."""
    text, path = _split(str(error))
    steps: list[Step] = []
    for found in _STEP.finditer(path.removeprefix("$")):
        if found["some"]:
            steps.append(_key(tree, steps, kind, text))
        else:
            steps.append(found["name"] or int(found["place"]))
    if text.startswith("Invalid enum value"):
        text = _with_words(text, inspect.type_info(kind), steps)
    return text, "$" + "".join(map(_written, steps)) if "[...]" in path else path


def _split(text: str) -> tuple[str, str]:
    """msgspec says "Expected `int`, got `str` - at `$.slots`"."""
    head, found, tail = text.rpartition(" - at `")
    return (head, tail.removesuffix("`")) if found else (text, "$")


def _key(tree: object, steps: list[Step], kind: Any, text: str) -> Step:
    """The first key of the map there whose value alone is the mistake."""
    there = _inside(tree, steps)
    if not isinstance(there, dict):
        return None
    for key in list(there)[:MOST_KEYS]:
        try:
            msgspec.convert(_only(tree, steps, {key: there[key]}), kind)
        except msgspec.ValidationError as error:
            if _split(str(error))[0] == text:
                return str(key)
    return None


def _inside(tree: object, steps: list[Step]) -> object:
    for step in steps:
        try:
            tree = tree[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _only(tree: Any, steps: list[Step], value: object) -> object:
    """A copy of the tree with another value in one place."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    copy = list(tree) if isinstance(tree, list) else dict(tree)
    copy[step] = _only(tree[step], rest, value)  # type: ignore[index]
    return copy


def _with_words(text: str, kind: inspect.Type, steps: list[Step]) -> str:
    """The same, and what it may be."""
    words = sorted({word for end in _ends(kind, steps) for word in _words(end)})
    return f"{text}: it is one of {', '.join(words)}" if words else text


def _ends(kind: inspect.Type, steps: list[Step]) -> Iterator[inspect.Type]:
    """The types that a value at the end of these steps may have."""
    if isinstance(kind, inspect.Metadata):
        yield from _ends(kind.type, steps)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _ends(one, steps)
    elif not steps:
        yield kind
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if field.encode_name == steps[0]:
                yield from _ends(field.type, steps[1:])
    elif isinstance(kind, inspect.DictType):
        yield from _ends(kind.value_type, steps[1:])
    elif isinstance(kind, inspect.CollectionType | inspect.VarTupleType):
        yield from _ends(kind.item_type, steps[1:])


def _words(kind: inspect.Type) -> Iterator[str]:
    if isinstance(kind, inspect.LiteralType):
        yield from map(str, kind.values)
    elif isinstance(kind, inspect.EnumType):
        yield from (str(one.value) for one in kind.cls)


def _written(step: Step) -> str:
    if step is None:
        return "[...]"
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() else f"[{step!r}]"
