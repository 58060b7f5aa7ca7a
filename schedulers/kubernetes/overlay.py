"""Laying one part of a pod template over another.

What lives here: maps merge, lists merge by name (volume mounts by path), null deletes, and
a key or a type that Kubernetes does not have is an error with its path. What may not: what
slotbus itself reserves (``schedulers.kubernetes.template``).

Laying over nothing is how a fragment is checked on its own.
"""

from __future__ import annotations

import difflib
import json
from typing import Any, Final, TypeAlias

from events.errors import Invalid
from schedulers.kubernetes.podmodel import Field, Shape, fields_of
from schedulers.kubernetes.quantity import parse_quantity

Json: TypeAlias = dict[str, Any]
"""An object of the Kubernetes API, as its JSON says it: open by nature, so that only the
table of ``podmodel`` types it."""

_KEYS: Final = {"VolumeMount": "mountPath", "VolumeDevice": "devicePath"}
"""What a list's elements are told apart by, where it is not their name."""

_REPLACED: Final = frozenset({"HTTPHeader"})
"""Elements whose name may come twice: their list is replaced."""

_ONE_OF: Final = frozenset({"EnvVar", "EnvVarSource", "Volume"})
"""Where an object can be only one of several things, what the overlay names is it."""

_MAX_INT: Final = 2**63 - 1


def overlay(base: Json, patch: object, kind: str, at: str) -> Json:
    """``patch`` laid over an object of this kind; neither is changed. Raises Invalid."""
    given = _mapping(patch, at)
    known = fields_of(kind)
    result = dict(base)
    if kind in _ONE_OF and given.keys() - {"name"}:
        result = {name: value for name, value in base.items() if name in given or name == "name"}
    for name, value in given.items():
        here = step_into(at, name)
        if name not in known:
            raise unknown_key(name, list(known), here)
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value, known[name], here)
    return result


def merge(base: Any, value: object, field: Field, at: str) -> Any:
    """A field's value laid over the one it had (None: none). Raises Invalid."""
    if field.shape is Shape.MAP:
        return _merge_map(base or {}, value, field, at)
    if field.shape is Shape.LIST:
        return _merge_list(base or [], value, field, at)
    if field.nested:
        return overlay(base or {}, value, field.kind, at)
    return _plain(value, field, at)


def element_key(kind: str, element: Json) -> str | None:
    """What tells an element from others of its list; None where its list is replaced."""
    if kind == "ContainerPort" and "name" not in element:
        return f"{element.get('containerPort')}/{element.get('protocol', 'TCP')}"
    name = _key_name(kind)
    return None if name is None else str(element.get(name, ""))


def step_into(at: str, name: str) -> str:
    """The path of a field below ``at``."""
    return f"{at}.{name}" if name.isidentifier() else f"{at}[{name!r}]"


def unknown_key(name: str, known: list[str], at: str) -> Invalid:
    """The error for a key that means nothing here, with the nearest that does."""
    near = difflib.get_close_matches(name, known, n=1)
    return Invalid(
        f"there is no field {name!r} here" + (f", did you mean {near[0]}?" if near else ""),
        path=at,
    )


def scalar(value: object, kind: str, at: str) -> str | int | bool:
    """A text, number or truth value of the wanted kind. Raises Invalid."""
    if kind == "quantity":
        return quantity_text(value, at)
    wanted: tuple[type, ...] = {"str": (str,), "int": (int,), "bool": (bool,), "port": (int, str)}[
        kind
    ]
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):
        names = " or ".join(_WORDS[one] for one in wanted)
        raise Invalid(f"expected {names}, got {_shown(value)}", path=at)
    if isinstance(value, int) and abs(value) > _MAX_INT:
        raise Invalid(f"{value} is out of range", path=at)
    assert isinstance(value, (str, int))
    return value


def _plain(value: object, field: Field, at: str) -> str | int | bool:
    """A value that is no object, and one of its words where it has such. Raises Invalid."""
    plain = scalar(value, field.kind, at)
    if not field.words or not plain or plain in field.words:
        return plain  # "" is the server's default, where it has one
    near = difflib.get_close_matches(str(plain), field.words, n=1, cutoff=0.5)
    one_of = ", ".join(sorted(field.words))
    hint = f", did you mean {near[0]}?" if near else ""
    raise Invalid(f"{_shown(plain)} is none of {one_of}{hint}", path=at)


def quantity_text(value: object, at: str) -> str:
    """A quantity as text; numbers are taken as files write them. Raises Invalid."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Invalid(f"expected a quantity, got {_shown(value)}", path=at)
    if isinstance(value, int) and abs(value) > _MAX_INT:
        raise Invalid("the number is out of range", path=at)
    text = value if isinstance(value, str) else repr(value)
    parse_quantity(text, at)
    return text


def _merge_map(base: Json, value: object, field: Field, at: str) -> Json:
    result = dict(base)
    for name, inner in _mapping(value, at).items():
        if inner is None:
            result.pop(name, None)
        else:
            result[name] = scalar(inner, field.kind, step_into(at, name))
    return result


def _merge_list(base: list[Any], value: object, field: Field, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise Invalid(f"expected a list, got {_shown(value)}", path=at)
    if not field.nested:
        return [_plain(one, field, f"{at}[{i}]") for i, one in enumerate(value)]
    if _key_name(field.kind) is None:
        return [overlay({}, one, field.kind, f"{at}[{i}]") for i, one in enumerate(value)]
    result = {element_key(field.kind, one): one for one in base}
    seen: set[str] = set()
    for i, one in enumerate(value):
        here = f"{at}[{i}]"
        key = _needed_key(field.kind, _mapping(one, here), here)
        if key in seen:
            raise Invalid(f"{key!r} comes twice", path=here)
        seen.add(key)
        result[key] = overlay(result.get(key, {}), one, field.kind, here)
    return list(result.values())


def _key_name(kind: str) -> str | None:
    if kind in _KEYS:
        return _KEYS[kind]
    return "name" if "name" in fields_of(kind) and kind not in _REPLACED else None


def _needed_key(kind: str, element: Json, at: str) -> str:
    name = _key_name(kind) or "name"
    if kind == "ContainerPort" and "name" not in element:
        name = "containerPort"
    if not element.get(name):
        raise Invalid(f"needs a {name}", path=step_into(at, name))
    return element_key(kind, element) or ""


def _mapping(value: object, at: str) -> Json:
    if not isinstance(value, dict):
        raise Invalid(f"expected an object, got {_shown(value)}", path=at)
    for name in value:
        if not isinstance(name, str):
            raise Invalid(f"the key {name!r} is not a text", path=at)
    return value


_WORDS: Final[dict[type, str]] = {str: "a text", int: "a whole number", bool: "true or false"}


def _shown(value: object) -> str:
    """A short look at a value, in JSON's words."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else f"{text[:40]}..."
