"""The contract of every launcher, on pods whose containers are real processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import psutil
import pytest_asyncio

from schedulers.kubernetes.client import KubeApi
from schedulers.kubernetes.launcher import KubernetesLauncher
from schedulers.kubernetes.manifest import NODE
from tests.contracts import test_launcher as contract
from tests.support.kube.apiserver import KubeServer
from tests.support.kube.clients import api_of, config_of
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.processes import ProcessNode
from tests.support.launchers import Ending, Ends, Rig
from tests.support.powers import able
from tests.support.waiting import background


@pytest_asyncio.fixture
async def rig(kube_server: KubeServer, kubelet: Kubelet) -> AsyncIterator[Rig]:
    config = config_of(kubelet.namespace)
    async with ProcessNode(kubelet) as node, api_of(kube_server, config) as api:

        async def connected() -> KubeApi:
            return api

        launcher = KubernetesLauncher(config, connected)
        ends = Ends(launcher)

        def alive(worker_id: str, _: int | None) -> bool:
            tracked = launcher.view.of(worker_id)
            process = node.processes.get(tracked.uid) if tracked else None
            return process is not None and psutil.pid_exists(process.pid)

        async with background(ends.listen()):
            yield Rig(
                launcher,
                NODE,
                launcher.incarnation,
                ends.of,
                alive=alive,
                pids=False,
                terminated=Ending(exit_code=143),
                killed=Ending(exit_code=137),
            )
            await launcher.close()


for _name, _test in vars(contract).items():
    if _name.startswith("test_") and able(["kubernetes"], _test):
        setattr(sys.modules[__name__], _name, _test)
