"""What becomes of tests that want a program which has to be built first.

What lives here: ``nats_cli``, ``obtained`` for fixtures of others, the order of such tests, and
the lines that name what was left out. What may not: what the programs do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tests.support.binaries.building import Unavailable
from tests.support.binaries.natscli import ensure_nats

WANTED: Final = {
    "nats_cli": ("with the real nats command line", "no nats command on this machine"),
    "other_pythons": ("on another Python", "no other Python on this machine"),
    "kube_binaries": ("against a real Kubernetes API", "no kube-apiserver on this machine"),
}
"""The fixtures that may build, those that take longest last: what tests with them are, and
what is said where there can be none."""

TEST_TIMEOUT_S: Final = 60.0
MAX_WHY: Final = 400
"""Characters; the rest stands in the list of what was skipped."""

T = TypeVar("T")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that want one come last, so that a build has the time of all others. Fixtures
    don't count against their time limit: what they wait for has its own."""
    for item in items:
        if _rank(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S, func_only=True))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    """0 for a test that builds nothing."""
    names = getattr(item, "fixturenames", ())
    return max((at for at, name in enumerate(WANTED, 1) if name in names), default=0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """One line of each kind, the last, that says which tests were skipped for want of a
    program, and why."""
    yield
    skipped = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for tests, left_out in WANTED.values():
        whys = [said for said in skipped if left_out in said]
        if whys:
            why = whys[0].partition(left_out)[2].rstrip("\"')")[:MAX_WHY]
            line = f"NOT TESTED: {len(whys)} tests {tests}, {left_out}{why}"
            terminalreporter.write_line(line, red=True, bold=True)


def obtained(request: pytest.FixtureRequest, wanted: str, ensure: Callable[[], T]) -> T:
    """What ``ensure`` finds or builds, which shows on the terminal. Where this machine can't,
    the test is left out, and where CI is set it fails."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    left_out = WANTED[wanted][1]
    try:
        with capture.global_and_fixture_disabled():
            return ensure()
    except Unavailable as error:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"{left_out}: {error}", pytrace=False)
        pytest.skip(f"{left_out}: {error}")


@pytest.fixture(scope="session")
def nats_cli(request: pytest.FixtureRequest) -> Path:
    """The program ``nats``."""
    return obtained(request, "nats_cli", ensure_nats)
