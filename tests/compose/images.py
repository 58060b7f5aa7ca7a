"""The images the deployment runs on, made where they are missing.

What lives here: whether an engine answers, which base to build on, the wheels for it, the
stand-in for the official NATS image. What may not: starting containers of the deployment.

On a machine without an image registry `.ci/docker-engine` has made ``LOCAL_BASE``; then the
image is built on that, from wheels that were fetched outside the build. Elsewhere it is built
on the Dockerfile's own default, as users build it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from controller.embedded import find_binary

CHECKOUT: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final = CHECKOUT / "compose"
LOCAL_BASE: Final = "slotbus-python:local"
LOCAL_NATS: Final = "slotbus-nats:local"
STEP_TIMEOUT_S: Final = 300.0
ANSWER_TIMEOUT_S: Final = 10.0


class Bases(Struct, frozen=True):
    """What the compose file is told to build and run on; "" is its own default."""

    python: str
    nats: str


def run(command: Sequence[str | Path], timeout_s: float = STEP_TIMEOUT_S) -> str:
    """What a command prints. Fails the test with what it said if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=CHECKOUT
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr[-3000:]}"
    return done.stdout


def why_no_engine() -> str:
    """Why no deployment can be started here; "" if it can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    for words in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            run(words, ANSWER_TIMEOUT_S)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return str(error).partition("\n")[0][:300]
    return ""


def make_bases() -> Bases:
    """The bases for this machine, with all that a build on them needs."""
    _make_nats()
    content = _content_of(LOCAL_BASE)
    if content:
        _fill_wheels(content)
    return Bases(python=LOCAL_BASE if content else "", nats=LOCAL_NATS)


def _content_of(image: str) -> str:
    """What an image holds, as digests that the same files always have; "": there is none."""
    template = "{{.Architecture}} {{.RootFS.Layers}}"
    words = ["docker", "image", "inspect", "--format", template, image]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _make_nats() -> None:
    """The binary that all other tests use, as an image that is called like the official one."""
    with tempfile.TemporaryDirectory(prefix="slotbus-nats-") as name:
        context = Path(name)
        shutil.copy2(find_binary(), context / "nats-server")
        dockerfile = COMPOSE / "nats.Dockerfile"
        run(["docker", "build", "--quiet", "--tag", LOCAL_NATS, "--file", dockerfile, context])


def _fill_wheels(base: str) -> None:
    """``compose/wheels`` for this base and this lock; kept for the next fresh checkout."""
    digest = hashlib.sha256(base.encode())
    for lock in ("run.txt", "build.txt"):
        digest.update((CHECKOUT / "requirements" / lock).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slotbus"
    kept, wheels = cache / f"wheels-{digest.hexdigest()[:16]}", COMPOSE / "wheels"
    if not kept.exists():
        run([COMPOSE / "make-wheels", LOCAL_BASE])
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=cache))
        for file in wheels.glob("[!.]*"):
            shutil.copy2(file, fresh)
        fresh.rename(kept)
        return
    for file in wheels.glob("[!.]*"):
        file.unlink()
    for file in kept.iterdir():
        shutil.copy2(file, wheels)
