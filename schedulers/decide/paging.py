"""Pages of a reply: which keys it has, and as many rows as an answer can hold.

What lives here: cursors and the size of a page. What may not: what a row says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from events.messages import Message

R = TypeVar("R", bound=Message)

PAGE_BYTES: Final = 700_000
"""Of rows in one page: a shorter one than was asked for, where rows are long."""

_ENCODER: Final = msgspec.json.Encoder()


class Page(Struct, frozen=True):
    """Keys of one page, and the cursor of the next ("" where there is none)."""

    keys: Sequence[str]
    next: str


class Rows(Struct, Generic[R], frozen=True):
    """The rows of one page, and the cursor of the next."""

    rows: list[R]
    next: str


def page(keys: Iterable[str], cursor: str, limit: int) -> Page:
    """The keys after a cursor, in order; the cursor is the last key of the page before."""
    rest = sorted(key for key in keys if key > cursor)
    return Page(rest[:limit], rest[limit - 1] if len(rest) > limit else "")


def fill(part: Page, row_of: Callable[[str], R]) -> Rows[R]:
    """The rows of a page, as many as fit into an answer; at least one, if there is any."""
    rows: list[R] = []
    size = 0
    for index, key in enumerate(part.keys):
        row = row_of(key)
        size += len(_ENCODER.encode(row))
        if rows and size > PAGE_BYTES:
            return Rows(rows, part.keys[index - 1])
        rows.append(row)
    return Rows(rows, part.next)
