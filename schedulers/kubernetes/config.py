"""Configuration of the Kubernetes backend: all that an operator can say.

What lives here: the typed configuration. What may not: reading and checking it
(``schedulers.kubernetes.reading``), and pods (``schedulers.kubernetes.template``).

Names of settings are slotbus's (``image_pull_policy``); what lies inside lists and objects
of Kubernetes is spelled as in its manifests (``mountPath``).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from events.ids import MAX_WORKERS_A_RUN, Capacity, Id
from events.messages import PodResources

WORKER: Final = "worker"
"""The name of the container that is ours, in every pod."""

PodNumber = Annotated[int, Meta(ge=1, le=MAX_WORKERS_A_RUN)]
PodSlots = Annotated[int, Meta(ge=1, le=1_000_000)]
WholeSeconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
JobOption = Literal[
    "image",
    "resources",
    "labels",
    "annotations",
    "node_selector",
    "tolerations",
    "pod_template",
]
JOBS_MAY: Final[tuple[JobOption, ...]] = (
    "image",
    "resources",
    "labels",
    "annotations",
    "node_selector",
    "tolerations",
)
"""Not ``pod_template``: it can mount a node's disk or run as root on it."""


class Owner(Struct, kw_only=True, frozen=True):
    """The object whose end ends the pods; ``namespace`` empty means that of the pods."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


class KubernetesConfig(Struct, kw_only=True, frozen=True):
    """How pods are made and watched. Times are in seconds.

    ``cluster`` tells our pods from those of other controllers in the namespace.
    ``resource_mode``: whether ``resources`` are for one slot (then multiplied by a pod's
    slots, whatever the resource) or for a pod. ``task_slots``: the most slots of a pod.
    ``image_pull_secrets``: names. ``command`` and ``args`` empty: the image's own; as in
    any manifest, ``$(NAME)`` in them is replaced by Kubernetes, also with ``SLOTBUS_*``.
    ``security_context`` is the pod's, ``container_security_context`` the worker's.
    ``service_account`` empty: the namespace's default, and its token is not mounted.
    ``termination_grace_s``: between TERM and KILL when somebody else deletes a pod.
    ``pod_template``: ``metadata`` and ``spec`` of a pod, laid over all of the above; init
    containers and sidecars come from here, the container that is ours is ``worker``.
    ``owner``: ``auto`` finds the controller's own Deployment where it runs in the
    namespace of the pods. ``active_deadline_s``: a pod that ran longer has failed (None:
    no limit). ``start_deadline_s``: a pod that does not run by then has failed to start.
    ``launched_when``: what a start waits for. ``capacity``: slots of all pods together, which
    the cluster may or may not have. ``requests_per_s``, ``burst`` and ``requests_at_once``:
    how hard the API server may be pressed; watches don't count. ``watch_timeout_s``: a watch
    is renewed after so long, and given up as dead a little later. ``view_age_s``: when nothing
    was heard of the pods for so long, the controller is not ready. ``jobs_may``: the fields
    of a job's ``scheduler_config.kubernetes`` that are obeyed; others are refused.
    """

    namespace: str = "default"
    cluster: Id = "slotbus"
    resource_mode: Literal["per-slot", "per-pod"] = "per-slot"
    task_slots: PodSlots = 16
    max_pods_per_job: PodNumber = MAX_WORKERS_A_RUN
    image: str = "slotbus:latest"
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: list[str] = []
    command: list[str] = []
    args: list[str] = []
    resources: PodResources = PodResources()
    env: list[dict[str, object]] = []
    env_from: list[dict[str, object]] = []
    volumes: list[dict[str, object]] = []
    volume_mounts: list[dict[str, object]] = []
    ports: list[dict[str, object]] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, object]] = []
    affinity: dict[str, object] = {}
    topology_spread: list[dict[str, object]] = []
    priority_class: str = ""
    service_account: str = ""
    security_context: dict[str, object] = {}
    container_security_context: dict[str, object] = {}
    termination_grace_s: WholeSeconds = 10
    pod_template: dict[str, object] = {}
    owner: Literal["auto", "none"] | Owner = "auto"
    active_deadline_s: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    start_deadline_s: Annotated[float, Meta(gt=0, le=86_400)] = 300.0
    launched_when: Literal["created", "running"] = "created"
    capacity: Capacity = 1_000_000
    requests_per_s: Annotated[float, Meta(gt=0, le=10_000)] = 200.0
    burst: Annotated[int, Meta(ge=1, le=10_000)] = 400
    requests_at_once: Annotated[int, Meta(ge=1, le=1_000)] = 32
    watch_timeout_s: Annotated[float, Meta(ge=1, le=3_600)] = 120.0
    view_age_s: Annotated[float, Meta(gt=0, le=86_400)] = 180.0
    jobs_may: tuple[JobOption, ...] = JOBS_MAY
