"""The wheel as a user gets it: built, installed by hash outside the checkout, and called.

A script and not a test module: it needs the package index and a second environment, so `make
test` runs it after pytest. It prints what it does and ends with a nonzero code at the first
thing that isn't as promised.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
STEP_TIMEOUT_S = 600
"""Enough for a download of every dependency on a slow line."""

PACKAGES = ("events", "schedulers", "controller", "slotbus_pytest")
EXAMPLE = CHECKOUT / "examples" / "replay_project"
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""What a user's own tests need besides."""


class SmokeFailure(Exception):
    """Something about the wheel isn't as promised."""


def say(text: str) -> None:
    sys.stdout.write(f"wheel: {text}\n")
    sys.stdout.flush()


def expect(holds: bool, promise: str) -> None:
    """Raises SmokeFailure naming the `promise` that doesn't hold."""
    if not holds:
        raise SmokeFailure(promise)


def environment(**more: str) -> dict[str, str]:
    """Ours without what would let the checkout leak into the fresh environment."""
    leaks = ("PYTHON", "SLOTBUS_", "VIRTUAL_ENV")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(leaks)}
    return kept | more


def call(
    command: list[str], cwd: Path, code: int = 0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `command` in `cwd`; raises SmokeFailure with its output if it doesn't end in `code`."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env if env is not None else environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT_S,
        check=False,
    )
    if done.returncode != code:
        shown = " ".join(command)
        raise SmokeFailure(
            f"'{shown}' ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}"
        )
    return done


def build(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    call([*pip, "wheel", *options, str(CHECKOUT)], cwd=folder)
    (wheel,) = folder.glob("slotbus-*.whl")
    return wheel


def look_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    top = {name.split("/")[0] for name in sizes if ".dist-info/" not in name}
    expect(top == set(PACKAGES), f"the wheel holds {sorted(PACKAGES)}, not {sorted(top)}")
    for package in PACKAGES:
        expect(f"{package}/py.typed" in sizes, f"{package} is typed")
    expect(sizes.get("events/__init__.py") == 0, "events/__init__.py is there and empty")
    expect(any(name.endswith("/licenses/LICENSE") for name in sizes), "the licence is there")


def install(wheel: Path, folder: Path) -> Path:
    """A fresh environment in `folder` with the wheel in it; returns its folder of programs."""
    call([sys.executable, "-m", "venv", str(folder)], cwd=folder.parent)
    programs = folder / "bin"
    pip = [str(programs / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    lock = CHECKOUT / "requirements" / "run.txt"
    call([*pip, "install", "--require-hashes", "--requirement", str(lock)], cwd=folder.parent)
    call([*pip, "install", "--no-deps", str(wheel)], cwd=folder.parent)
    call([*pip, "check"], cwd=folder.parent)
    return programs


def use(programs: Path, empty: Path) -> None:
    """What a user types first, in a folder of their own."""
    slotbus = str(programs / "slotbus")
    version = call([slotbus, "--version"], cwd=empty).stdout
    expect(version == "slotbus 0.1.0\n", f"--version says slotbus 0.1.0, not {version!r}")
    expect("Usage" in call([slotbus, "--help"], cwd=empty).stdout, "--help shows the usage")

    say("running its demo")
    call([slotbus, "demo"], cwd=empty)

    names = "import events.ids, schedulers, controller.entry"
    call([str(programs / "python"), "-W", "error", "-c", names], cwd=empty)

    (empty / "events.py").touch()
    refusal = call([slotbus, "--help"], cwd=empty, code=2, env=environment(PYTHONPATH=str(empty)))
    expect(refusal.stderr.count("\n") == 1, "a foreign 'events' is refused in one sentence")
    (empty / "events.py").unlink()


def test_as_a_user(programs: Path, folder: Path) -> None:
    """The example project's own tests, with nothing of ours but the wheel."""
    lock = (CHECKOUT / "requirements" / "dev.txt").read_text().replace("\\\n", " ").splitlines()
    wanted = folder / "pytest.txt"
    wanted.write_text("\n".join(line for line in lock if line.split("==")[0] in PYTEST))
    pip = [str(programs / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    call([*pip, "install", "--require-hashes", "--requirement", str(wanted)], cwd=folder)
    project = folder / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    tests = call([str(programs / "python"), "-m", "pytest", "-q", "-W", "error"], cwd=project)
    expect("7 passed" in tests.stdout, f"the example's tests pass, not:\n{tests.stdout}")

    say("and once more, with a package of their own that is named events")
    (project / "events").mkdir()
    (project / "events" / "__init__.py").write_text("OURS = False\n")
    tests = call([str(programs / "pytest"), "-q", "-W", "error"], cwd=project)
    expect("7 passed" in tests.stdout, f"they pass beside it, not:\n{tests.stdout}")
    hidden = call([str(programs / "python"), "-m", "pytest", "-q"], cwd=project, code=2)
    told = "`pytest`, not `python -m pytest`" in hidden.stdout
    expect(told, f"where it hides ours that is said, not:\n{hidden.stdout}")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="slotbus-wheel-") as name:
        folder = Path(name)
        empty = folder / "empty"
        empty.mkdir()
        try:
            say("building")
            wheel = build(folder)
            look_inside(wheel)
            say(f"installing {wheel.name} in a fresh environment")
            programs = install(wheel, folder / "venv")
            say("calling it")
            use(programs, empty)
            say("running a user's tests with it")
            test_as_a_user(programs, folder)
        except SmokeFailure as failure:
            say(f"failed: {failure}")
            return 1
    say("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
