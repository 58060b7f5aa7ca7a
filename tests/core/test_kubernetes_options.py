"""What a job may change of its workers' pods, and what it is told when it may not."""

from __future__ import annotations

import pytest

from events.errors import Invalid
from events.messages import KubernetesOptions, PodResources
from events.traffic import Stamp
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.manifest import pod_manifest
from schedulers.kubernetes.overlay import Json
from schedulers.launcher import Assignment

FREE = KubernetesConfig(
    image="configured:1",
    labels={"team": "data"},
    node_selector={"disk": "ssd", "zone": "a"},
    resources=PodResources(requests={"cpu": "1"}, limits={"memory": "1Gi"}),
    tolerations=[{"key": "old"}],
    pod_template={"spec": {"schedulerName": "configured"}},
    jobs_may=(
        "image",
        "resources",
        "labels",
        "annotations",
        "node_selector",
        "tolerations",
        "pod_template",
    ),
)


def pod(config: KubernetesConfig, options: KubernetesOptions) -> Json:
    """The pod of a worker of four slots whose job asks for this."""
    return pod_manifest(
        config,
        Assignment(
            worker_id="w-1",
            job_id="job",
            run_id=1,
            slots=4,
            node_id="kubernetes",
            incarnation="i",
            epoch=1,
            stamp=Stamp(cluster="slotbus", epoch=1, position=1),
            kubernetes=options,
        ),
    )


def worker(manifest: Json) -> Json:
    found: Json = manifest["spec"]["containers"][0]
    return found


def test_a_jobs_options_are_laid_over_the_configuration() -> None:
    options = KubernetesOptions(
        image="mine:2",
        resources=PodResources(requests={"cpu": "2"}),
        labels={"tier": "gold"},
        annotations={"note": "x"},
        node_selector={"zone": None, "arch": "arm64"},
        tolerations=[{"key": "new"}],
        pod_template={"spec": {"schedulerName": "mine", "hostNetwork": True}},
    )
    manifest = pod(FREE, options)
    spec = manifest["spec"]
    assert worker(manifest)["image"] == "mine:2"
    assert worker(manifest)["resources"] == {"requests": {"cpu": "8"}, "limits": {"memory": "4Gi"}}
    assert manifest["metadata"]["labels"].items() >= {"team": "data", "tier": "gold"}.items()
    assert manifest["metadata"]["annotations"]["note"] == "x"
    assert spec["nodeSelector"] == {"disk": "ssd", "arch": "arm64"}
    assert spec["tolerations"] == [{"key": "new"}]
    assert (spec["schedulerName"], spec["hostNetwork"]) == ("mine", True)


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        (KubernetesOptions(labels={"worker_id": "x"}), "labels.worker_id", "reserved"),
        (
            KubernetesOptions(annotations={"slotbus/epoch": "9"}),
            "annotations['slotbus/epoch']",
            "reserved",
        ),
        (
            KubernetesOptions(resources=PodResources(requests={"cpu": "x"})),
            "resources.requests.cpu",
            "not a quantity",
        ),
        (
            KubernetesOptions(resources=PodResources(requests={"memory": "2Gi"})),
            "resources.requests.memory",
            "the limit is 1Gi",
        ),
        (
            KubernetesOptions(resources=PodResources(limits={"memory": "7Ei"})),
            "resources.limits.memory",
            "counted",
        ),
        (
            KubernetesOptions(tolerations=[{"kee": "x"}]),
            "tolerations[0].kee",
            "did you mean key",
        ),
        (
            KubernetesOptions(pod_template={"spec": {"containers": [{"name": "worker", "x": 1}]}}),
            "pod_template.spec.containers[0].x",
            "no field",
        ),
        (
            KubernetesOptions(pod_template={"metadata": {"namespace": "other"}}),
            "pod_template.metadata.namespace",
            "slotbus alone",
        ),
    ],
)
def test_a_jobs_mistake_is_told_with_its_path(
    options: KubernetesOptions, path: str, words: str
) -> None:
    with pytest.raises(Invalid) as caught:
        pod(FREE, options)
    assert caught.value.path == f"$.scheduler_config.kubernetes.{path}"
    assert words in caught.value.message


def test_a_job_sets_only_what_the_operator_allows() -> None:
    options = KubernetesOptions(pod_template={"spec": {"hostNetwork": True}})
    with pytest.raises(Invalid) as caught:
        pod(KubernetesConfig(), options)
    assert caught.value.path == "$.scheduler_config.kubernetes.pod_template"
    closed = KubernetesConfig(jobs_may=())
    with pytest.raises(Invalid) as caught:
        pod(closed, KubernetesOptions(image="x"))
    assert caught.value.path == "$.scheduler_config.kubernetes.image"
    assert worker(pod(closed, KubernetesOptions()))["image"] == "slotbus:latest"
