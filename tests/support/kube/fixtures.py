"""The fixtures by which a test asks for a Kubernetes.

What lives here: ``kube_binaries``, ``kube_server`` (one a test process: keep to your own
``kube_namespace``), ``own_kube_server`` (yours to kill), ``kube`` (an administrator of
``kube_server``), ``kubelet`` and ``fault_proxy``. What may not: what these are made of, and what
becomes of tests that can't have one (``tests.support.binaries``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.binaries.fixtures import obtained
from tests.support.kube.apiserver import KubeServer, make_namespace
from tests.support.kube.build import Binaries, ensure_kubernetes
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Rest, pods_path


@pytest.fixture(scope="session")
def kube_binaries(request: pytest.FixtureRequest) -> Binaries:
    """Builds them if need be."""
    return obtained(request, "kube_binaries", ensure_kubernetes)


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
