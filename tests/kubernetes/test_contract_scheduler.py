"""The contract of every scheduler, on pods whose containers are real processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest_asyncio

from schedulers import KubernetesScheduler
from schedulers.engine import Engine
from tests.contracts import test_scheduler as contract
from tests.support.eight_slots import RULES, SLOTS, SLOTS_A_WORKER
from tests.support.kube.apiserver import KubeServer
from tests.support.kube.clients import client_of, config_of
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.processes import ProcessNode
from tests.support.powers import able


@pytest_asyncio.fixture
async def scheduler(kube_server: KubeServer, kubelet: Kubelet) -> AsyncIterator[Engine]:
    config = config_of(kubelet.namespace, capacity=SLOTS, task_slots=SLOTS_A_WORKER)
    client = client_of(kube_server)
    async with ProcessNode(kubelet):
        made = KubernetesScheduler(config, client=client, rules=RULES)
        try:
            yield made
        finally:
            await made.close()
            await client.close()


for _name, _test in vars(contract).items():
    if _name.startswith("test_") and able(["kubernetes"], _test):
        setattr(sys.modules[__name__], _name, _test)
