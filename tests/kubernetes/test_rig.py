"""The rig's server and its hand-played nodes.

What the other tests here build on is proved here and in ``test_rig_automatic`` and
``test_rig_faults``, so that a failure elsewhere is slotbus's own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from kubernetes_asyncio import client, config

from tests.support.kube.apiserver import (
    KubeServer,
    make_namespace,
    make_service_account,
    make_token,
    set_quota,
)
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.kubelet import Kubelet, is_another
from tests.support.kube.rest import JsonObject, Pod, PodList, Refused, Rest, pods_path
from tests.support.kube.scheduler import kube_scheduler

READ_PODS: JsonObject = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}


async def refusal(kubelet: Kubelet, name: str) -> Refused:
    with pytest.raises(Refused) as caught:
        await kubelet.pod(name)
    return caught.value


def state_of(pod: Pod) -> JsonObject:
    (status,) = pod.status.container_statuses
    state = status["state"]
    assert isinstance(state, dict)
    return state


def _has(pod: Pod, condition: str, reason: str) -> bool:
    return any(
        c.get("type") == condition and c.get("reason") == reason for c in pod.status.conditions
    )


# --- users ------------------------------------------------------------------------------------


async def test_the_server_is_one_of_today(kube: Rest) -> None:
    version = await kube.get("/version")
    assert version["major"] == "1"
    assert str(version["gitVersion"]).startswith("v1.")


async def test_only_known_users_get_in_and_only_to_what_they_may(
    kube_server: KubeServer, kube: Rest, kubelet: Kubelet
) -> None:
    namespace = kubelet.namespace
    token = await make_service_account(kube, namespace, "reader", [READ_PODS])
    await kubelet.create("one")
    async with kube_server.user(token) as reader:
        assert [p.name for p in (await reader.get_as(pods_path(namespace), PodList)).items] == [
            "one"
        ]
        with pytest.raises(Refused, match="cannot delete resource") as caught:
            await reader.delete(pods_path(namespace, "one"))
        assert caught.value.status == 403
        elsewhere = await make_namespace(kube)
        with pytest.raises(Refused, match="cannot list resource") as caught:
            await reader.get(pods_path(elsewhere))
        assert caught.value.status == 403
    async with kube_server.user(kube_server.stranger_token) as stranger:
        with pytest.raises(Refused, match="stranger") as caught:
            await stranger.get(pods_path(namespace))
        assert caught.value.status == 403
    async with kube_server.user("made-up") as nobody:
        with pytest.raises(Refused) as caught:
            await nobody.get(pods_path(namespace))
        assert caught.value.status == 401


async def test_a_service_account_takes_several_tokens(
    kube_server: KubeServer, kube: Rest, kube_namespace: str
) -> None:
    first = await make_service_account(kube, kube_namespace, "reader", [READ_PODS])
    second = await make_token(kube, kube_namespace, "reader", 600)
    assert first != second
    async with kube_server.user(second) as reader:
        assert (await reader.get_as(pods_path(kube_namespace), PodList)).items == []


@pytest.mark.parametrize("proxied", [False, True])
async def test_kubeconfigs_serve_the_usual_client(
    proxied: bool,
    kube_server: KubeServer,
    kubelet: Kubelet,
    fault_proxy: FaultProxy,
    tmp_path: Path,
) -> None:
    await kubelet.create("one")
    path = kube_server.kubeconfig(
        tmp_path / "config",
        kube_server.admin_token,
        kubelet.namespace,
        fault_proxy.url if proxied else None,
    )
    configuration = client.Configuration()
    await config.load_kube_config(str(path), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        listed = await client.CoreV1Api(api).list_namespaced_pod(kubelet.namespace)
    assert [pod.metadata.name for pod in listed.items] == ["one"]
    assert fault_proxy.count("list", "pods") == proxied


async def test_a_quota_is_enforced(kube: Rest, kubelet: Kubelet) -> None:
    await set_quota(kube, kubelet.namespace, pods="2")
    await kubelet.create("one")
    await kubelet.create("two")
    with pytest.raises(Refused, match="exceeded quota") as caught:
        await kubelet.create("three")
    assert caught.value.status == 403


# --- a pod's life -----------------------------------------------------------------------------


async def test_a_pod_is_created_bound_runs_and_succeeds(kubelet: Kubelet) -> None:
    created = await kubelet.create("one", labels={"cluster": "a"})
    assert created.status.phase == "Pending"
    bound = await kubelet.bind("one")
    assert bound.spec.node_name == kubelet.api_name("node-1")
    running = await kubelet.run("one")
    assert running.status.phase == "Running"
    assert "running" in state_of(running)
    assert list(kubelet.containers) == [created.uid]
    ended = await kubelet.end("one")
    assert ended.status.phase == "Succeeded"
    assert _code_and_reason(ended) == (0, "Completed")
    assert not kubelet.containers
    assert [pod.name for pod in await kubelet.pods("cluster=a")] == ["one"]
    assert await kubelet.pods("cluster=b") == []


def _code_and_reason(pod: Pod) -> tuple[object, object]:
    terminated = state_of(pod)["terminated"]
    assert isinstance(terminated, dict)
    return terminated["exitCode"], terminated["reason"]


async def test_every_way_to_end(kubelet: Kubelet) -> None:
    for name in ("crashed", "oom", "evicted", "late"):
        await kubelet.create(name)
        await kubelet.run(name)
    crashed = await kubelet.end("crashed", 3)
    assert crashed.status.phase == "Failed"
    oom = await kubelet.oom("oom")
    assert oom.status.phase == "Failed"
    assert _code_and_reason(crashed) == (3, "Error")
    assert _code_and_reason(oom) == (137, "OOMKilled")
    evicted = await kubelet.evict("evicted")
    assert (evicted.status.phase, evicted.status.reason) == ("Failed", "Evicted")
    assert evicted.status.container_statuses == []
    late = await kubelet.exceed_deadline("late")
    assert (late.status.phase, late.status.reason) == ("Failed", "DeadlineExceeded")
    assert not kubelet.containers


async def test_pods_that_can_not_start_say_why(kubelet: Kubelet) -> None:
    await kubelet.create("nowhere")
    nowhere = await kubelet.unschedulable("nowhere", "0/3 nodes are available")
    assert not nowhere.spec.node_name
    assert _has(nowhere, "PodScheduled", "Unschedulable")
    await kubelet.create("no-image")
    waiting = await kubelet.wait("no-image", "ImagePullBackOff", "Back-off pulling image")
    assert waiting.status.phase == "Pending"
    expected = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    assert state_of(waiting) == {"waiting": expected}


async def test_a_sidecar_outlives_the_container_beside_it(kubelet: Kubelet) -> None:
    containers = [{"name": name, "image": "rig/none"} for name in ("main", "sidecar")]
    await kubelet.create("two", containers=containers)
    await kubelet.run("two")
    half = await kubelet.end_containers("two", {"main": 0})
    assert half.status.phase == "Running"
    states = {
        str(s["name"]): list(s["state"])
        for s in half.status.container_statuses
        if isinstance(s["state"], dict)
    }
    assert states == {"main": ["terminated"], "sidecar": ["running"]}
    whole = await kubelet.end_containers("two", {"main": 0, "sidecar": 1})
    assert whole.status.phase == "Failed"


async def test_a_graceful_deletion_ends_when_the_kubelet_confirms(kubelet: Kubelet) -> None:
    created = await kubelet.create("one")
    await kubelet.run("one")
    await kubelet.delete("one", grace_s=60)
    doomed = await kubelet.pod("one")
    assert doomed.terminating
    assert doomed.metadata.deletion_grace_period_seconds == 60
    with pytest.raises(Refused) as caught:
        await kubelet.create("one")
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")
    await kubelet.confirm("one")
    assert (await refusal(kubelet, "one")).status == 404
    assert (await kubelet.create("one")).uid != created.uid


async def test_a_deletion_by_force_leaves_the_processes(kubelet: Kubelet) -> None:
    created = await kubelet.create("one")
    await kubelet.run("one")
    await kubelet.delete("one", grace_s=0)
    assert (await refusal(kubelet, "one")).status == 404
    assert list(kubelet.containers) == [created.uid]


async def test_pods_of_a_lost_node_stay_terminating(kubelet: Kubelet) -> None:
    await kubelet.register("node-2")
    for name, node in (("one", "node-1"), ("two", "node-2")):
        await kubelet.create(name)
        await kubelet.run(name, node)
    await kubelet.lose("node-2")
    assert await kubelet.taint_evict("node-2") == ["two"]
    assert (await kubelet.pod("two")).terminating
    assert not (await kubelet.pod("one")).terminating
    assert kubelet.is_lost(await kubelet.pod("two"))


async def test_a_status_is_never_written_to_another_pod_of_the_same_name(kubelet: Kubelet) -> None:
    old = await kubelet.create("one")
    await kubelet.delete("one")
    await kubelet.create("one")
    with pytest.raises(Refused) as caught:
        await kubelet.write(old, {"status": {"phase": "Failed"}})
    assert is_another(caught.value)
    with pytest.raises(Refused) as caught:
        await kubelet.place(old, "node-1")
    assert caught.value.status == 409
    with pytest.raises(Refused) as caught:
        await kubelet.remove(old)
    assert caught.value.status == 409


# --- a server that breaks ---------------------------------------------------------------------


async def test_a_server_comes_back_on_the_same_port_with_the_same_data(
    own_kube_server: KubeServer,
) -> None:
    async with own_kube_server.admin() as admin:
        kubelet = Kubelet(admin, await make_namespace(admin))
        path = pods_path(kubelet.namespace)
        old = (await admin.get_as(path, PodList)).metadata.resource_version
        created = await kubelet.create("one")
        url = own_kube_server.url
        own_kube_server.kill()
        with pytest.raises(aiohttp.ClientError):
            await kubelet.pod("one")
        await own_kube_server.start()
        assert own_kube_server.url == url
        assert (await kubelet.pod("one")).uid == created.uid
        async with admin.watch(path, old) as events:
            error = await anext(events)
            assert (error.type, error.refusal.code, error.refusal.reason) == (
                "ERROR",
                410,
                "Expired",
            )
        await own_kube_server.stop()
        await own_kube_server.start()
        assert (await kubelet.pod("one")).uid == created.uid


async def test_a_frozen_server_keeps_connections_open(own_kube_server: KubeServer) -> None:
    async with own_kube_server.admin() as admin:
        kubelet = Kubelet(admin, await make_namespace(admin))
        await kubelet.create("one")
        own_kube_server.api.freeze()
        reading = asyncio.create_task(kubelet.pod("one"))
        done, _ = await asyncio.wait({reading}, timeout=0.3)
        assert not done
        own_kube_server.api.thaw()
        assert (await reading).name == "one"


async def test_the_real_scheduler_binds_what_fits_and_says_why_not(
    own_kube_server: KubeServer,
) -> None:
    async with own_kube_server.admin() as admin, kube_scheduler(own_kube_server):
        kubelet = Kubelet(admin, await make_namespace(admin))
        await kubelet.register("small", cpu="1")
        asked = {"name": "main", "image": "rig/none"}
        await kubelet.create("big", containers=[asked | {"resources": {"requests": {"cpu": "2"}}}])
        (big,) = await kubelet.until(lambda pods: _has(pods[0], "PodScheduled", "Unschedulable"))
        assert not big.spec.node_name
        said = [c["message"] for c in big.status.conditions if c["type"] == "PodScheduled"]
        assert "Insufficient cpu" in str(said)
        await kubelet.create(
            "fits", containers=[asked | {"resources": {"requests": {"cpu": "500m"}}}]
        )
        _, fits = await kubelet.until(lambda pods: bool(pods[1].spec.node_name))
        assert fits.spec.node_name == kubelet.api_name("small")
