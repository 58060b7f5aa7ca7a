"""Golden files: what came out once, was looked at, and is to stay.

What lives here: comparing and writing them. What may not: what is compared.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

UPDATE_FLAG: Final = "--slotbus-update-golden"
SHOWN: Final = 60
"""Lines of a difference that an error shows."""


class Golden:
    """Files in the folder ``golden`` beside the test's own."""

    def __init__(self, folder: Path, *, update: bool) -> None:
        self._folder = folder
        self._update = update

    def check(self, name: str, found: str | bytes) -> None:
        """Raises AssertionError where the file says otherwise, or is not there; with the
        update flag it is written instead."""
        data = found.encode() if isinstance(found, str) else found
        path = self._folder / name
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return
        if not path.exists():
            raise AssertionError(f"there is no golden file {name}: make it with {UPDATE_FLAG}")
        known = path.read_bytes()
        if known != data:
            changes = list(
                difflib.unified_diff(
                    known.decode(errors="replace").splitlines(),
                    data.decode(errors="replace").splitlines(),
                    f"golden/{name}",
                    "this test",
                    lineterm="",
                )
            )
            shown = "\n".join(changes[:SHOWN])
            raise AssertionError(f"{name} is not what it was ({UPDATE_FLAG} accepts it):\n{shown}")
