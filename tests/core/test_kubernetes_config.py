"""The Kubernetes backend's configuration: read whole, refused with the path."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest

from events.errors import Invalid
from schedulers.kubernetes.config import KubernetesConfig, Owner
from schedulers.kubernetes.reading import check_config, read_config
from schedulers.kubernetes.template import configured_template, worker_of

EVERYTHING = """
namespace = "pipelines"
cluster = "blue"
resource_mode = "per-pod"
task_slots = 8
max_pods_per_job = 20
image = "workers:3"
image_pull_policy = "Always"
image_pull_secrets = ["pull"]
command = ["/bin/worker", "--id=$(SLOTBUS_WORKER_ID)"]
args = ["-v"]
priority_class = "high"
service_account = "worker"
termination_grace_s = 60
active_deadline_s = 3600
start_deadline_s = 90.5
launched_when = "running"
capacity = 500
requests_per_s = 20
burst = 40
requests_at_once = 8
watch_timeout_s = 60
view_age_s = 90
jobs_may = ["labels", "pod_template"]
env = [
  {name = "LEVEL", value = "debug"},
  {name = "KEY", valueFrom = {secretKeyRef = {name = "keys", key = "a"}}},
]
env_from = [{configMapRef = {name = "shared"}}]
volumes = [{name = "data", persistentVolumeClaim = {claimName = "data"}}]
volume_mounts = [{name = "data", mountPath = "/data", readOnly = true}]
ports = [{name = "metrics", containerPort = 9100}]
tolerations = [{key = "dedicated", operator = "Exists", effect = "NoSchedule"}]
topology_spread = [
  {maxSkew = 1, topologyKey = "zone", whenUnsatisfiable = "DoNotSchedule", minDomains = 2},
]

[resources]
requests = {cpu = 0.5, memory = "1Gi", "nvidia.com/gpu" = 1}
limits = {cpu = 2, memory = "1Gi", "nvidia.com/gpu" = 1}

[labels]
"example.org/team" = "data"
[annotations]
"example.org/note" = "any text, even this: é"
[node_selector]
disk = "ssd"
[affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution]
nodeSelectorTerms = [{matchExpressions = [{key = "arch", operator = "In", values = ["arm64"]}]}]
[security_context]
runAsUser = 1000
[container_security_context]
readOnlyRootFilesystem = true
[owner]
api_version = "apps/v1"
kind = "Deployment"
name = "slotbus"
uid = "u-1"
namespace = "pipelines"
[pod_template.spec]
runtimeClassName = "kata"
initContainers = [{name = "fetch", image = "fetch:1"}]
containers = [{name = "log", image = "log:1"}, {name = "worker", tty = true}]
"""


def test_all_of_it_reaches_the_pod() -> None:
    config = read_config(tomllib.loads(EVERYTHING))
    template = configured_template(config)
    spec, worker = template["spec"], worker_of(template)
    assert template["metadata"] == {
        "labels": {"example.org/team": "data"},
        "annotations": {"example.org/note": "any text, even this: é"},
    }
    assert worker == {
        "name": "worker",
        "image": "workers:3",
        "imagePullPolicy": "Always",
        "command": ["/bin/worker", "--id=$(SLOTBUS_WORKER_ID)"],
        "args": ["-v"],
        "env": config.env,
        "envFrom": config.env_from,
        "volumeMounts": config.volume_mounts,
        "ports": config.ports,
        "securityContext": {"readOnlyRootFilesystem": True},
        "resources": {
            "requests": {"cpu": "0.5", "memory": "1Gi", "nvidia.com/gpu": "1"},
            "limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"},
        },
        "tty": True,
    }
    assert {name: value for name, value in spec.items() if name != "containers"} == {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "activeDeadlineSeconds": 3600,
        "priorityClassName": "high",
        "serviceAccountName": "worker",
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": config.volumes,
        "nodeSelector": {"disk": "ssd"},
        "tolerations": config.tolerations,
        "affinity": config.affinity,
        "topologySpreadConstraints": config.topology_spread,
        "securityContext": {"runAsUser": 1000},
        "runtimeClassName": "kata",
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
    }
    assert [one["name"] for one in spec["containers"]] == ["worker", "log"]
    assert config.owner == Owner(
        api_version="apps/v1",
        kind="Deployment",
        name="slotbus",
        uid="u-1",
        namespace="pipelines",
    )
    assert (config.task_slots, config.max_pods_per_job) == (8, 20)
    assert (config.start_deadline_s, config.launched_when) == (90.5, "running")


def test_no_setting_is_missing_from_that_example() -> None:
    assert tomllib.loads(EVERYTHING).keys() == set(KubernetesConfig.__struct_fields__)


def test_nothing_is_needed() -> None:
    config = read_config({})
    assert config == KubernetesConfig()
    spec = configured_template(config)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "resources" not in spec["containers"][0]


WORKER_ENV = {"spec": {"containers": [{"name": "worker", "env": [{"name": "SLOTBUS_X"}]}]}}


@pytest.mark.parametrize(
    ("settings", "path", "words"),
    [
        ({"task_slot": 1}, "task_slot", "did you mean task_slots"),
        ({"resources": {"request": {}}}, "resources.request", "did you mean requests"),
        ({"owner": {"knd": "x"}}, "owner.knd", "did you mean kind"),
        ({"task_slots": 0}, "task_slots", ">= 1"),
        ({"task_slots": "many"}, "task_slots", "int"),
        ({"max_pods_per_job": 1001}, "max_pods_per_job", "<= 1000"),
        ({"resource_mode": "per-node"}, "resource_mode", "per-node"),
        ({"namespace": "No_Namespace"}, "namespace", "no namespace"),
        ({"namespace": ""}, "namespace", "no namespace"),
        ({"cluster": "a b"}, "cluster", "regex"),
        ({"image": ""}, "image", "no image"),
        ({"image": "two words"}, "image", "no image"),
        ({"image_pull_secrets": ["ok", "Not_Ok"]}, "image_pull_secrets[1]", "no name"),
        ({"service_account": "a b"}, "service_account", "no name"),
        ({"termination_grace_s": -1}, "termination_grace_s", ">= 0"),
        ({"active_deadline_s": 0}, "active_deadline_s", ">= 1"),
        ({"start_deadline_s": 0}, "start_deadline_s", "> 0"),
        ({"jobs_may": ["everything"]}, "jobs_may[0]", "everything"),
        ({"owner": "me"}, "owner", "me"),
        ({"owner": {"kind": "Pod"}}, "owner", "api_version"),
        (
            {"owner": {"api_version": "v1", "kind": "Pod", "name": "c", "uid": ""}},
            "owner.uid",
            "needed",
        ),
        (
            {
                "owner": {
                    "api_version": "v1",
                    "kind": "Pod",
                    "name": "c",
                    "uid": "u",
                    "namespace": "elsewhere",
                }
            },
            "owner.namespace",
            "delete them at once",
        ),
        ({"resources": {"requests": {"cpu": "lots"}}}, "resources.requests.cpu", "no"),
        ({"resources": {"requests": {"cpu": "-1"}}}, "resources.requests.cpu", "less than"),
        ({"resources": {"limits": {"memory": "1e99"}}}, "resources.limits.memory", "counted"),
        (
            {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}},
            "resources.requests.cpu",
            "the limit is 1500m",
        ),
        ({"resources": {"limits": {"memroy": "1Gi"}}}, "resources.limits.memroy", "memory"),
        (
            {"resources": {"limits": {"a.b/gpu": "1500m"}}},
            "resources.limits['a.b/gpu']",
            "whole",
        ),
        (
            {"resources": {"requests": {"a.b/gpu": 1}}},
            "resources.requests['a.b/gpu']",
            "limit must be as much",
        ),
        ({"env": [{"name": "A"}, {"name": "A"}]}, "env[1]", "twice"),
        ({"env": [{"name": "SLOTBUS_JOB_ID", "value": "x"}]}, "env[0].name", "reserved"),
        ({"env": [{"name": "A=B"}]}, "env[0].name", "no name"),
        ({"env": [{"value": "x"}]}, "env[0].name", "needs a name"),
        (
            {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
            "env[0]",
            "both",
        ),
        ({"env_from": [{"prefix": "SLOTBUS_"}]}, "env_from[0].prefix", "reserved"),
        ({"volumes": [{"name": "a", "hostPat": {}}]}, "volumes[0].hostPat", "hostPath"),
        ({"volumes": [{"name": "A_b"}]}, "volumes[0].name", "DNS label"),
        ({"volumes": [{"name": "slotbus-program"}]}, "volumes[0].name", "reserved"),
        (
            {"volume_mounts": [{"name": "gone", "mountPath": "/x"}]},
            "volume_mounts[0].name",
            "no volume 'gone'",
        ),
        (
            {"volume_mounts": [{"name": "x", "mountPath": "/var/run/slotbus/program/"}]},
            "volume_mounts[0]",
            "program",
        ),
        ({"labels": {"job_id": "x"}}, "labels.job_id", "reserved"),
        ({"labels": {"ok": "not ok"}}, "labels.ok", "no value"),
        ({"labels": {"-": "x"}}, "labels['-']", "no key"),
        ({"annotations": {"slotbus/x": "1"}}, "annotations['slotbus/x']", "reserved"),
        ({"annotations": {"no key": "1"}}, "annotations['no key']", "no key"),
        ({"node_selector": {"disk": "not ok"}}, "node_selector.disk", "no value"),
        ({"tolerations": [{"Key": "x"}]}, "tolerations[0].Key", "key"),
        ({"affinity": {"nodeAffinity": []}}, "affinity.nodeAffinity", "object"),
        ({"topology_spread": [{"maxSkew": "1"}]}, "topology_spread[0].maxSkew", "number"),
        ({"security_context": {"privileged": True}}, "security_context.privileged", "no field"),
        ({"ports": [{"containerPort": "x"}]}, "ports[0].containerPort", "number"),
        ({"pod_template": {"spec": {"x": 1}}}, "pod_template.spec.x", "no field"),
        (
            {"pod_template": {"metadata": {"name": "mine"}}},
            "pod_template.metadata.name",
            "slotbus alone",
        ),
        (
            {"pod_template": {"metadata": {"labels": {"cluster": None}}}},
            "pod_template.metadata.labels.cluster",
            "reserved",
        ),
        (
            {"pod_template": {"spec": {"restartPolicy": "Always"}}},
            "pod_template.spec.restartPolicy",
            "never restarted",
        ),
        ({"pod_template": WORKER_ENV}, "pod_template.spec.containers[0].env[0].name", "reserved"),
        (
            {"pod_template": {"spec": {"containers": None}}},
            "pod_template.spec.containers",
            "can't be removed",
        ),
        (
            {"pod_template": {"spec": {"initContainers": [{"name": "worker", "image": "x"}]}}},
            "pod_template.spec.initContainers[0].name",
            "reserved",
        ),
        (
            {"pod_template": {"spec": {"containers": [{"name": "side"}]}}},
            "pod_template.spec.containers[1].image",
            "needs an image",
        ),
        (
            {
                "pod_template": {
                    "spec": {"containers": [{"name": "worker", "restartPolicy": "Always"}]}
                }
            },
            "pod_template.spec.containers[0].restartPolicy",
            "never restarted",
        ),
    ],
)
def test_refused_with_the_path(settings: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_config(settings)
    assert caught.value.path == f"kubernetes.{path}"
    assert words in caught.value.message


def test_a_configuration_made_in_python_is_held_to_the_same() -> None:
    check_config(KubernetesConfig(namespace="pipelines", labels={"team": "data"}))
    with pytest.raises(Invalid) as caught:
        check_config(KubernetesConfig(task_slots=0), "config")
    assert caught.value.path == "config.task_slots"
    with pytest.raises(Invalid) as caught:
        check_config(msgspec.structs.replace(KubernetesConfig(), env=[{"name": "SLOTBUS_X"}]))
    assert caught.value.path == "kubernetes.env[0].name"


def test_the_configuration_is_left_as_it_was() -> None:
    config = read_config(tomllib.loads(EVERYTHING))
    before = msgspec.json.encode(config)
    template = configured_template(config)
    template["spec"]["containers"][0]["env"].append({"name": "X"})
    template["spec"]["volumes"][0]["name"] = "changed"
    assert msgspec.json.encode(config) == before
