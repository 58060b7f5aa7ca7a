"""The stage of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from controller.config import ControllerConfig
from controller.embedded import EmbeddedServer
from events.subjects import Subjects
from tests.support.controllers import config_for
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


@pytest.fixture
def config(
    nats_server: EmbeddedServer, subjects: Subjects, kube_server: KubeServer, kubelet: Kubelet,
    fault_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> ControllerConfig:  # fmt: skip
    """Of a controller that reaches the cluster over the proxy, by a kubeconfig."""
    file = tmp_path / "kubeconfig"
    kube_server.kubeconfig(file, kube_server.admin_token, kubelet.namespace, fault_proxy.url)
    monkeypatch.setenv("KUBECONFIG", str(file))
    pods: dict[str, object] = {
        "namespace": kubelet.namespace, "task_slots": 2, "launched_when": "running",
        "termination_grace_s": 1, "watch_timeout_s": 1, "view_age_s": 2.0,
    }  # fmt: skip
    return config_for(
        nats_server.url, subjects, tmp_path / "state", scheduler="kubernetes", kubernetes=pods,
        cluster="blue",
    )  # fmt: skip
