"""The fixtures by which a test asks for a Kubernetes.

What lives here: ``kube_binaries``, ``kube_server`` (one a test process: keep to your own
``kube_namespace``), ``own_kube_server`` (yours to kill), ``kube`` (an administrator of
``kube_server``), ``kubelet`` and ``fault_proxy``; and what becomes of tests that can't have
one. What may not: what these are made of.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.support.kube.apiserver import KubeServer, make_namespace
from tests.support.kube.build import Binaries, Unavailable, ensure
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Rest, pods_path

LEFT_OUT: Final = "no kube-apiserver on this machine"
TEST_TIMEOUT_S: Final = 60.0
MAX_WHY: Final = 400
"""Characters; the rest stands in the list of what was skipped."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that want a server come last, so that a build has the time of all others. Fixtures
    don't count against their time limit: what they wait for has its own."""
    for item in items:
        if _wants_kubernetes(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S, func_only=True))
    items.sort(key=_wants_kubernetes)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """One line, the last, that says which tests were skipped for want of a server, and why."""
    yield
    skipped = terminalreporter.getreports("skipped")
    whys = [str(report.longrepr) for report in skipped if LEFT_OUT in str(report.longrepr)]
    if whys:
        why = whys[0].partition(LEFT_OUT)[2].rstrip("\"')")[:MAX_WHY]
        line = f"NOT TESTED: {len(whys)} tests against a real Kubernetes API, {LEFT_OUT}{why}"
        terminalreporter.write_line(line, red=True, bold=True)


def _wants_kubernetes(item: pytest.Item) -> bool:
    return "kube_binaries" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def kube_binaries(request: pytest.FixtureRequest) -> Binaries:
    """Builds them if need be, which shows on the terminal."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    try:
        with capture.global_and_fixture_disabled():
            return ensure()
    except Unavailable as error:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"{LEFT_OUT}: {error}", pytrace=False)
        pytest.skip(f"{LEFT_OUT}: {error}")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kube_server(
    kube_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubeServer]:
    """One server for all tests of this process. Don't stop it."""
    async with KubeServer(tmp_path_factory.mktemp("kube"), kube_binaries) as server:
        yield server


@pytest_asyncio.fixture
async def own_kube_server(kube_binaries: Binaries, tmp_path: Path) -> AsyncIterator[KubeServer]:
    """A server of this test alone: kill it, freeze it, start it again. Takes seconds."""
    async with KubeServer(tmp_path / "own-kube", kube_binaries) as server:
        yield server


@pytest_asyncio.fixture
async def kube(kube_server: KubeServer) -> AsyncIterator[Rest]:
    """An administrator of the shared server."""
    async with kube_server.admin() as admin:
        yield admin


@pytest_asyncio.fixture
async def kube_namespace(kube: Rest) -> AsyncIterator[str]:
    """A namespace of this test alone; its pods go with it."""
    name = await make_namespace(kube)
    yield name
    await kube.delete(pods_path(name), grace_s=0)


@pytest_asyncio.fixture
async def kubelet(kube: Rest, kube_namespace: str) -> AsyncIterator[Kubelet]:
    """Plays the nodes of ``kube_namespace``, and does nothing unless told."""
    kubelet = Kubelet(kube, kube_namespace)
    yield kubelet
    await kubelet.unregister()


@pytest_asyncio.fixture
async def fault_proxy(kube_server: KubeServer) -> AsyncIterator[FaultProxy]:
    """In front of the shared server, without faults until asked."""
    async with FaultProxy(kube_server.url, kube_server.tls()) as proxy:
        yield proxy
