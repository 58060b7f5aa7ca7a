"""Waits between attempts: growing, and never the same for two who wait.

What lives here: ``Backoff``. What may not: sleeping.
"""

from __future__ import annotations

import random


class Backoff:
    """From ``first_s`` seconds doubling to ``most_s``, each shortened by up to half."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        wait_s = self._next_s
        self._next_s = min(self._most_s, wait_s * 2)
        return wait_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next_s = self._first_s
