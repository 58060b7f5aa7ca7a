"""NATS messages as they go over a connection, cut apart and otherwise left as they are.

What lives here: the framing of the client protocol, in both directions. What may not: what a
message means.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

_END: Final = b"\r\n"
_SIZED: Final = {b"PUB": 0, b"HPUB": 1, b"MSG": 0, b"HMSG": 1}
"""Operations with a payload, and how many sizes stand before that of the whole."""

_DELIVERED: Final = frozenset({b"MSG", b"HMSG"})


class Way(StrEnum):
    """``UP``: from the client to the server."""

    UP = "up"
    DOWN = "down"


class Frame(Struct, frozen=True):
    """One operation; ``subject`` is empty where it is no message. ``raw``: all its bytes."""

    raw: bytes
    subject: str = ""
    reply: str = ""
    payload: bytes = b""


class Framer:
    """Cuts one direction of one connection into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole by now."""
        self._rest += data
        found = []
        while (frame := self._next()) is not None:
            found.append(frame)
            self._rest = self._rest[len(frame.raw) :]
        return found

    def _next(self) -> Frame | None:
        line, end, _ = self._rest.partition(_END)
        if not end:
            return None
        words = line.split()
        op = words[0].upper() if words else b""
        if op not in _SIZED:
            return Frame(raw=line + end)
        names = words[1 : -1 - _SIZED[op]]
        if op in _DELIVERED:
            del names[1]  # the subscription's number
        begin = len(line) + len(end)
        size = begin + int(words[-1]) + len(_END)
        if len(self._rest) < size:
            return None
        headers = int(words[-2]) if _SIZED[op] else 0
        return Frame(
            raw=self._rest[:size],
            subject=names[0].decode(),
            reply=names[1].decode() if len(names) > 1 else "",
            payload=self._rest[begin + headers : size - len(_END)],
        )
