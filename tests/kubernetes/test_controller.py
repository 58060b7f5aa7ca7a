"""The whole program: controllers over NATS, whose workers are pods."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import aiohttp
import msgspec
import pytest
import structlog
from nats.aio.client import Client

from controller.config import ControllerConfig, load_controller
from events.errors import Invalid
from events.subjects import Subjects
from tests.support.auditing import audit_server
from tests.support.controllers import Caller, controller, controller_process
from tests.support.kube import faults
from tests.support.kube.automatic import Automatic
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.program import free_port


async def test_a_pipeline_runs_as_pods_and_outlives_its_controllers(
    config: ControllerConfig, kubelet: Kubelet, nc: Client, subjects: Subjects, tmp_path: Path
) -> None:
    caller = Caller(nc, subjects)
    async with Automatic(kubelet):
        async with controller_process(config, tmp_path / "one.log") as first:
            await first.leading()
            reply = await caller.cmd("start", job_id="wordcount", slots=6)
            assert [one["slots"] for one in reply["workers"]] == [2, 2, 2]
            pods = await kubelet.pods("cluster=blue,job_id=wordcount")
            assert len(pods) == 3
            await first.kill()
        async with controller_process(config, tmp_path / "two.log") as second:
            await second.leading()
            workers = await caller.workers(job_id="wordcount")
            assert [one["state"] for one in workers] == ["running"] * 3
            reply = await caller.cmd("stop", job_id="wordcount", grace_s=5.0)
            assert (len(reply["workers"]), reply["unconfirmed"]) == (3, [])
            await kubelet.until(lambda pods: not pods)
            assert await second.terminate() == 0
    await audit_server(config.server, subjects.root)


async def test_readiness_follows_the_view_of_the_pods_and_life_does_not(
    config: ControllerConfig, kubelet: Kubelet, fault_proxy: FaultProxy
) -> None:
    async with controller(config) as made, aiohttp.ClientSession() as http:
        info = await made.leading()
        assert info.http is not None
        base = f"http://{info.http.host}:{info.http.port}"
        assert await _until_ready(http, base, 200) == "ok\n"
        await fault_proxy.refuse()
        assert "nothing was heard of the pods" in await _until_ready(http, base, 503)
        async with http.get(f"{base}/healthz") as answer:
            assert answer.status == 200
        await fault_proxy.accept()
        assert await _until_ready(http, base, 200) == "ok\n"


async def _until_ready(http: aiohttp.ClientSession, base: str, status: int) -> str:
    """What the page says when it has this status."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):  # it does not listen yet
                async with http.get(f"{base}/readyz") as answer:
                    if answer.status == status:
                        return await answer.text()
            await asyncio.sleep(0.05)


async def test_a_standby_that_could_not_lead_says_why_until_it_can(
    config: ControllerConfig, fault_proxy: FaultProxy, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("controller.app.LOOK_AHEAD_S", 0.1)
    usable = os.environ["KUBECONFIG"]
    http_at = f"127.0.0.1:{free_port()}"
    async with controller(config) as leader, aiohttp.ClientSession() as http:
        await leader.leading()
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
        with structlog.testing.capture_logs() as logs:
            async with controller(msgspec.structs.replace(config, http=http_at)):
                base = f"http://{http_at}"
                said = await _until_ready(http, base, 503)
                while "could not lead" not in said:
                    said = await _until_ready(http, base, 503)
                assert "no kubeconfig that can be used" in said
                monkeypatch.setenv("KUBECONFIG", usable)
                assert await _until_ready(http, base, 200) == "standby\n"
                await fault_proxy.refuse()
                assert "can't be reached" in await _until_ready(http, base, 503)
                await fault_proxy.accept()
                assert await _until_ready(http, base, 200) == "standby\n"
        told = [line["cause"] for line in logs if line["event"] == "this standby could not lead"]
        assert len(told) >= 2


async def test_what_the_api_server_was_asked_is_in_the_metrics(
    config: ControllerConfig, kubelet: Kubelet, nc: Client, subjects: Subjects,
    fault_proxy: FaultProxy,
) -> None:  # fmt: skip
    fault_proxy.inject(faults.too_many_requests(1), verb="create")
    async with controller(config) as made, aiohttp.ClientSession() as http, Automatic(kubelet):
        info = await made.leading()
        assert info.http is not None
        await Caller(nc, subjects).cmd("start", job_id="j", slots=2)
        await fault_proxy.streams[-1].error()
        url = f"http://{info.http.host}:{info.http.port}/metrics"
        async with asyncio.timeout(20):
            shown = await metrics_of(http, url)
            while shown["slotbus_kubernetes_lists_total"] < 1:
                await asyncio.sleep(0.05)
                shown = await metrics_of(http, url)
    assert shown["slotbus_kubernetes_pods"] == 1
    assert shown['slotbus_kubernetes_requests_total{code="201",verb="create"}'] == 1
    assert shown['slotbus_kubernetes_requests_total{code="429",verb="create"}'] == 1
    assert shown['slotbus_kubernetes_throttled_total{by="server"}'] >= 1
    assert shown['slotbus_kubernetes_throttled_seconds_total{by="server"}'] > 0
    assert shown["slotbus_kubernetes_watches_total"] >= 1
    assert shown["slotbus_kubernetes_watch_failures_total"] >= 1
    assert shown["slotbus_kubernetes_watch_events_total"] >= 2
    assert 0 <= shown["slotbus_kubernetes_view_age_seconds"] < 5


async def metrics_of(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The series of the Kubernetes backend, with their labels."""
    async with http.get(url) as answer:
        lines = (await answer.text()).splitlines()
    numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(text) for name, text in numbers.items() if "kubernetes_" in name}


async def test_without_a_cluster_a_controller_says_so_and_ends(
    config: ControllerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    async with controller(config) as made:
        with pytest.raises(Invalid, match="no kubeconfig that can be used"):
            await made.leading()


def test_settings_of_pods_are_checked_before_anything_is_started(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    for text, path in (
        ("image = 7", "kubernetes.image"),
        ("imago = 'x'", "kubernetes.imago"),
        ("cluster = 'other'", "kubernetes.cluster"),
        ("[kubernetes.resources.limits]\ncpu = 'lots'", "kubernetes.resources.limits.cpu"),
    ):
        file.write_text(f"scheduler = 'kubernetes'\n[kubernetes]\n{text}\n")
        with pytest.raises(Invalid) as refused:
            load_controller(file=file, use_selected=False)
        assert refused.value.path == path
