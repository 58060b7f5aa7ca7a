"""What is left to chance: fresh tokens, and the jitter of pauses.

What lives here: the port, the one for real use, and one that is the same every time, for
tests. What may not: anything that decides.
"""

from __future__ import annotations

import random
import secrets
from typing import Final, Protocol

SHORTEST, LONGEST = 0.5, 1.5
TOKEN_BYTES: Final = 6


class Chance(Protocol):
    def token(self) -> str:
        """What fresh ids are made of: never the same twice."""
        ...

    def jitter(self) -> float:
        """What a pause is multiplied by, about 1."""
        ...


class SystemChance:
    """Nobody can guess it, and no two controllers get the same."""

    def token(self) -> str:
        return secrets.token_hex(TOKEN_BYTES)

    def jitter(self) -> float:
        return random.uniform(SHORTEST, LONGEST)


class CountingChance:
    """``1``, ``2``, ``3`` and no jitter: a test reads the same ids each time."""

    def __init__(self) -> None:
        self._made = 0

    def token(self) -> str:
        self._made += 1
        return str(self._made)

    def jitter(self) -> float:
        return 1.0
