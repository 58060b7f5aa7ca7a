"""Stories that once broke a law, kept as data: they are told in every run of the tests.

What lives here: reading and writing them. What may not: telling them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tests.simulation.story import Story

FOLDER: Final = Path(__file__).parent / "regressions"


class Kept(Struct, frozen=True):
    """``was``: the sentence about the law that it broke, ``because``: the fault behind it."""

    was: str
    story: Story
    because: str = ""


def keep(name: str, kept: Kept) -> Path:
    """Writes a story down."""
    path = FOLDER / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
    return path


def kept_stories() -> dict[str, Kept]:
    """All of them, by name."""
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=Kept)
        for path in sorted(FOLDER.glob("*.json"))
    }
