"""A terminal for commands that look different on one.

What lives here: a pseudo-terminal, and what a command has drawn on it. What may not: knowledge
of what commands draw.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Generator, Mapping, Sequence

WAIT_S = 30.0
POLL_S = 0.02
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(text: str) -> str:
    """Without colours and moves of the cursor."""
    return _ESCAPES.sub("", text)


class Terminal:
    """A command that runs on one; ``drawn`` is all that it has written, escapes too."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self._screen = screen
        self._drawn = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has the other side open any more
            while piece := os.read(self._screen, 65_536):
                self._drawn += piece

    @property
    def drawn(self) -> str:
        return bytes(self._drawn).decode(errors="replace").replace("\r\n", "\n")

    def until(self, text: str, within: float = WAIT_S) -> None:
        """Waits until it has drawn ``text``, whatever the colours. Raises AssertionError."""
        deadline = time.monotonic() + within
        while text not in plain(self.drawn):
            ended = self.process.poll()
            assert ended is None or text in plain(self.drawn), f"{ended}: {self.drawn!r}"
            assert time.monotonic() < deadline, f"no {text!r}: {self.drawn!r}"
            time.sleep(POLL_S)

    def type(self, keys: str) -> None:
        """As a person does."""
        os.write(self._screen, keys.encode())

    def press_ctrl_c(self) -> int:
        """As a person does; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once all is drawn."""
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code


@contextlib.contextmanager
def on_terminal(
    command: Sequence[str], environ: Mapping[str, str], *, columns: int = 120
) -> Generator[Terminal]:
    """Runs a command on a terminal of its own; it is ended with the block."""
    screen, its_side = os.openpty()
    try:
        fcntl.ioctl(its_side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = subprocess.Popen(
            command, env=environ, stdin=its_side, stdout=its_side, stderr=its_side,
            start_new_session=True,
        )  # fmt: skip
        os.close(its_side)
        terminal = Terminal(process, screen)
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()
            terminal.wait()
    finally:
        os.close(screen)
