"""What people ask and say of workers that are pods, with the real ``slotbus``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from controller.config import ControllerConfig
from events.subjects import Subjects
from tests.support.auditing import audit_server
from tests.support.console import Console, Finished
from tests.support.controllers import controller
from tests.support.kube.automatic import Automatic
from tests.support.kube.kubelet import Kubelet


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path / "person")


@pytest.mark.timeout(240, func_only=True)  # a dozen programs, one after the other
async def test_where_a_worker_is_and_that_it_has_ended_can_be_told(
    config: ControllerConfig, console: Console, kubelet: Kubelet, subjects: Subjects
) -> None:
    environ = {"NATS_URL": config.server, "SLOTBUS_CFG_ROOT": subjects.root}

    async def slotbus(*words: str) -> Finished:
        return await asyncio.to_thread(console.run, *words, **environ)

    hasty = msgspec.structs.replace(config, stop_timeout_s=2.0)
    async with controller(hasty) as made:
        await made.leading()
        async with Automatic(kubelet):
            assert (await slotbus("start", "j", "--slots", "2")).code == 0
        (pod,) = await kubelet.pods()
        worker_id, node = pod.metadata.labels["worker_id"], pod.spec.node_name
        assert f"kubernetes/{node}" in (await slotbus("workers")).out
        told = (await slotbus("describe", "worker", worker_id)).out
        assert ["host", node] in [line.split() for line in told.splitlines()]

        logs = await slotbus("logs", "j")
        assert (logs.code, logs.out) == (1, "")
        assert f"kubectl logs -l worker_id={worker_id}" in logs.err

        refused = await slotbus("ended", worker_id)
        assert refused.code == 2
        assert "reports its end itself" in refused.err

        # Its node is gone: nobody but a person can say that it is over.
        await kubelet.lose("node-1")
        stopped = await slotbus("stop", "j", "--force")
        assert (stopped.code, worker_id in stopped.err) == (1, True), stopped
        assert "stopping" in (await slotbus("workers")).out
        ended = await slotbus("ended", worker_id, "--exit-code", "137", "--reason", "pulled it")
        assert (ended.code, ended.out) == (0, f"worker {worker_id} has ended\n")
        assert worker_id not in (await slotbus("workers")).out
        assert "pulled it" in (await slotbus("workers", "--all")).out
        async with Automatic(kubelet):
            await kubelet.find("node-1")
            assert (await slotbus("start", "j", "--slots", "2")).code == 0
            assert (await slotbus("stop", "j")).code == 0
            await kubelet.until(lambda pods: not pods)
    await audit_server(config.server, subjects.root)
