"""The documentation says what is so: its files, links, settings and examples."""

from __future__ import annotations

import re
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
    assert set(shown) == {"examples/hello.py", "examples/library.py"}
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
    text = (ROOT / "docs" / "operating.md").read_text()
    for config in (ControllerConfig, AgentConfig):
        for field in msgspec.structs.fields(config):
            assert f"`{field.name}`" in text, f"{config.__name__}.{field.name}"


def test_gauges_that_are_named_are_those_that_exist() -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
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
