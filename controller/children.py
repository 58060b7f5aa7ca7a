"""Programs of ours that run as children of this one and end with it.

What lives here: starting ``slotbus`` again with other arguments, and ending it. What may
not: what the children do.

A child has a session of its own, so that a terminal's Ctrl-C reaches us first, and asks
the kernel for a TERM when we die, so that none is left behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

POLL_S: Final = 0.05
TAIL_BYTES: Final = 2_000

# A parent-death signal survives exec, and asking for it here spares us `preexec_fn`. Our
# pid is compared so that a death between fork and prctl is noticed too.
_WITH_PARENT: Final = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[1]))
if os.getppid() != int(sys.argv[2]):
    sys.exit("the parent is gone")
os.execv(sys.argv[3], sys.argv[3:])
"""


class Child:
    """One child; its output goes to ``output``. Start it on the main thread: the
    parent-death signal follows the thread."""

    def __init__(self, name: str, arguments: Sequence[str], output: Path) -> None:
        self.name = name
        self.output = output
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """While it was started and not ended by us."""
        return None if self._process is None else self._process.pid

    def start(self, environ: Mapping[str, str]) -> None:
        """Raises OSError."""
        command = [sys.executable, "-P", "-m", "controller.entry", *self._arguments]
        if sys.platform == "linux":
            death = (str(int(signal.SIGTERM)), str(os.getpid()))
            command = [sys.executable, "-I", "-S", "-c", _WITH_PARENT, *death, *command]
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environ),
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Once it has ended; negative: by that signal."""
        return None if self._process is None else self._process.poll()

    def tail(self) -> str:
        """The end of what it printed."""
        try:
            return self.output.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    async def ended(self) -> int:
        """Returns its exit code when it has ended."""
        while True:
            code = self.exit_code()
            if code is not None:
                return code
            await asyncio.sleep(POLL_S)

    async def stop(self, timeout_s: float) -> bool:
        """TERM, and KILL after ``timeout_s`` seconds. Returns whether TERM was enough."""
        process = self._process
        if process is None or process.poll() is not None:
            return True
        process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await self.ended()
        except TimeoutError:
            process.kill()
            await self.ended()
            return False
        return True
