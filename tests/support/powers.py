"""What not every backend can do, so that the contract suites ask nobody for it in vain.

What lives here: the powers, who lacks which and why, and the choice of backends for a test.
A point that a backend lacks is tested for what happens instead, in that backend's own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, TypeVar

F = TypeVar("F", bound=Callable[..., object])


class Power(StrEnum):
    LISTS = "lists what runs"
    REFUSES = "tells at the launch that a command can't be executed"
    NEVER_SEEN = "proves that a worker was never started"


LACKS: Final[dict[str, dict[Power, str]]] = {
    "manual": {
        Power.LISTS: "a person's terminals can't be looked into: inventories are Unreachable",
        Power.REFUSES: "the person finds out, after the command was handed over",
        Power.NEVER_SEEN: "an earlier controller may have handed the command over already",
    }
}


def needs(*powers: Power) -> Callable[[F], F]:
    """Marks a test that is only for backends with these powers."""

    def mark(test: F) -> F:
        test.needs = frozenset(powers)  # type: ignore[attr-defined]
        return test

    return mark


def able(backends: Iterable[str], test: Callable[..., object]) -> list[str]:
    """The backends, by name, that have what a test needs."""
    wanted: frozenset[Power] = getattr(test, "needs", frozenset())
    return sorted(name for name in backends if not wanted & LACKS.get(name, {}).keys())
