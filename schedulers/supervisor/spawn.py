"""Making a worker's process: its environment, its files, and the call itself.

What lives here: everything between a ``WorkerSpec`` and a pid, and how the end of that
process is taken. What may not: bookkeeping (``core``).
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from schedulers.supervisor.api import WorkerSpec
from schedulers.supervisor.endings import Exit
from schedulers.variables import PROGRAM, PROGRAM_PATH, fits_inline, variables_of

PASSED_ON: Final = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LOGNAME",
        "PATH",
        "PYTHONUNBUFFERED",
        "SHELL",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
)
"""All that a worker sees of the supervisor's own environment, with ``LC_*``."""

PROGRAM_FILE: Final = "program.json"


def passed_on(own: Mapping[str, str]) -> dict[str, str]:
    """What workers see of the supervisor's own environment."""
    return {k: v for k, v in own.items() if k in PASSED_ON or k.startswith("LC_")}


def worker_environment(
    spec: WorkerSpec, inherited: Mapping[str, str], supervisor_id: str, folder: Path
) -> dict[str, str]:
    """The whole environment of a worker; a large program is written to its folder.

    Raises OSError, and UnicodeDecodeError for a program that is not UTF-8.
    """
    # Not for the worker: tells its processes from those of another state directory.
    own = {"SLOTBUS_SUPERVISOR": supervisor_id}
    environment = {**inherited, **variables_of(spec), **own}
    program = bytes(spec.program)
    if fits_inline(spec.program):
        environment[PROGRAM] = program.decode()
    else:
        path = folder / PROGRAM_FILE
        path.write_bytes(program)
        environment[PROGRAM_PATH] = str(path)
    return environment


def spawn(
    command: list[str], environment: Mapping[str, str], workdir: Path, output: int
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, printing to ``output``.

    Raises OSError (no such program, not allowed, no room) and ValueError (a NUL, no words).
    """
    if not command:
        raise ValueError("the command is empty")
    return subprocess.Popen(
        command,
        env=environment,
        cwd=workdir,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        close_fds=True,
    )


def why_not(error: OSError | ValueError, command: list[str]) -> str:
    """The sentence for a person who wonders why a worker was not started."""
    if not isinstance(error, OSError) or error.errno is None:
        return f"can't start {command[:1]}: {error}"
    name = error.filename or (command[0] if command else "")
    return f"can't start {os.fspath(name)!r}: {os.strerror(error.errno)}"


def take_exit(child: subprocess.Popen[bytes]) -> Exit | None:
    """Reaps a child that has ended; None if it has not. Unknown if another part of this
    program has reaped it."""
    if child.returncode is not None:
        return Exit()
    try:
        result = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        child.returncode = 0  # so that Popen does not wait for it either
        return Exit()
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        child.returncode = result.si_status
        return Exit(code=result.si_status)
    child.returncode = -result.si_status
    return Exit(signal=result.si_status)


def signal_group(leader: int, *numbers: signal.Signals) -> None:
    """Signals a process group whose leader is known to exist (alive, or not reaped)."""
    for number in numbers:
        try:
            os.killpg(leader, number)
        except (ProcessLookupError, PermissionError):
            return


def terminate_group(leader: int) -> None:
    """Asks a group to end; CONT wakes those that somebody had stopped, so that they hear."""
    signal_group(leader, signal.SIGTERM, signal.SIGCONT)
