"""The pod of one worker, as the Kubernetes API takes it.

What lives here: ``pod_manifest`` and what goes with it, pure. What may not: sending it.

Set last, over whatever the layers say: the names, the labels, ``SLOTBUS_*``, the restart
policy. Kubernetes replaces ``$(NAME)`` in values and words; what comes from a job is
written so that the worker gets it as it was sent.
"""

from __future__ import annotations

from typing import Final

import msgspec

from events.codec import canonical, content_hash
from events.errors import Invalid
from events.ids import ENV_NAME_RE, MAX_INLINE_PROGRAM_BYTES, RESERVED_ENV_PREFIX
from events.messages import KubernetesOptions, StartPipelineReq
from events.traffic import Stamp
from schedulers.kubernetes.config import KubernetesConfig, Owner
from schedulers.kubernetes.identity import (
    CLUSTER,
    JOB_ID,
    RUN_ID,
    Identity,
    Marks,
    run_marks,
    worker_marks,
)
from schedulers.kubernetes.names import (
    is_label_value,
    is_qualified_name,
    pod_name,
    program_name,
)
from schedulers.kubernetes.overlay import Json, step_into
from schedulers.kubernetes.resources import times_slots
from schedulers.kubernetes.template import (
    CONFIGURED_AT,
    OPTIONS_AT,
    PROGRAM_DIR,
    PROGRAM_VOLUME,
    configured_template,
    with_options,
    worker_of,
)
from schedulers.launcher import Assignment

PROGRAM_KEY: Final = "program.json"
PROGRAM_PATH: Final = f"{PROGRAM_DIR}/{PROGRAM_KEY}"
NODE: Final = "kubernetes"
"""What a pod's worker sees as its node where nobody placed it: a cluster is one node."""


def pod_manifest(
    config: KubernetesConfig,
    assignment: Assignment,
    owner: Owner | None = None,
    *,
    template: Json | None = None,
) -> Json:
    """The pod of an assignment. ``owner``: whose end ends it, in the pods' namespace.

    ``template``: ``configured_template`` of this configuration, where it is at hand; parts
    of it are then parts of the result, which is to be read only.
    Raises Invalid with the path of the setting or of the job's field.
    """
    if assignment.stop_after_s is not None:
        raise Invalid(
            "nobody stops a pod when its controller is silent: not on Kubernetes",
            path="$.scheduler_config.stop_after_s",
        )
    if template is None:
        template = configured_template(config)
    template = with_options(template, assignment.kubernetes, config)
    spec = dict(template["spec"])
    spec["restartPolicy"] = "Never"
    if assignment.selector:
        spec["nodeSelector"] = _selected(assignment.selector, spec.get("nodeSelector") or {})
    if assignment.spread == "even":
        given = spec.get("topologySpreadConstraints") or []
        spec["topologySpreadConstraints"] = [*given, _evenly(config, assignment)]
    spec["containers"] = [_worker(config, assignment, template), *spec["containers"][1:]]
    if in_config_map(assignment):
        name = program_name(config.cluster, assignment.job_id, assignment.run_id)
        volume: Json = {"name": PROGRAM_VOLUME, "configMap": {"name": name}}
        spec["volumes"] = [*spec.get("volumes", []), volume]
    metadata = _metadata(config, assignment, template, owner)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def program_manifest(
    config: KubernetesConfig, assignment: Assignment, owner: Owner | None = None
) -> Json:
    """The ConfigMap with a run's program, for all its pods."""
    marks = run_marks(config.cluster, assignment.job_id, assignment.run_id, assignment.name)
    name = program_name(config.cluster, assignment.job_id, assignment.run_id)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _named(config, name, marks, owner),
        "immutable": True,
        "data": {PROGRAM_KEY: bytes(assignment.program).decode()},
    }


def in_config_map(assignment: Assignment) -> bool:
    """Whether the program is too large for the environment."""
    return len(bytes(assignment.program)) > MAX_INLINE_PROGRAM_BYTES


def planned(
    config: KubernetesConfig,
    request: StartPipelineReq,
    number: int,
    slots: int,
    *,
    command: list[str] | None = None,
    default_command: list[str] | None = None,
) -> Assignment:
    """The assignment that a start would make for its worker ``number``, to look at: worker
    id and stamp are none that a controller would give. Raises Invalid."""
    if slots < 1:
        raise Invalid("a pod has at least one slot", path="$.slots")
    return Assignment(
        worker_id=f"w-{number}",
        job_id=request.job_id,
        run_id=request.run_id or 1,
        slots=slots,
        node_id=NODE,
        incarnation=NODE,
        epoch=0,
        stamp=Stamp(cluster=config.cluster, epoch=0, position=0),
        command=command or [],
        default_command=default_command or [],
        env_vars=request.env_vars,
        program=msgspec.Raw(canonical(request.program)),
        name=request.name or request.job_id,
        hash=request.hash or content_hash(request.program),
        wasm_path=request.wasm_path,
        selector=request.scheduler_config.selector,
        spread=request.scheduler_config.spread,
        stop_after_s=request.scheduler_config.stop_after_s,
        kubernetes=request.scheduler_config.kubernetes,
    )


def shares(config: KubernetesConfig, slots: int) -> list[int]:
    """The slots of each pod of a start: full ones, then the rest. Raises Invalid."""
    pods = -(-slots // config.task_slots)
    if pods > config.max_pods_per_job:
        raise Invalid(
            f"{slots} slots are {pods} pods of {config.task_slots}; "
            f"{config.max_pods_per_job} are allowed",
            path="$.slots",
        )
    full, rest = divmod(slots, config.task_slots)
    return [config.task_slots] * full + ([rest] if rest else [])


def check_request(
    config: KubernetesConfig, request: StartPipelineReq, *, template: Json | None = None
) -> None:
    """What a start asks for can be made into pods. Raises Invalid."""
    first = planned(config, request, 0, shares(config, request.slots)[0])
    pod_manifest(config, first, template=template)


def identity_of(config: KubernetesConfig, assignment: Assignment) -> Identity:
    """Who the pod of an assignment is."""
    return Identity(
        worker_id=assignment.worker_id,
        job_id=assignment.job_id,
        run_id=assignment.run_id,
        name=assignment.name,
        slots=assignment.slots,
        stamp=msgspec.structs.replace(assignment.stamp, cluster=config.cluster),
    )


def _metadata(
    config: KubernetesConfig, assignment: Assignment, template: Json, owner: Owner | None
) -> Json:
    marks = worker_marks(identity_of(config, assignment))
    given = template.get("metadata") or {}
    all_of_it = Marks(
        {**given.get("labels", {}), **marks.labels},
        {**given.get("annotations", {}), **marks.annotations},
    )
    name = pod_name(config.cluster, assignment.job_id, assignment.run_id, assignment.worker_id)
    return _named(config, name, all_of_it, owner)


def _named(config: KubernetesConfig, name: str, marks: Marks, owner: Owner | None) -> Json:
    metadata: Json = {"name": name, "namespace": config.namespace, "labels": marks.labels}
    if marks.annotations:
        metadata["annotations"] = marks.annotations
    if owner is not None and owner.namespace in ("", config.namespace):
        metadata["ownerReferences"] = [
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
                "controller": False,
                "blockOwnerDeletion": False,
            }
        ]
    return metadata


def _selected(selector: dict[str, str], configured: Json) -> Json:
    """The nodes that both allow. Raises Invalid where there can be none."""
    for name, value in selector.items():
        path = step_into("$.scheduler_config.selector", name)
        if not is_qualified_name(name) or not is_label_value(value):
            raise Invalid(f"{name}={value} is no label of a node", path=path)
        if configured.get(name, value) != value:
            raise Invalid(f"pods here go to nodes with {name}={configured[name]}", path=path)
    return {**configured, **selector}


def _evenly(config: KubernetesConfig, assignment: Assignment) -> Json:
    """As even as the cluster can: a start does not fail for it."""
    labels = run_marks(config.cluster, assignment.job_id, assignment.run_id, "").labels
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {k: labels[k] for k in (CLUSTER, JOB_ID, RUN_ID)}},
    }


def _worker(config: KubernetesConfig, assignment: Assignment, template: Json) -> Json:
    """The container that is ours, with all that makes it this worker."""
    worker = dict(worker_of(template))
    worker["env"] = _env(assignment, worker.get("env", []))
    if assignment.command:
        worker["command"] = [literal(word) for word in assignment.command]
        worker.pop("args", None)
    elif "command" not in worker and assignment.default_command:
        worker["command"] = [literal(word) for word in assignment.default_command]
    if config.resource_mode == "per-slot" and "resources" in worker:
        at = CONFIGURED_AT if assignment.kubernetes == KubernetesOptions() else OPTIONS_AT
        worker["resources"] = times_slots(worker["resources"], assignment.slots, f"{at}.resources")
    if in_config_map(assignment):
        mount: Json = {"name": PROGRAM_VOLUME, "mountPath": PROGRAM_DIR, "readOnly": True}
        worker["volumeMounts"] = [*worker.get("volumeMounts", []), mount]
    return worker


def _env(assignment: Assignment, configured: list[Json]) -> list[Json]:
    """First what slotbus says, so that later values can refer to it by ``$(NAME)``; then
    the configured variables, those of the job in place of any of the same name."""
    for name in assignment.env_vars:
        path = f"$.env_vars[{name!r}]"
        if not ENV_NAME_RE.match(name):
            raise Invalid(f"{name!r} is not a name of letters, digits and _", path=path)
        if name.startswith(RESERVED_ENV_PREFIX):
            raise Invalid(f"names that start with {RESERVED_ENV_PREFIX} are reserved", path=path)
    ours = {**_told(assignment), **assignment.env_vars}
    return [
        *({"name": name, "value": literal(value)} for name, value in _told(assignment).items()),
        *(variable for variable in configured if variable["name"] not in ours),
        *({"name": name, "value": literal(value)} for name, value in assignment.env_vars.items()),
    ]


def _told(assignment: Assignment) -> dict[str, str]:
    told = {
        "SLOTBUS_JOB_ID": assignment.job_id,
        "SLOTBUS_RUN_ID": str(assignment.run_id),
        "SLOTBUS_WORKER_ID": assignment.worker_id,
        "SLOTBUS_SLOTS": str(assignment.slots),
        "SLOTBUS_NODE_ID": assignment.node_id,
        "SLOTBUS_NAME": assignment.name,
        "SLOTBUS_HASH": assignment.hash,
        "SLOTBUS_WASM_PATH": assignment.wasm_path,
    }
    if in_config_map(assignment):
        told["SLOTBUS_PROGRAM_FILE"] = PROGRAM_PATH
    else:
        told["SLOTBUS_PROGRAM"] = bytes(assignment.program).decode()
    return told


def literal(text: str) -> str:
    """Written so that Kubernetes, which reads ``$(NAME)`` and ``$$``, leaves it as it is."""
    return text.replace("$", "$$")
