"""Where a program is looked for, and the cache that a build fills.

What lives here: ``Recipe``, the order of places (a variable of the environment, PATH, the
cache), and the lock by which one process builds while the others wait for it. What may not:
how it is built (``building``), and anything outside the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from tests.support.binaries.building import (
    COMPILE_TIMEOUT_S,
    FETCH_TIMEOUT_S,
    SAY_EVERY_S,
    BuildFailed,
    Order,
    Unavailable,
    build,
    say,
)

SINCE: Final = "GO_BINARIES_SINCE"
"""Seconds of the epoch: refusals of the network since then are not tried again."""


@dataclass(frozen=True)
class Target:
    """A program: the Go package it is made from, the variable that may name it, and the
    oldest version that serves, which it tells when it gets ``asked``."""

    name: str
    package: str
    variable: str
    oldest: tuple[int, int]
    asked: tuple[str, ...] = ("--version",)


@dataclass(frozen=True)
class Recipe:
    """What is built together. ``title`` stands before what is said of it, ``kept_as`` names
    its folder in the cache."""

    title: str
    kept_as: str
    go_mod: str
    ldflags: tuple[str, ...]
    targets: tuple[Target, ...]

    def cache(self) -> Path:
        """The folder of programs made by this recipe, on this kind of machine."""
        recipe = hashlib.sha256((self.go_mod + " ".join(self.ldflags)).encode()).hexdigest()[:8]
        system = os.uname()
        kind = f"{system.sysname}-{system.machine}".lower()
        return cache_root() / f"{self.kept_as}-{kind}-{recipe}"


def cache_root() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "slotbus"


def ensure(recipe: Recipe, out: TextIO | None = None) -> dict[str, Path]:
    """The programs by their names, built first where they are missing; ``out`` gets the
    progress.

    Raises Unavailable where the machine can't, BuildFailed for everything else.
    """
    out = sys.stderr if out is None else out
    found: dict[str, Path] = {}
    missing: list[Target] = []
    for target in recipe.targets:
        path = _named(target) or _on_path(target, recipe, out) or _kept(target, recipe)
        if path is None:
            missing.append(target)
        else:
            found[target.name] = path
    if missing:
        found |= _build_once(missing, recipe, out)
    return found


def _named(target: Target) -> Path | None:
    if not (given := os.environ.get(target.variable)):
        return None
    if not os.access(given, os.X_OK):
        raise BuildFailed(f"{target.variable} names {given}, which can't be run")
    return Path(given)


def _on_path(target: Target, recipe: Recipe, out: TextIO) -> Path | None:
    if (path := shutil.which(target.name)) is None:
        return None
    version = _version_of([path, *target.asked])
    if version is None or version < target.oldest:
        shown = "tells no version" if version is None else f"is {version[0]}.{version[1]}"
        least = f"{target.oldest[0]}.{target.oldest[1]}"
        say(out, recipe.title, f"{path} {shown}, {least} is needed: passed over")
        return None
    return Path(path)


def _version_of(command: list[str]) -> tuple[int, int] | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(\d+)\.(\d+)\.\d+", done.stdout + done.stderr)
    return None if match is None else (int(match[1]), int(match[2]))


def _kept(target: Target, recipe: Recipe) -> Path | None:
    path = recipe.cache() / target.name
    return path if os.access(path, os.X_OK) else None


def _build_once(missing: list[Target], recipe: Recipe, out: TextIO) -> dict[str, Path]:
    """Builds, or waits for the process that does and takes what it made."""
    folder = recipe.cache()
    folder.mkdir(parents=True, exist_ok=True)
    refused = folder / "refused"
    asked_at = float(os.environ.get(SINCE) or time.time())
    with _locked(folder, recipe.title, out):
        still = [target for target in missing if _kept(target, recipe) is None]
        with contextlib.suppress(FileNotFoundError):
            # Somebody has just tried what we would try.
            if still and refused.stat().st_mtime >= asked_at:
                raise Unavailable(refused.read_text())
        if still:
            packages = {target.name: target.package for target in still}
            go_home = cache_root()
            order = Order(recipe.title, recipe.go_mod, recipe.ldflags, packages, folder, go_home)
            try:
                build(order, out)
            except Unavailable as error:
                refused.write_text(str(error))
                raise
    return {target.name: folder / target.name for target in missing}


@contextlib.contextmanager
def _locked(folder: Path, title: str, out: TextIO) -> Generator[None]:
    deadline = time.monotonic() + FETCH_TIMEOUT_S + COMPILE_TIMEOUT_S
    said_at = time.monotonic()
    progress = folder / "progress"
    with (folder / "lock").open("a+") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if now > deadline:
                    raise BuildFailed(f"another build holds {folder} for too long") from None
                if now - said_at >= SAY_EVERY_S:
                    said_at = now
                    said = progress.read_text() if progress.exists() else "nothing yet"
                    say(out, title, f"waiting for another build, which says: {said}")
                time.sleep(0.2)
        yield
