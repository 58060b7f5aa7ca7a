"""What an examination found.

What lives here: ``Finding``. What may not: examinations.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from events.errors import Internal

T = TypeVar("T", bound=Struct)
Level = Literal["ok", "note", "unknown", "warning", "bad"]
ASK_S = 2.0
"""How long an answer is waited for."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``advice``: what to do, where there is something."""

    what: str
    level: Level
    text: str
    advice: str = ""


def read(body: bytes, kind: type[T]) -> T:
    """An answer of the server's. Raises Internal where it is none that we know."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Internal(f"an answer that can't be read: {error}") from error
