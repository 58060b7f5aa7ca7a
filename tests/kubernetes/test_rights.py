"""The manifests of ``compose/kubernetes``, and a controller with exactly their rights."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from events.errors import SlotbusError
from schedulers.kubernetes import programs
from schedulers.kubernetes.owner import POD_NAME, POD_NAMESPACE
from tests.support.controllers import ROOT
from tests.support.kube import faults
from tests.support.kube.apiserver import KubeServer, make_service_account
from tests.support.kube.automatic import Automatic
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import JsonObject, Rest, pods_path
from tests.support.kube.scene import RULES, Scene, starts
from tests.support.waiting import until

MANIFESTS = ROOT / "compose" / "kubernetes"
ACCOUNT = "slotbus-controller"
RIGHTS = [
    *(("pods", verb) for verb in ("create", "get", "list", "watch", "delete")),
    *(("configmaps", verb) for verb in ("create", "get", "list", "delete")),
    ("replicasets", "get"),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left-overs are looked for at once."""
    monkeypatch.setattr(programs, "FIRST_LOOK_S", 0.0)


def kubectl(
    server: KubeServer, tmp_path: Path, namespace: str, *words: str, given: str = ""
) -> str:
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", server.admin_token, namespace)
    kubectl = str(server.binaries.kubectl)
    command = [kubectl, f"--kubeconfig={kubeconfig}", "-n", namespace, *words]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def applied(server: KubeServer, tmp_path: Path, namespace: str) -> None:
    await asyncio.to_thread(kubectl, server, tmp_path, namespace, "apply", "-f", str(MANIFESTS))


async def own_pod(kube: Rest, namespace: str) -> str:
    """A pod of the Deployment, which nobody but us makes here; its name."""
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    deployment: Any = await kube.get(f"{apps}/deployments/{ACCOUNT}")
    template = deployment["spec"]["template"]

    def below(kind: str, owner: Any) -> JsonObject:
        found = {"apiVersion": "apps/v1", "kind": kind, "controller": True}
        found |= {key: owner["metadata"][key] for key in ("name", "uid")}
        return {"name": f"{ACCOUNT}-x", "labels": template["metadata"]["labels"],
                "ownerReferences": [found]}  # fmt: skip

    spec = {"selector": deployment["spec"]["selector"], "template": template}
    replicas: Any = await kube.post(
        f"{apps}/replicasets", {"metadata": below("Deployment", deployment), "spec": spec}
    )
    await kube.post(
        pods_path(namespace),
        {"metadata": below("ReplicaSet", replicas), "spec": template["spec"]},
    )
    return f"{ACCOUNT}-x"


async def live(scene: Scene, token: str, kubelet: Kubelet) -> None:
    """All that a controller does in its life, as far as it gets."""
    scene.proxy.inject(faults.Drop(carry_out=True), verb="create", resource="configmaps")
    scheduler = scene.scheduler(
        scene.config(task_slots=1, owner="auto", start_deadline_s=3.0), rules=RULES, token=token
    )
    async with Automatic(kubelet):
        with suppress(SlotbusError, TimeoutError):
            async with asyncio.timeout(10):
                big = {"text": "x" * 100_000}
                await scheduler.start_workers(starts(slots=2, program=big, wait_s=8.0))
        with suppress(SlotbusError, TimeoutError):
            await scheduler.stop_workers("j")
        with suppress(TimeoutError):
            await until(lambda: answered(scene, "delete", "configmaps"), 3)
        with suppress(TimeoutError):
            await until(lambda: answered(scene, "list", "configmaps"), 3)
    await scene.leave(scheduler)


def answered(scene: Scene, verb: str, resource: str) -> bool:
    return any((s.verb, s.resource) == (verb, resource) and s.status for s in scene.proxy.seen)


def refused(scene: Scene) -> set[tuple[str, str]]:
    return {(s.resource, s.verb) for s in scene.proxy.seen if s.status == 403}


def used(scene: Scene) -> set[tuple[str, str]]:
    """What the server did, or (409) had done before."""
    done = (200, 201, 409)
    return {(s.resource, s.verb) for s in scene.proxy.seen if s.status in done}


async def rules_of(kube: Rest, namespace: str) -> list[Any]:
    role: Any = await kube.get(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{ACCOUNT}"
    )
    rules: list[Any] = role["rules"]
    return rules


async def test_a_controller_lives_on_the_manifests_rights_and_uses_them_all(
    scene: Scene, kube: Rest, kubelet: Kubelet, kube_server: KubeServer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    namespace = kubelet.namespace
    await applied(kube_server, tmp_path, namespace)
    monkeypatch.setenv(POD_NAMESPACE, namespace)
    monkeypatch.setenv(POD_NAME, await own_pod(kube, namespace))
    rules = await rules_of(kube, namespace)
    allowed = {(one, verb) for rule in rules for one in rule["resources"] for verb in rule["verbs"]}
    assert allowed == set(RIGHTS)

    token = await make_service_account(kube, namespace, "exact", rules)
    await live(scene, token, kubelet)
    assert refused(scene) == set()
    # A watch is seen to be answered when it has ended; all others must have been.
    assert used(scene) | {("pods", "watch")} == allowed
    assert [pod.name for pod in await kubelet.pods("worker_id")] == []


@pytest.mark.parametrize(("resource", "verb"), RIGHTS)
async def test_each_right_is_needed(
    resource: str, verb: str, scene: Scene, kube: Rest, kubelet: Kubelet, kube_server: KubeServer,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    namespace = kubelet.namespace
    await applied(kube_server, tmp_path, namespace)
    monkeypatch.setenv(POD_NAMESPACE, namespace)
    monkeypatch.setenv(POD_NAME, await own_pod(kube, namespace))
    rules = await rules_of(kube, namespace)
    for rule in rules:
        if resource in rule["resources"]:
            rule["verbs"] = [one for one in rule["verbs"] if one != verb] or ["update"]
    token = await make_service_account(kube, namespace, "less", rules)
    await live(scene, token, kubelet)
    assert refused(scene) == {(resource, verb)}


async def test_workers_pods_belong_to_the_deployment(
    scene: Scene, kube: Rest, kubelet: Kubelet, kube_server: KubeServer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Not to the controller's own pod, whose end at an upgrade would be theirs too."""
    namespace = kubelet.namespace
    await applied(kube_server, tmp_path, namespace)
    monkeypatch.setenv(POD_NAMESPACE, namespace)
    monkeypatch.setenv(POD_NAME, await own_pod(kube, namespace))
    scheduler = scene.scheduler(scene.config(owner="auto", launched_when="created"))
    await scheduler.start_workers(starts())
    (pod,) = await kubelet.pods("worker_id")
    whole: Any = await kube.get(pods_path(namespace, pod.name))
    (owner,) = whole["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Deployment", ACCOUNT)


async def test_the_pods_that_are_printed_are_such_as_the_server_takes(
    kube_server: KubeServer, kubelet: Kubelet, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        'job_id = "word_count"\nslots = 6\nname = "Wörter zählen"\n'
        f'[program]\ntext = "{"x" * 70_000}"\n'
        "[scheduler_config.kubernetes.resources.requests]\ncpu = 0.5\n"
        '"nvidia.com/gpu" = 1\n'
        "[scheduler_config.kubernetes.resources.limits]\n"
        '"nvidia.com/gpu" = 1\n'
    )
    config = tmp_path / "controller.toml"
    config.write_text(
        f'[kubernetes]\nnamespace = "{kubelet.namespace}"\ntask_slots = 4\n'
        'volumes = [{name = "data", emptyDir = {}}]\n'
        'volume_mounts = [{name = "data", mountPath = "/data"}]\n'
    )
    words = ["pod", "-f", str(job), "--config", str(config)]
    printed = await asyncio.to_thread(
        subprocess.run,
        ["slotbus", *words],
        capture_output=True, text=True, timeout=40, check=False, executable=slotbus(),
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    told = await asyncio.to_thread(
        kubectl, kube_server, tmp_path, kubelet.namespace,
        "apply", "--dry-run=server", "-f", "-", given=printed.stdout,
    )  # fmt: skip
    assert told.count("created (server dry run)") == 3
    assert await kubelet.pods() == []


def slotbus() -> str:
    return str(Path(sys.executable).parent / "slotbus")
