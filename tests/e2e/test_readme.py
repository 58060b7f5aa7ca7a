"""The documentation says what is so: its files, links, settings and examples."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from controller.config import ControllerConfig
from controller.demo import accounts
from schedulers.node.config import AgentConfig

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"<!-- file: (?P<path>\S+) -->\n```python\n(?P<text>.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#]+)")
TIMEOUT_S = 40


def test_code_shown_in_the_readme_is_the_code_in_the_file() -> None:
    shown = {found["path"]: found["text"] for found in SHOWN.finditer(README.read_text())}
    assert set(shown) == {"examples/hello.py", "examples/client.py", "examples/library.py"}
    for path, text in shown.items():
        assert text == (ROOT / path).read_text(), path


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for found in LINK.finditer(document.read_text()):
        assert (document.parent / found["path"]).exists(), found["path"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_that_are_named_exist(document: Path) -> None:
    named = set(
        re.findall(r"`((?:events|schedulers|controller|tests)/[\w/.]*)", document.read_text())
    )
    for path in named:
        assert (ROOT / path).exists(), path


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    for config in (ControllerConfig, AgentConfig):
        for field in msgspec.structs.fields(config):
            assert f"`{field.name}`" in text, f"{config.__name__}.{field.name}"


def test_gauges_that_are_named_are_those_that_exist() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    for name in (accounts.FREE, accounts.REGISTERED, accounts.NODES, accounts.PER_NODE):
        assert f"`{name}" in text


def test_the_library_example_does_what_it_shows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "library.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    started, refused, stopped = done.stdout.splitlines()[-3:]
    assert re.fullmatch(r"workers: \['w-[\w-]+'\]", started)
    assert refused == "no room for job_2: 4 more slots are needed"
    assert stopped == "workers: []"


def session() -> tuple[str, list[str]]:
    """The README's first session: what runs in one terminal, and what is typed in another."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    background, typed = (block.strip() for block in blocks)
    return background, typed.splitlines()


def user(folder: Path) -> dict[str, str]:
    """The environment of a user with an empty home, whose PATH has slotbus first."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLOTBUS_", "NATS_", "XDG_"))}
    programs = Path(sys.executable).parent
    return {**kept, "HOME": str(folder), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.timeout(120)
def test_the_first_session_works_as_written(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text((ROOT / "examples" / "hello.py").read_text())
    background, typed = session()
    environment = user(tmp_path)
    up = subprocess.Popen(
        ["sh", "-c", f"exec {background}"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said: dict[str, str] = {}
    try:
        heard = wait_for_line(up, "Ctrl-C")
        for command in typed:
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            said[command.split()[1]] = done.stdout
        server = re.search(r"nats://[\d.:]+", heard)
        assert server is not None
        said["client"] = run_client(tmp_path, environment | {"NATS_URL": server[0]})
    finally:
        up.send_signal(signal.SIGINT)
        rest, _ = up.communicate(timeout=TIMEOUT_S)
    assert up.returncode == 0, rest
    assert "running" in said["workers"]
    assert "6 slots, program {}" in said["logs"]
    assert "run_ended" in said["events"]
    assert said["client"].startswith("run 1 has 1 workers\nn")
    assert re.search(r"stop c-\w+ \d facts", said["client"])


def run_client(folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "client.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    """Reads the output until a line has `text`, and returns it all; the test's own time-out is
    the deadline."""
    assert process.stdout is not None
    heard = ""
    for line in process.stdout:
        heard += line
        if text in line:
            return heard
    raise AssertionError(f"{text!r} was never said:\n{heard}")
