"""Who a controller is: a name for people, and a process that others can prove dead.

What lives here: what a lease says about its holder, and the one question another process
on the same machine may answer at once, without waiting for a lease to run out. What may
not: leases themselves.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Final

from msgspec import Struct

_PROC: Final = Path("/proc")
_STATE_FIELD, _START_FIELD = 0, 19
"""Positions in ``/proc/<pid>/stat`` after the command's name; see proc(5), fields 3, 22."""

_DEAD_STATES: Final = frozenset({"Z", "X", "x"})


class Process(Struct, frozen=True, kw_only=True):
    """One process, also after its pid was given to another one.

    ``space``: boot and pid namespace, within which a pid means something. ``started`` in
    the kernel's ticks since boot. Empty and 0 where the kernel doesn't tell.
    """

    space: str = ""
    pid: int = 0
    started: int = 0


def this_process() -> Process:
    """The process we are."""
    pid = os.getpid()
    return Process(space=_space(), pid=pid, started=_stat(pid).started)


def provably_gone(process: Process) -> bool:
    """Whether a process ran where we can look and no longer runs. False: we can't tell."""
    if not process.space or not process.started or process.space != _space():
        return False
    found = _stat(process.pid)
    return found.started != process.started or found.state in _DEAD_STATES


def new_holder_name() -> str:
    """A name that no other start of a controller has: the host's, and something made."""
    host = socket.gethostname().partition(".")[0] or "controller"
    return f"{host}-{secrets.token_hex(4)}"


class _Stat(Struct, frozen=True):
    state: str = ""
    started: int = 0


def _stat(pid: int) -> _Stat:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return _Stat()
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[_STATE_FIELD], int(fields[_START_FIELD]))


def _space() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return f"{boot}/{namespace}"
