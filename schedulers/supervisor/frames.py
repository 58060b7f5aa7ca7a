"""What the supervisor process and its clients say to each other over the Unix socket.

What lives here: requests, answers, how they are framed, and the socket's place. What may
not: doing anything about them. A frame is four bytes of length, big end first, and JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from events.errors import Fact
from events.traffic import InventoryRow
from schedulers.supervisor.api import WorkerSpec

PROTOCOL: Final = 1
SOCKET_NAME: Final = "supervisor.sock"
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Room for an inventory of 10,000 workers (about 3 MB) and a program of 512 KiB."""

BEAT_S: Final = 5.0
"""An idle stream of reports carries a sign of life this often, in seconds."""

_MAX_SOCKET_PATH: Final = 100
"""The kernel takes 108 bytes with the final NUL."""

_LENGTH: Final = 4


class Hello(Struct, frozen=True, tag="hello"):
    protocol: int


class Launch(Struct, frozen=True, tag="launch"):
    spec: WorkerSpec
    epoch: int


class Stop(Struct, frozen=True, tag="stop", kw_only=True):
    worker_id: str
    force: bool
    grace_s: float
    epoch: int


class TakeInventory(Struct, frozen=True, tag="inventory"):
    epoch: int


class Acknowledge(Struct, frozen=True, tag="acknowledge"):
    worker_ids: list[str]


class Renew(Struct, frozen=True, tag="renew"):
    """``sent_at`` in seconds since boot; None: as it arrives."""

    sent_at: float | None = None


class ReadOutput(Struct, frozen=True, tag="output"):
    worker_id: str
    since: int
    max_bytes: int


class Reports(Struct, frozen=True, tag="reports"):
    """This connection carries ``Told`` from now on, and nothing else."""


class Shutdown(Struct, frozen=True, tag="shutdown"):
    """Stop all workers, then exit. Answered when they are gone."""

    grace_s: float


Op: TypeAlias = (
    Hello | Launch | Stop | TakeInventory | Acknowledge | Renew | ReadOutput | Reports | Shutdown
)


class Request(Struct, frozen=True):
    id: int
    op: Op


class Failure(Struct, frozen=True):
    """``kind``: the error's class in ``api`` or ``events.errors``."""

    kind: str
    message: str
    facts: dict[str, Fact] = {}


class Answer(Struct, frozen=True):
    id: int
    result: Raw = Raw(b"null")
    error: Failure | None = None


class Welcome(Struct, frozen=True):
    """``pid`` and node of the supervisor, and what its workers carry as their mark."""

    protocol: int
    pid: int
    node_id: str
    supervisor_id: str


class Told(Struct, frozen=True):
    """A worker's end; None is a sign of life."""

    row: InventoryRow | None = None


class BadFrame(Exception):
    """The other side does not speak this protocol."""


F = TypeVar("F", bound=Struct)


def encode(message: Struct) -> bytes:
    """Raises BadFrame for one that is too large or holds text that is no Unicode."""
    try:
        body = msgspec.json.encode(message)
    except ValueError as error:
        raise BadFrame(str(error)) from error
    if len(body) > MAX_FRAME_BYTES:
        raise BadFrame(f"{len(body)} bytes are more than {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_LENGTH, "big") + body


async def read(reader: asyncio.StreamReader, kind: type[F]) -> F:
    """The next message. Raises BadFrame, and IncompleteReadError or OSError at the end."""
    size = int.from_bytes(await reader.readexactly(_LENGTH), "big")
    if size > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {size} bytes")
    body = await reader.readexactly(size)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(str(error)) from error


@contextlib.contextmanager
def socket_path(state_dir: Path) -> Iterator[str]:
    """A path of the socket short enough for the kernel, valid inside the ``with``."""
    path = str(state_dir / SOCKET_NAME)
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield path
        return
    fd = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)
