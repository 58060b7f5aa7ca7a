"""The story of a drill: what was done to it, and what was found, with the time of each.

What lives here: one line of JSON for each, in the drill's folder. What may not: doing it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path


class Story:
    """``said``: the drill's seconds, what happened, and details."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "story.jsonl"
        self._began = time.monotonic()
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self._known: set[str] = set()

    def tell(self, what: str, **details: object) -> None:
        """Adds a line."""
        line = {
            "s": round(time.monotonic() - self._began, 3),
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "what": what,
            **details,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line, default=str) + "\n")

    def fault(self, kind: str, details: str) -> None:
        """Something was done to the cluster."""
        self.faults[kind] += 1
        self.tell("fault", kind=kind, details=details)

    def violation(self, law: str, sentence: str) -> None:
        """A law does not hold; told once in the same words."""
        text = f"{law}: {sentence}"
        if text not in self._known:
            self._known.add(text)
            self.violations.append(text)
            self.tell("violation", law=law, sentence=sentence)
