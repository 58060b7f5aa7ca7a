"""The pytest plugin: a slotbus cluster in virtual time as a fixture.

What lives here: fixtures, options, and how a coroutine test finds its loop. What may not:
imports of anything but pytest at the top: pytest loads this in every run, also where nobody
uses it, and a project's own folder ``events`` must not be mistaken for ours.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slotbus_pytest.cluster import Cluster
    from slotbus_pytest.golden import Golden

__all__ = ["Cluster", "Golden"]

_KEY = pytest.StashKey["Cluster"]()


def __getattr__(name: str) -> object:
    if name == "Cluster":
        from slotbus_pytest.cluster import Cluster

        return Cluster
    if name == "Golden":
        from slotbus_pytest.golden import Golden

        return Golden
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("slotbus").addoption(
        "--slotbus-update-golden",
        action="store_true",
        help="write the golden files of slotbus tests instead of comparing with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "slotbus(nodes=3, slots=4, **rules): what the test's `cluster` is made of; rules such as "
        "expiry_s=30 as in schedulers.decide.Rules",
    )
    if config.getoption("importmode") == "importlib":
        # A test folder `events` with an __init__.py would be taken for the package of that
        # name from its first test on. Ours is empty, and known by then.
        importlib.import_module("events")


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The real engine with scripted nodes in virtual time. At the end of the test the auditor
    checks the six laws, and that what was recorded leads to the same log."""
    _refuse_foreign_events()
    from slotbus_pytest.cluster import Cluster

    marker = request.node.get_closest_marker("slotbus")
    made = Cluster(**({} if marker is None else marker.kwargs))
    request.node.stash[_KEY] = made
    try:
        made.open()
        yield made
        made.check()
    finally:
        made.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares with files in ``golden/`` beside the test."""
    from slotbus_pytest.golden import Golden

    update = bool(request.config.getoption("--slotbus-update-golden"))
    return Golden(Path(request.path).parent / "golden", update=update)


def _refuse_foreign_events() -> None:
    """A test folder named ``events`` with an ``__init__.py`` can hide our package."""
    hidden = _hidden()
    if hidden:
        raise pytest.UsageError(hidden)


def _hidden() -> str:
    """What to do where ``events`` is not our package; "" where it is, or nobody asked."""
    ours = Path(__file__).resolve().parent.parent / "events"
    loaded = sys.modules.get("events")
    origin = getattr(loaded, "__file__", None)
    if loaded is None or (origin is not None and Path(origin).resolve().parent == ours):
        return ""
    return (
        f"the import name 'events' leads to {origin}, which is not slotbus's own package: "
        "run pytest with --import-mode=importlib, or rename that folder (for one in the current "
        "folder: run `pytest`, not `python -m pytest`, which looks there first)"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Modules that import ours and could not be collected, since another one hides it."""
    reports = terminalreporter.getreports("error")
    if _hidden() and any("'events." in str(report.longrepr) for report in reports):
        terminalreporter.write_line(_hidden(), yellow=True)


# --- coroutine tests ------------------------------------------------------------------------


def _uses_cluster(item: object) -> bool:
    """Whether a coroutine test asks for our fixture, not for one of its own of that name."""
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return False
    named = item._fixtureinfo.name2fixturedefs.get("cluster", ())
    return bool(named) and named[-1].func.__module__ == __name__


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Before other plugins can take a test with a cluster for theirs: it belongs in the
    cluster's loop."""
    found = yield
    for item in found if isinstance(found, list) else [found]:
        if _uses_cluster(item):
            item.obj = _in_cluster(item.obj, item)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Where somebody looked the function up anew, as plugins that repeat tests do."""
    if not _uses_cluster(pyfuncitem):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    pyfuncitem.stash[_KEY].run(pyfuncitem.obj(**arguments))
    return True


def _in_cluster(test: Any, item: pytest.Function) -> Any:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        item.stash[_KEY].run(test(**arguments))

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails tells what happened in its cluster."""
    report = yield
    made = item.stash.get(_KEY, None)
    if report.failed and made is not None:
        report.sections.append(("slotbus story", made.story()))
    return report
