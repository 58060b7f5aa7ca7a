"""The pod of a worker: what it is told, what is set last, what a job may change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from events.errors import Invalid
from events.messages import KubernetesOptions, PodResources, SchedulerConfig, StartPipelineReq
from events.traffic import Stamp
from schedulers.kubernetes.config import KubernetesConfig, Owner
from schedulers.kubernetes.identity import read_identity, same_worker
from schedulers.kubernetes.manifest import (
    check_request,
    identity_of,
    in_config_map,
    literal,
    planned,
    pod_manifest,
    program_manifest,
    shares,
)
from schedulers.kubernetes.overlay import Json
from schedulers.kubernetes.template import configured_template
from schedulers.launcher import Assignment

OWNER = Owner(api_version="apps/v1", kind="Deployment", name="c", uid="u", namespace="default")


def assignment(**changes: Any) -> Assignment:
    """A worker of four slots, with whatever the test is about."""
    fields: dict[str, Any] = {
        "worker_id": "w-abc-1",
        "job_id": "wordcount",
        "run_id": 3,
        "slots": 4,
        "node_id": "kubernetes",
        "incarnation": "i",
        "epoch": 8,
        "stamp": Stamp(cluster="slotbus", epoch=7, position=42),
        "name": "Word count",
        "hash": "abcd",
        "wasm_path": "wasm://x",
        "program": msgspec.Raw(b'{"a":1}'),
    }
    return Assignment(**(fields | changes))


def pod(config: KubernetesConfig | None = None, **changes: Any) -> Json:
    """The pod of that worker, which JSON can say."""
    manifest = pod_manifest(config or KubernetesConfig(), assignment(**changes))
    assert msgspec.json.decode(msgspec.json.encode(manifest)) == manifest
    return manifest


def worker(manifest: Json) -> Json:
    found: Json = manifest["spec"]["containers"][0]
    assert found["name"] == "worker"
    return found


def env(manifest: Json) -> dict[str, str]:
    """The plain variables of the worker; each name comes once."""
    names = [variable["name"] for variable in worker(manifest)["env"]]
    assert len(names) == len(set(names))
    return {v["name"]: v["value"] for v in worker(manifest)["env"] if "value" in v}


def test_a_pod_says_whose_it_is() -> None:
    metadata = pod()["metadata"]
    assert metadata["name"].startswith("wordcount-3-")
    assert metadata["namespace"] == "default"
    assert metadata["labels"] == {
        "cluster": "slotbus",
        "job_id": "wordcount",
        "run_id": "3",
        "job_name": metadata["labels"]["job_name"],
        "worker_id": "w-abc-1",
    }
    assert metadata["annotations"] == {
        "slotbus/job_name": "Word count",
        "slotbus/slots": "4",
        "slotbus/epoch": "7",
        "slotbus/position": "42",
    }
    who = read_identity(metadata["labels"], metadata["annotations"])
    assert same_worker(who, identity_of(KubernetesConfig(), assignment()))
    assert who == identity_of(KubernetesConfig(), assignment())


def test_the_same_worker_gives_the_same_bytes() -> None:
    assert msgspec.json.encode(pod()) == msgspec.json.encode(pod())
    config = KubernetesConfig(env=[{"name": "A", "value": "1"}], labels={"team": "data"})
    template = configured_template(config)
    before = msgspec.json.encode(template)
    large = assignment(program=raw(100_000))
    assert pod_manifest(config, large, OWNER, template=template) == pod_manifest(
        config, large, OWNER
    )
    assert msgspec.json.encode(template) == before
    assert pod(worker_id="w-abc-2")["metadata"]["name"] != pod()["metadata"]["name"]


def test_a_worker_is_told_what_every_backend_tells() -> None:
    assert env(pod(env_vars={"LEVEL": "debug"})) == {
        "SLOTBUS_JOB_ID": "wordcount",
        "SLOTBUS_RUN_ID": "3",
        "SLOTBUS_WORKER_ID": "w-abc-1",
        "SLOTBUS_SLOTS": "4",
        "SLOTBUS_NODE_ID": "kubernetes",
        "SLOTBUS_NAME": "Word count",
        "SLOTBUS_HASH": "abcd",
        "SLOTBUS_WASM_PATH": "wasm://x",
        "SLOTBUS_PROGRAM": '{"a":1}',
        "LEVEL": "debug",
    }


def test_a_job_overrides_the_configured_variables() -> None:
    config = KubernetesConfig(
        env=[
            {"name": "LEVEL", "value": "info"},
            {"name": "ID", "value": "$(SLOTBUS_WORKER_ID)"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]
    )
    manifest = pod(config, env_vars={"LEVEL": "debug", "KEY": "mine"})
    assert env(manifest)["LEVEL"] == "debug"
    assert env(manifest)["KEY"] == "mine"
    names = [variable["name"] for variable in worker(manifest)["env"]]
    assert names.index("SLOTBUS_WORKER_ID") < names.index("ID")  # or $(...) would stay


def test_what_a_job_sends_is_not_replaced_by_kubernetes() -> None:
    manifest = pod(
        env_vars={"PRICE": "$(COST) $$5 $"},
        program=msgspec.Raw(b'"$(HOME)"'),
        command=["echo", "$(SLOTBUS_JOB_ID)"],
    )
    assert env(manifest)["PRICE"] == "$$(COST) $$$$5 $$"
    assert env(manifest)["SLOTBUS_PROGRAM"] == '"$$(HOME)"'
    assert worker(manifest)["command"] == ["echo", "$$(SLOTBUS_JOB_ID)"]
    for text in ("$(A)", "$$(A)", "$", "plain", "$$$"):
        assert expanded(literal(text)) == text


def expanded(text: str) -> str:
    """What the kubelet makes of a value when no variable is known."""
    out, i = "", 0
    while i < len(text):
        step = 2 if text[i : i + 2] == "$$" else 1
        out, i = out + text[i], i + step
    return out


@pytest.mark.parametrize("name", ["SLOTBUS_JOB_ID", "SLOTBUS_ANYTHING", "a b", ""])
def test_a_job_can_not_set_what_is_reserved(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        pod(env_vars={name: "x"})
    assert caught.value.path == f"$.env_vars[{name!r}]"


def test_the_command_is_the_jobs_or_the_configured_or_the_controllers_or_the_images() -> None:
    configured = KubernetesConfig(command=["/configured"], args=["-v"])
    assert worker(pod(configured, command=["/job"]))["command"] == ["/job"]
    assert "args" not in worker(pod(configured, command=["/job"]))
    assert worker(pod(configured, default_command=["/c"]))["command"] == ["/configured"]
    assert worker(pod(configured))["args"] == ["-v"]
    assert worker(pod(default_command=["/controller"]))["command"] == ["/controller"]
    assert "command" not in worker(pod())


def test_resources_are_for_each_slot_whatever_they_are() -> None:
    asked = PodResources(
        requests={"cpu": "500m", "memory": "1.5Gi", "nvidia.com/gpu": 1},
        limits={"memory": "1.5Gi", "nvidia.com/gpu": 1},
    )
    config = KubernetesConfig(resources=asked)
    assert worker(pod(config))["resources"] == {
        "requests": {"cpu": "2", "memory": "6Gi", "nvidia.com/gpu": "4"},
        "limits": {"memory": "6Gi", "nvidia.com/gpu": "4"},
    }
    per_pod = msgspec.structs.replace(config, resource_mode="per-pod")
    assert worker(pod(per_pod))["resources"]["requests"]["cpu"] == "500m"
    sidecar = {"name": "side", "image": "s", "resources": {"limits": {"cpu": "1"}}}
    with_sidecar = msgspec.structs.replace(config, pod_template={"spec": {"containers": [sidecar]}})
    assert pod(with_sidecar)["spec"]["containers"][1] == sidecar  # it serves the pod, not a slot


def test_more_than_can_be_counted_is_refused() -> None:
    config = KubernetesConfig(resources=PodResources(limits={"memory": "7Ei"}))
    with pytest.raises(Invalid) as caught:
        pod(config)
    assert caught.value.path == "kubernetes.resources.limits.memory"


def test_a_small_program_travels_in_the_environment_a_large_one_in_a_config_map() -> None:
    small, large = (assignment(program=raw(size)) for size in (64 * 1024, 64 * 1024 + 1))
    assert not in_config_map(small)
    assert in_config_map(large)
    config = KubernetesConfig(
        volumes=[{"name": "data", "emptyDir": {}}],
        volume_mounts=[{"name": "data", "mountPath": "/data"}],
    )
    manifest, program = pod_manifest(config, large), program_manifest(config, large, OWNER)
    assert "SLOTBUS_PROGRAM" not in env(manifest)
    path = env(manifest)["SLOTBUS_PROGRAM_FILE"]
    folder, _, key = path.rpartition("/")
    assert worker(manifest)["volumeMounts"][1] == {
        "name": "slotbus-program",
        "mountPath": folder,
        "readOnly": True,
    }
    assert manifest["spec"]["volumes"][1] == {
        "name": "slotbus-program",
        "configMap": {"name": program["metadata"]["name"]},
    }
    assert program["data"] == {key: bytes(large.program).decode()}
    assert program["kind"] == "ConfigMap"
    assert program["immutable"] is True
    assert program["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert "worker_id" not in program["metadata"]["labels"]
    assert program["metadata"]["labels"]["job_id"] == "wordcount"
    assert "volumes" not in pod_manifest(KubernetesConfig(), small)["spec"]


def raw(size: int) -> msgspec.Raw:
    """A program of this many bytes."""
    return msgspec.Raw(b'"' + b"x" * (size - 2) + b'"')


def test_one_config_map_for_all_pods_of_a_run() -> None:
    config, program = KubernetesConfig(), raw(100_000)
    one, other = assignment(program=program), assignment(program=program, worker_id="w-abc-2")
    next_run = assignment(program=program, run_id=4)
    assert program_manifest(config, one) == program_manifest(config, other)
    names = {program_manifest(config, a)["metadata"]["name"] for a in (one, next_run)}
    assert len(names) == 2


def test_an_owner_only_in_the_namespace_of_the_pods() -> None:
    config = KubernetesConfig()
    assert pod_manifest(config, assignment(), OWNER)["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "c",
            "uid": "u",
            "controller": False,
            "blockOwnerDeletion": False,
        }
    ]
    elsewhere = KubernetesConfig(namespace="pipelines")
    assert "ownerReferences" not in pod_manifest(elsewhere, assignment(), OWNER)["metadata"]
    assert "ownerReferences" not in pod()["metadata"]


def test_a_pod_is_never_restarted() -> None:
    assert pod()["spec"]["restartPolicy"] == "Never"
    same = KubernetesConfig(pod_template={"spec": {"restartPolicy": "Never"}})
    assert pod(same)["spec"]["restartPolicy"] == "Never"


# --- a start, before it is one ------------------------------------------------------------


def test_slots_are_handed_out_in_full_pods_and_a_rest() -> None:
    config = KubernetesConfig(task_slots=16, max_pods_per_job=3)
    assert shares(config, 1) == [1]
    assert shares(config, 32) == [16, 16]
    assert shares(config, 33) == [16, 16, 1]
    with pytest.raises(Invalid) as caught:
        shares(config, 49)
    assert caught.value.path == "$.slots"


def test_a_request_can_be_looked_at_as_pods() -> None:
    request = StartPipelineReq(job_id="a_b", slots=20, program={"z": 1, "a": [2]})
    config = KubernetesConfig()
    pods = [
        pod_manifest(config, planned(config, request, number, slots))
        for number, slots in enumerate(shares(config, request.slots))
    ]
    assert [env(one)["SLOTBUS_SLOTS"] for one in pods] == ["16", "4"]
    assert env(pods[0])["SLOTBUS_PROGRAM"] == '{"a":[2],"z":1}'
    assert env(pods[0])["SLOTBUS_NAME"] == "a_b"
    assert len({one["metadata"]["name"] for one in pods}) == 2
    with pytest.raises(Invalid) as caught:
        planned(config, request, 0, 0)
    assert caught.value.path == "$.slots"


def test_a_request_is_checked_before_it_is_taken() -> None:
    config = KubernetesConfig()
    check_request(config, StartPipelineReq(job_id="a", slots=40))
    lease = SchedulerConfig(stop_after_s=5)
    with pytest.raises(Invalid) as caught:
        check_request(config, StartPipelineReq(job_id="a", slots=1, scheduler_config=lease))
    assert caught.value.path == "$.scheduler_config.stop_after_s"
    overlay = SchedulerConfig(kubernetes=KubernetesOptions(labels={"a": "not ok"}))
    with pytest.raises(Invalid) as caught:
        check_request(config, StartPipelineReq(job_id="a", slots=1, scheduler_config=overlay))
    assert caught.value.path == "$.scheduler_config.kubernetes.labels.a"
