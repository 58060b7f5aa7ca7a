"""The real console script, run as a user would, in a folder of its own.

What lives here: ``Console``, which runs ``slotbus`` to its end or in the background. What
may not: knowledge of what commands print.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import psutil

RUN_TIMEOUT_S = 40.0
WAIT_S = 30.0
POLL_S = 0.02


class Finished(msgspec.Struct, frozen=True):
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, object]:
        return msgspec.json.decode(self.out, type=dict[str, object])


class Running:
    """A command in the background; ``out`` is what it has printed so far, both streams."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def out(self) -> str:
        return self._output.read_text(errors="replace")

    def until(self, text: str, within: float = WAIT_S) -> None:
        """Waits until it has printed ``text``. Raises AssertionError."""
        deadline = time.monotonic() + within
        while text not in self.out:
            ended = self.process.poll()
            assert ended is None or text in self.out, f"ended with {ended}: {self.out}"
            assert time.monotonic() < deadline, f"no {text!r} within {within:g} s: {self.out}"
            time.sleep(POLL_S)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


class Console:
    """``folder`` holds the home and state of this user; commands run in an empty one.
    ``program``: another one than slotbus, for the same user."""

    def __init__(self, folder: Path, program: Path | None = None) -> None:
        self.folder = folder
        self._program = program or Path(sys.executable).parent / "slotbus"
        self.cwd = folder / "cwd"
        runtime = folder / "run"
        for path in (self.cwd, runtime):
            path.mkdir(parents=True, exist_ok=True)
        not_ours = ("SLOTBUS_", "NATS_", "NO_COLOR", "FORCE_COLOR")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(not_ours)}
        self.environ = {
            **kept,
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(runtime),
        }
        self._count = 0

    def command(self, *arguments: str) -> list[str]:
        script = self._program
        assert script.is_file(), f"{script} is missing: install the package into this environment"
        return [str(script), *arguments]

    def run(self, *arguments: str, stdin: str = "", **environ: str) -> Finished:
        """Runs a command to its end."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.cwd,
            env={**self.environ, **environ},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def running(self, *arguments: str, **environ: str) -> Generator[Running]:
        """A command in the background, ended with the block."""
        self._count += 1
        output = self.folder / f"{self._program.name}-{self._count}.out"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                self.command(*arguments),
                cwd=self.cwd,
                env={**self.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:
            yield Running(process, output)
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(WAIT_S)
            process.kill()
            process.wait()

    def left_over(self, within: float = 10) -> list[str]:
        """Command lines of processes that still run with this user's state, after some
        patience; none is as it should be."""
        deadline = time.monotonic() + within
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left

    def _processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == str(self.folder):
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found
