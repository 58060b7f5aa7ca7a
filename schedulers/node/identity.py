"""Who an agent is: the lock on its state directory, its machine and its incarnation.

What lives here: short file operations at the agent's start. What may not: NATS, workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from msgspec import Struct

from events.errors import SlotbusError

MACHINE_ID: Final = Path("/etc/machine-id")
LOCK: Final = "agent.lock"
KEPT_ID: Final = "machine-id"


class StateDirUnusable(SlotbusError):
    """Another agent uses the state directory, or it can't be written."""

    code: ClassVar[str] = "state_dir_unusable"
    status: ClassVar[int] = 409


class Identity(Struct, frozen=True, kw_only=True):
    """``incarnation`` is new at each start and sorts by the time of it."""

    node_id: str
    incarnation: str
    machine_id: str


class StateDirLock:
    """Held for an agent's life; the kernel lets go of it when the process ends.

    Raises StateDirUnusable on entry.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self._state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(self._state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirUnusable(
                f"the state directory {self._state_dir} can't be used: {error}"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            self._close()
            raise StateDirUnusable(
                f"another agent (pid {holder}) uses the state directory {self._state_dir}: "
                "stop it, or give this one a directory and a node id of its own"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def make_identity(node_id: str, state_dir: Path, machine: str = "") -> Identity:
    """A new incarnation of this node, on ``machine`` (empty: find out).

    Raises StateDirUnusable.
    """
    return Identity(
        node_id=node_id,
        incarnation=new_incarnation(time.time_ns() // 1_000_000),
        machine_id=machine or machine_id(state_dir),
    )


def new_incarnation(now_ms: int) -> str:
    """Milliseconds in hex, so that later ones sort above, and something nobody else has."""
    return f"{now_ms:012x}-{secrets.token_hex(4)}"


def is_later(incarnation: str, than: str) -> bool:
    """Whether ``incarnation`` was made by an agent that started after ``than``."""
    ours, theirs = than.partition("-")[0], incarnation.partition("-")[0]
    return len(theirs) == len(ours) and theirs > ours


def machine_id(state_dir: Path, machine_file: Path = MACHINE_ID) -> str:
    """The machine's own id, the host's name (containers made from one image may share the
    first), and an id kept in the state directory: an agent with another directory has
    another supervisor, and may not speak for the workers of this one.

    Raises StateDirUnusable.
    """
    try:
        own = machine_file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        own = ""
    parts = own if own != "uninitialized" else "", socket.gethostname()
    return "/".join(part[:128] for part in (*parts, _kept_id(state_dir / KEPT_ID)) if part)


def _kept_id(path: Path) -> str:
    """Safe for two that begin at once: the first one's stays."""
    try:
        if path.exists() and path.read_text().strip():
            return path.read_text().strip()
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            fresh.write_text(f"{secrets.token_hex(16)}\n")
            if path.exists():  # and empty: a machine that lost power
                fresh.replace(path)
            else:
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(fresh)
        finally:
            fresh.unlink(missing_ok=True)
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateDirUnusable(f"{path} can't be used: {error}") from error
