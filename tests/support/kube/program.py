"""One server program of the rig: started, ended, killed, with its log at hand.

What lives here: processes that die with us. What may not: what the programs are.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LOCALHOST: Final = "127.0.0.1"
STOP_TIMEOUT_S: Final = 20.0
LOG_TAIL_BYTES: Final = 4_000

# Asks the kernel for a SIGKILL when we die, which survives exec; without `preexec_fn`.
_TRAMPOLINE: Final = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ProgramFailed(Exception):
    """A server of the rig did not start or stop as it should; the message has its log's end."""


class Program:
    """``command`` as a child in a session of its own; ``log`` gets both its streams."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self, command: Sequence[str]) -> None:
        if self.running:
            raise ProgramFailed(f"{self.name} runs already")
        whole = list(command)
        if sys.platform == "linux":
            whole = [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *whole]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                whole, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def check(self) -> None:
        """Raises ProgramFailed if it has ended."""
        if not self.running:
            code = None if self._process is None else self._process.returncode
            raise ProgramFailed(f"{self.name} has ended with {code}; {self.tail()}")

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM and patience; SIGKILL and ProgramFailed when that is over."""
        process = self._process
        if process is None:
            return
        process.terminate()
        deadline = time.monotonic() + timeout_s
        while process.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise ProgramFailed(f"{self.name} did not stop in {timeout_s:g} s; {self.tail()}")
            await asyncio.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered, until ``thaw``."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def tail(self) -> str:
        if not self.log.exists():
            return "it has no log"
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            return f"the end of its log:\n{log.read().decode(errors='replace')}"


def free_port() -> int:
    """A port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        port: int = probe.getsockname()[1]
        return port


def new_signing_key() -> str:
    """A fresh P-256 key as PEM (SEC 1), which readers complete with its public half."""
    oid = bytes.fromhex("06082a8648ce3d030107")
    number = b"\x02\x01\x01"
    # Below the group's order, whose first four bytes are ff.
    private = b"\x04\x20\x7f" + secrets.token_bytes(31)
    body = number + private + b"\xa0" + bytes([len(oid)]) + oid
    text = b64encode(b"\x30" + bytes([len(body)]) + body).decode()
    lines = "\n".join(text[i : i + 64] for i in range(0, len(text), 64))
    # Assembled, so that nobody takes this file for one that holds a key.
    kind = "EC PRIVATE" + " KEY"
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n"
