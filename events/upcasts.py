"""Records of older schema versions, brought to today's step by step: a log stays readable.

What lives here: one step for each version that there was, as a pure change of a record's JSON.
What may not: today's facts (``events.facts``): a step says what was meant then, and is never
changed once its version was released.

Whoever changes what a stored record may say raises ``SCHEMA_VERSION``, adds a step from the
version before, and keeps that version's golden log (``tests/golden``). A field that may be left
out needs no step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from events.facts import SCHEMA_VERSION

Tree: TypeAlias = dict[str, Any]
"""A record's JSON; it is the step's to change."""

Upcast: TypeAlias = Callable[[Tree], Tree]

UPCASTS: Final[dict[int, Upcast]] = {}
"""By the version that they take; each gives the next one."""


class NoUpcast(Exception):
    """There is no step from this version, or a step did not find what it needs."""


def upcast(
    line: bytes | memoryview,
    version: int,
    *,
    to: int = SCHEMA_VERSION,
    steps: Mapping[int, Upcast] = UPCASTS,
) -> bytes:
    """The line as a program of version ``to`` would have written it. Raises NoUpcast."""
    tree: Tree = msgspec.json.decode(line, type=dict[str, Any])
    for step in range(version, to):
        if step not in steps:
            raise NoUpcast(f"nobody knows what version {step} meant")
        try:
            tree = steps[step](tree)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise NoUpcast(f"it is none of version {step}: {error!r}") from error
        tree["v"] = step + 1
    return msgspec.json.encode(tree)
