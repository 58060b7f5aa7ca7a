"""The other Pythons of this machine, each with what a replay needs.

What lives here: where interpreters are looked for, and the few packages of the lock that are put
beside them, kept from run to run. What may not: what they are asked to do.

``python -m tests.support.pythons`` says which there are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.support.binaries.building import Unavailable
from tests.support.binaries.finding import cache_root

CHECKOUT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = CHECKOUT / "requirements" / "run.txt"
NEEDED: Final = ("msgspec", "sortedcontainers", "typing-extensions", "zstandard")
OLDEST: Final = (3, 11)
INSTALL_S: Final = 240.0
ASK_S: Final = 20.0
_TELL: Final = "import sys; print(*sys.version_info[:2], sys.implementation.name)"


class Python(Struct, frozen=True):
    """An interpreter, and where its packages are; "" for the one that runs the tests."""

    version: tuple[int, int]
    program: str
    packages: str = ""

    @property
    def name(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    def environ(self) -> dict[str, str]:
        """For a process that imports slotbus from this checkout."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = os.pathsep.join(part for part in (str(CHECKOUT), self.packages) if part)
        return {**kept, "PYTHONPATH": path, "PYTHONNOUSERSITE": "1"}


def found() -> list[Python]:
    """One of each version that slotbus runs on, but our own."""
    seen = {sys.version_info[:2]}
    others: list[Python] = []
    for program in _candidates():
        version = _version(program)
        if version is not None and version >= OLDEST and version not in seen:
            seen.add(version)
            others.append(Python(version, program))
    return sorted(others, key=lambda python: python.version)


def _candidates() -> Iterator[str]:
    names = [f"python3.{minor}" for minor in range(11, 20)]
    yield from filter(None, map(shutil.which, names))
    for folder in (Path("/usr/local/bin"), Path("/usr/bin")):
        yield from (str(folder / name) for name in names if (folder / name).exists())
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from (str(path) for path in sorted(root.glob("versions/3.*/bin/python"), reverse=True))


def _version(program: str) -> tuple[int, int] | None:
    """None where it can't run: a shim of a version that is not chosen, say."""
    try:
        done = subprocess.run(
            [program, "-I", "-c", _TELL],
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
        )
        major, minor, implementation = done.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return (int(major), int(minor)) if implementation == "cpython" else None


def ensure() -> list[Python]:
    """The other Pythons, ready to run a replay. Raises Unavailable where there is none."""
    others = found()
    if not others:
        raise Unavailable(f"only Python {sys.version_info[0]}.{sys.version_info[1]} was found")
    return [Python(one.version, one.program, str(_packages(one))) for one in others]


def _packages(python: Python) -> Path:
    """Wheels of the lock for another version, by hash; installed by our own pip."""
    lines = LOCK.read_text().replace("\\\n", " ").splitlines()
    wanted = "\n".join(line for line in lines if line.split("==")[0].strip() in NEEDED)
    key = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    folder = cache_root() / f"python{python.name}-{key}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        listed = Path(name) / "wanted.txt"
        listed.write_text(wanted + "\n")
        made = Path(name) / "packages"
        _install(python, listed, made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was quicker
                raise
    return folder


def _install(python: Python, listed: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--require-hashes", "--no-deps", "--only-binary=:all:", "--target", str(folder)]
    options += ["--python-version", python.name, "--requirement", str(listed)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        raise Unavailable(f"packages for Python {python.name}: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    told = ", ".join([own, *(python.name for python in found())])
    sys.stdout.write(f"replays are compared on Python {told}\n")
