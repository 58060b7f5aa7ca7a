"""The pod template: the configuration, its overlay, then the job's.

What lives here: the layers in their order, and what none of them may set. What may not:
one worker's pod (``schedulers.kubernetes.manifest``), and how layers merge (``overlay``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from events.errors import Invalid
from events.ids import RESERVED_ENV_PREFIX
from events.messages import KubernetesOptions, PodResources
from schedulers.kubernetes.config import WORKER, KubernetesConfig
from schedulers.kubernetes.identity import ANNOTATION_PREFIX, RESERVED_LABELS
from schedulers.kubernetes.names import is_dns_label, is_label_value, is_qualified_name
from schedulers.kubernetes.overlay import Json, overlay, step_into
from schedulers.kubernetes.resources import check_resources

PROGRAM_VOLUME: Final = "slotbus-program"
PROGRAM_DIR: Final = "/var/run/slotbus/program"
"""Where a program too large for the environment is mounted."""

CONFIGURED_AT: Final = "kubernetes"
OPTIONS_AT: Final = "$.scheduler_config.kubernetes"

_WORKER_AT: Final = "$.spec.containers[0]"


class _Layer(Struct, frozen=True):
    """A patch of the template. Below ``root`` its paths are those of the setting ``at``."""

    patch: Json
    root: str
    at: str


def configured_template(config: KubernetesConfig, at: str = CONFIGURED_AT) -> Json:
    """``metadata`` and ``spec`` of every pod, as far as the operator says them.

    Raises Invalid with the path of the setting, below ``at``.
    """
    return _laid(_ground(config), list(_configured(config, at)), at)


def with_options(template: Json, options: KubernetesOptions, config: KubernetesConfig) -> Json:
    """What a job asks for, laid over the configured template, which stays as it was.

    Raises Invalid with the path of the job's field.
    """
    layers = list(_options(config, options))
    return _laid(template, layers, OPTIONS_AT) if layers else template


def worker_of(template: Json) -> Json:
    """The container that is ours. It is always the first."""
    worker: Json = template["spec"]["containers"][0]
    return worker


def _ground(config: KubernetesConfig) -> Json:
    """What the layers may still change."""
    worker: Json = {"name": WORKER, "image": config.image}
    worker["imagePullPolicy"] = config.image_pull_policy
    spec: Json = {"containers": [worker], "enableServiceLinks": False}
    spec["terminationGracePeriodSeconds"] = config.termination_grace_s
    if config.active_deadline_s is not None:
        spec["activeDeadlineSeconds"] = config.active_deadline_s
    if config.priority_class:
        spec["priorityClassName"] = config.priority_class
    if config.service_account:
        spec["serviceAccountName"] = config.service_account
    else:
        spec["automountServiceAccountToken"] = False
    return {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}


def _configured(config: KubernetesConfig, at: str) -> Iterator[_Layer]:
    secrets = [{"name": name} for name in config.image_pull_secrets]
    yield from _of_metadata({"labels": config.labels, "annotations": config.annotations}, at)
    yield from _of_spec("imagePullSecrets", secrets, f"{at}.image_pull_secrets")
    for name, target in (
        ("volumes", "volumes"),
        ("node_selector", "nodeSelector"),
        ("tolerations", "tolerations"),
        ("affinity", "affinity"),
        ("topology_spread", "topologySpreadConstraints"),
        ("security_context", "securityContext"),
    ):
        yield from _of_spec(target, getattr(config, name), f"{at}.{name}")
    for name, target in (
        ("command", "command"),
        ("args", "args"),
        ("env", "env"),
        ("env_from", "envFrom"),
        ("volume_mounts", "volumeMounts"),
        ("ports", "ports"),
        ("container_security_context", "securityContext"),
    ):
        yield from _of_worker(target, getattr(config, name), f"{at}.{name}")
    yield from _of_resources(config.resources, at)
    if config.pod_template:
        yield _Layer(config.pod_template, "$", f"{at}.pod_template")


def _options(config: KubernetesConfig, options: KubernetesOptions) -> Iterator[_Layer]:
    """What a job asks for. Raises Invalid for what the operator did not allow."""
    given = {name for name in msgspec.structs.asdict(options) if getattr(options, name)}
    given -= set() if options.resources != PodResources() else {"resources"}
    for name in sorted(given - set(config.jobs_may)):
        raise Invalid("this controller lets no job set it (jobs_may)", path=f"{OPTIONS_AT}.{name}")
    metadata = {"labels": options.labels, "annotations": options.annotations}
    yield from _of_metadata(metadata, OPTIONS_AT)
    yield from _of_worker("image", options.image, f"{OPTIONS_AT}.image")
    yield from _of_resources(options.resources, OPTIONS_AT)
    yield from _of_spec("nodeSelector", options.node_selector, f"{OPTIONS_AT}.node_selector")
    yield from _of_spec("tolerations", options.tolerations, f"{OPTIONS_AT}.tolerations")
    if options.pod_template:
        yield _Layer(options.pod_template, "$", f"{OPTIONS_AT}.pod_template")


def _of_metadata(fields: dict[str, Any], at: str) -> Iterator[_Layer]:
    for name, value in fields.items():
        if value:
            yield _Layer({"metadata": {name: value}}, f"$.metadata.{name}", f"{at}.{name}")


def _of_spec(field: str, value: object, at: str) -> Iterator[_Layer]:
    if value:
        yield _Layer({"spec": {field: value}}, f"$.spec.{field}", at)


def _of_worker(field: str, value: object, at: str) -> Iterator[_Layer]:
    if value:
        patch: Json = {"spec": {"containers": [{"name": WORKER, field: value}]}}
        yield _Layer(patch, f"{_WORKER_AT}.{field}", at)


def _of_resources(resources: PodResources, at: str) -> Iterator[_Layer]:
    value = {"requests": resources.requests, "limits": resources.limits}
    yield from _of_worker(
        "resources", {name: part for name, part in value.items() if part}, f"{at}.resources"
    )


def _laid(template: Json, layers: list[_Layer], at: str) -> Json:
    for layer in layers:
        try:
            template = overlay(template, layer.patch, "PodTemplateSpec", "$")
            _refuse_reserved(layer.patch)
        except Invalid as error:
            raise Invalid(error.message, _located([layer], error.path, at)) from error
    try:
        _check_whole(template)
    except Invalid as error:
        raise Invalid(error.message, _located(layers, error.path, at)) from error
    return template


def _located(layers: Iterable[_Layer], path: str, at: str) -> str:
    """The setting that a path of the template came from."""
    for layer in sorted(layers, key=lambda layer: -len(layer.root)):
        if path.startswith(layer.root):
            return layer.at + path.removeprefix(layer.root)
    return at + path.removeprefix("$")


def _refuse_reserved(patch: Json) -> None:
    """A patch that fits the table of fields, and yet is not its author's to make."""
    for name in (patch.get("metadata") or {}).keys() - {"labels", "annotations"}:
        raise Invalid("set by slotbus alone", path=f"$.metadata.{name}")
    for name in _part(patch, "metadata", "labels"):
        if name in RESERVED_LABELS:
            raise Invalid("this label is reserved", path=step_into("$.metadata.labels", name))
    for name in _part(patch, "metadata", "annotations"):
        if name.startswith(ANNOTATION_PREFIX):
            at = step_into("$.metadata.annotations", name)
            raise Invalid(f"annotations below {ANNOTATION_PREFIX} are reserved", path=at)
    spec: Json = patch.get("spec") or {}
    if spec.get("restartPolicy", "Never") != "Never":
        raise Invalid("a worker is never restarted: only Never", path="$.spec.restartPolicy")
    for i, volume in enumerate(spec.get("volumes") or []):
        if volume["name"] == PROGRAM_VOLUME:
            raise Invalid("this name is reserved", path=f"$.spec.volumes[{i}].name")
    for i, container in enumerate(spec.get("initContainers") or []):
        if container["name"] == WORKER:
            raise Invalid("this name is reserved", path=f"$.spec.initContainers[{i}].name")
    for i, container in enumerate(spec.get("containers") or []):
        if container["name"] == WORKER:
            _refuse_reserved_of_worker(container, f"$.spec.containers[{i}]")


def _refuse_reserved_of_worker(worker: Json, at: str) -> None:
    for name in ("restartPolicy", "restartPolicyRules"):
        if worker.get(name):
            raise Invalid("a worker is never restarted", path=f"{at}.{name}")
    for i, variable in enumerate(worker.get("env") or []):
        if variable["name"].startswith(RESERVED_ENV_PREFIX):
            raise Invalid(
                f"names that start with {RESERVED_ENV_PREFIX} are reserved",
                path=f"{at}.env[{i}].name",
            )
    for i, source in enumerate(worker.get("envFrom") or []):
        if (source.get("prefix") or "").startswith(RESERVED_ENV_PREFIX):
            raise Invalid("this prefix is reserved", path=f"{at}.envFrom[{i}].prefix")
    for i, mount in enumerate(worker.get("volumeMounts") or []):
        if mount["mountPath"].rstrip("/") == PROGRAM_DIR or mount.get("name") == PROGRAM_VOLUME:
            raise Invalid("the program is mounted here", path=f"{at}.volumeMounts[{i}]")


def _part(patch: Json, *names: str) -> Json:
    for name in names:
        patch = patch.get(name) or {}
    return patch


def _check_whole(template: Json) -> None:
    """What can be wrong only with all of it together."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    containers = spec.get("containers") or []
    if not containers or containers[0]["name"] != WORKER:
        raise Invalid("the worker's container can't be removed", path="$.spec.containers")
    _check_labels(metadata.get("labels") or {}, "$.metadata.labels")
    _check_labels(spec.get("nodeSelector") or {}, "$.spec.nodeSelector")
    for name in metadata.get("annotations") or {}:
        if not is_qualified_name(name):
            at = step_into("$.metadata.annotations", name)
            raise Invalid(f"{name!r} is no key of an annotation", path=at)
    _check_names(spec)
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    for group in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(group) or []):
            _check_container(container, volumes, f"$.spec.{group}[{i}]")
    check_resources(spec.get("resources") or {}, "$.spec.resources")


def _check_labels(labels: Json, at: str) -> None:
    for name, value in labels.items():
        if not is_qualified_name(name):
            raise Invalid(f"{name!r} is no key of a label", path=step_into(at, name))
        if not is_label_value(value):
            raise Invalid(f"{value!r} is no value of a label", path=step_into(at, name))


def _check_names(spec: Json) -> None:
    seen: set[str] = set()
    for group in ("containers", "initContainers", "volumes"):
        if group == "volumes":
            seen = set()
        for i, one in enumerate(spec.get(group) or []):
            path = f"$.spec.{group}[{i}].name"
            if not is_dns_label(one["name"]):
                raise Invalid(f"{one['name']!r} is no DNS label", path=path)
            if one["name"] in seen:
                raise Invalid(f"{one['name']!r} is the name of a container too", path=path)
            seen.add(one["name"])


def _check_container(container: Json, volumes: set[str], at: str) -> None:
    if not (container.get("image") or "").strip():
        raise Invalid("a container needs an image", path=f"{at}.image")
    for i, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            path = f"{at}.volumeMounts[{i}].name"
            raise Invalid(f"there is no volume {mount.get('name')!r}", path=path)
    for i, variable in enumerate(container.get("env") or []):
        if "=" in variable["name"] or not variable["name"].isprintable():
            raise Invalid(f"{variable['name']!r} is no name", path=f"{at}.env[{i}].name")
        if "value" in variable and "valueFrom" in variable:
            raise Invalid("has both a value and valueFrom", path=f"{at}.env[{i}]")
    check_resources(container.get("resources") or {}, f"{at}.resources")
