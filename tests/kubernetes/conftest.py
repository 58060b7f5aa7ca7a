"""The stage of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.kube.apiserver import KubeServer
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.scene import Scene, scene_of


@pytest_asyncio.fixture
async def scene(
    kube_server: KubeServer, kubelet: Kubelet, fault_proxy: FaultProxy
) -> AsyncIterator[Scene]:
    async with scene_of(kube_server, kubelet, fault_proxy) as made:
        yield made
