"""The reference is what the code says today, all of it, and nothing of this machine."""

from __future__ import annotations

import inspect
import re
import socket
from pathlib import Path
from typing import get_args

import pytest
from msgspec import Struct

from controller.cli.main import app
from controller.reference.__main__ import PAGES, main, rendered
from controller.reference.catalogue import MESSAGES, exchanges
from controller.reference.markdown import anchor
from events.asking import ROUTES
from events.errors import CODES
from events.facts import AnyFact
from events.messages import Message
from events.subjects import Subjects

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_fresh(page: str) -> None:
    assert (FOLDER / page).read_text() == rendered(page), "stale: run `make docs`"


def test_there_are_no_other_pages(tmp_path: Path) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)
    main(tmp_path / "made")
    assert {path.name for path in (tmp_path / "made").iterdir()} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_nothing_of_this_machine(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = rendered(page)
    for text in (str(ROOT), str(Path.home()), f"{socket.gethostname()}:"):
        assert text not in told
    monkeypatch.setenv("COLUMNS", "41")
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("SLOTBUS_CFG_ROOT", "elsewhere")
    assert rendered(page) == told


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target, heading in re.findall(r"\]\(([a-z]*(?:\.md)?)#([^)]*)\)", rendered(page)):
        headings = re.findall(r"^#+ (.*)$", rendered(target or page), re.MULTILINE)
        assert heading in {anchor(one) for one in headings}


def test_every_route_code_command_and_fact_is_described() -> None:
    subjects, errors, cli = rendered("subjects.md"), rendered("errors.md"), rendered("cli.md")
    for route in ROUTES.values():
        assert f"`{route.subject(Subjects())}`" in subjects
    for code in CODES:
        assert f"| `{code}` |" in errors
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"### slotbus {command.name or command.callback.__name__}\n" in cli
    for fact in get_args(AnyFact):
        assert f"## {fact.__struct_config__.tag}\n" in rendered("events.md")


def test_every_message_that_exists_is_in_the_catalogue() -> None:
    """A struct of ``events.messages`` goes over a subject or is part of one that does."""
    from controller.reference.markdown import nested  # as the page itself sees parts

    known: set[type[Struct]] = set(MESSAGES)
    waiting = list(known)
    while waiting:
        for part in nested(waiting.pop()):
            if part not in known:
                known.add(part)
                waiting.append(part)
    assert set(_below(Message)) <= known


def test_every_message_and_fact_says_what_it_is() -> None:
    kinds = [*_below(Message), *get_args(AnyFact)]
    assert [kind.__name__ for kind in kinds if not vars(kind).get("__doc__")] == []


def test_no_two_exchanges_share_a_subject() -> None:
    subjects = [exchange.subject for exchange in exchanges()]
    assert len(set(subjects)) == len(subjects)


def _below(kind: type[Struct]) -> list[type[Struct]]:
    """The concrete structs of the project that come from this one."""
    found = [sub for sub in kind.__subclasses__() if sub.__module__.startswith("events.")]
    return [one for sub in found for one in (sub, *_below(sub)) if not inspect.isabstract(one)]
