"""What a container asks for: checked, and multiplied by slots.

What lives here: the rules the API server has for resources, so that a start does not have
to fail to learn them. What may not: where resources are configured (``template``).
"""

from __future__ import annotations

import difflib
from typing import Final

from events.errors import Invalid
from schedulers.kubernetes.names import is_qualified_name
from schedulers.kubernetes.overlay import Json, step_into
from schedulers.kubernetes.quantity import Quantity, parse_quantity

MOST: Final = parse_quantity(str(2**63 - 1))
"""The API server counts in 64 bits."""

_ZERO: Final = parse_quantity("0")
_PLAIN: Final = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES: Final = "hugepages-"


def check_resources(resources: Json, at: str) -> None:
    """Requests and limits of a container. Raises Invalid."""
    requests = _read(resources, "requests", at)
    limits = _read(resources, "limits", at)
    for name, request in requests.items():
        path = step_into(f"{at}.requests", name)
        limit = limits.get(name)
        if limit is not None and request > limit:
            raise Invalid(f"requests {request} of {name}, the limit is {limit}", path=path)
        if name not in _PLAIN and request != limit:
            raise Invalid(f"{name} can't be shared: its limit must be as much", path=path)


def times_slots(resources: Json, slots: int, at: str) -> Json:
    """Every quantity of requests and limits, that many times. Raises Invalid."""
    result = dict(resources)
    for part in ("requests", "limits"):
        if part in resources:
            path = f"{at}.{part}"
            result[part] = {
                name: _multiplied(text, slots, step_into(path, name))
                for name, text in resources[part].items()
            }
    return result


def _multiplied(text: str, slots: int, at: str) -> str:
    quantity = parse_quantity(text, at) * slots
    if quantity > MOST:
        raise Invalid(f"{text} for each of {slots} slots is more than can be counted", path=at)
    return str(quantity)


def _read(resources: Json, part: str, at: str) -> dict[str, Quantity]:
    found: dict[str, Quantity] = {}
    for name, text in (resources.get(part) or {}).items():
        path = step_into(f"{at}.{part}", name)
        _check_name(name, path)
        quantity = parse_quantity(text, path)
        if quantity < _ZERO:
            raise Invalid(f"{text} is less than nothing", path=path)
        if quantity > MOST:
            raise Invalid(f"{text} is more than can be counted", path=path)
        if name not in _PLAIN and not quantity.whole:
            raise Invalid(f"{name} comes in whole numbers only, not {text}", path=path)
        found[name] = quantity
    return found


def _check_name(name: str, path: str) -> None:
    if name in _PLAIN or name.startswith(_HUGE_PAGES):
        return
    if "/" in name and is_qualified_name(name):
        return
    near = difflib.get_close_matches(name, _PLAIN, n=1)
    raise Invalid(
        f"{name!r} is no resource of a container"
        + (f", did you mean {near[0]}?" if near else ": others look like vendor.domain/name"),
        path=path,
    )
