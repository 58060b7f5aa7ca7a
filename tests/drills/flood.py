"""A flood of what nodes say, written to a server as fast as it is wanted.

What lives here: one connection of bare bytes, from a thread of its own, so that neither a
client library nor the test's own loop is what is measured. What may not: expectations.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from events.pulse import live_digest
from events.subjects import Subjects
from events.traffic import HeartbeatNodeReq, RegisterNodeReq

BLOCK: Final = 200
"""Messages that are written at once."""

PATIENCE_S: Final = 60.0
_DONE: Final = "flood.done"


def registrations(subjects: Subjects, count: int) -> list[bytes]:
    """Of nodes without slots, one each."""
    return [
        _published(
            subjects.node(f"f{n}", "register"),
            RegisterNodeReq(node_id=f"f{n}", task_slots=0, incarnation="i1", workers=[]),
        )
        for n in range(count)
    ]


def heartbeats(subjects: Subjects, count: int, epoch: int) -> list[bytes]:
    """Of the same nodes, on which nothing runs."""
    digest = live_digest([])
    return [
        _published(
            subjects.node(f"f{n}", "heartbeat"),
            HeartbeatNodeReq(node_id=f"f{n}", incarnation="i1", seq=1, epoch=epoch, digest=digest),
        )
        for n in range(count)
    ]


def _published(subject: str, message: msgspec.Struct, reply: str = "") -> bytes:
    body = msgspec.json.encode(message)
    return f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n"


class Flood:
    """Writes ``messages`` round and round."""

    def __init__(self, port: int, messages: Sequence[bytes]) -> None:
        self.sent = 0
        self._messages = messages
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
        self._rest = b""

    def close(self) -> None:
        self._socket.close()

    def write(self, count: int) -> None:
        """So many messages, as fast as the server takes them."""
        for block in self._blocks(count):
            self._socket.sendall(block)

    def write_at(self, rate: float, for_s: float) -> None:
        """``rate`` messages a second."""
        began = time.monotonic()
        for block in self._blocks(int(rate * for_s)):
            self._socket.sendall(block)
            ahead_s = self.sent / rate - (time.monotonic() - began)
            if ahead_s > 0:
                time.sleep(ahead_s)
            elif -ahead_s > 2 * for_s:
                return  # the server itself does not take so many

    def until_taken(self) -> None:
        """Waits until the leader has answered a heartbeat that came behind all of them."""
        subject, _, rest = self._messages[0].partition(b"  ")
        self._socket.sendall(f"SUB {_DONE} 1\r\n".encode())
        self._socket.sendall(subject + f" {_DONE} ".encode() + rest)
        while f"MSG {_DONE}".encode() not in self._rest:
            data = self._socket.recv(65_536)
            assert data, "the server ended the connection"
            if b"PING" in data:
                self._socket.sendall(b"PONG\r\n")
            self._rest += data

    def _blocks(self, count: int) -> Iterator[bytes]:
        end = self.sent + count
        while self.sent < end:
            first = self.sent % len(self._messages)
            block = self._messages[first : first + min(BLOCK, end - self.sent)]
            self.sent += len(block)
            yield b"".join(block)


@contextmanager
def pouring(flood: Flood, write: Callable[[], None]) -> Iterator[threading.Thread]:
    """Writes beside a block of code, which may look whether it goes on."""
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()
        flood.close()
