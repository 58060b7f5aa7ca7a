"""The part of a pod that slotbus reads, typed.

What lives here: structs that take a pod's JSON from any version of the API server, which
leaves out, adds or nulls what it likes. What may not: what a pod's state means
(``schedulers.kubernetes.phases``).

Fields are spelled as the API does, unknown ones are ignored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace


class PodMetadata(Struct, kw_only=True, frozen=True, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None


class Claim(Struct, kw_only=True, frozen=True, rename="camel"):
    claim_name: str = ""


class Named(Struct, kw_only=True, frozen=True, rename="camel"):
    """Of a ConfigMap by ``name``, of a Secret by ``secretName``."""

    name: str | None = None
    secret_name: str | None = None
    optional: bool | None = None


class PodVolume(Struct, kw_only=True, frozen=True, rename="camel"):
    """A volume, with what it may have to wait for."""

    name: str
    persistent_volume_claim: Claim | None = None
    config_map: Named | None = None
    secret: Named | None = None


class ContainerResources(Struct, kw_only=True, frozen=True, rename="camel"):
    limits: dict[str, str] | None = None


class PodContainer(Struct, kw_only=True, frozen=True, rename="camel"):
    name: str
    resources: ContainerResources | None = None


class PodSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    node_name: str | None = None
    volumes: list[PodVolume] | None = None
    containers: list[PodContainer] | None = None


class Waiting(Struct, kw_only=True, frozen=True, rename="camel"):
    reason: str | None = None
    message: str | None = None


class Running(Struct, kw_only=True, frozen=True, rename="camel"):
    started_at: datetime | None = None


class Terminated(Struct, kw_only=True, frozen=True, rename="camel"):
    """``signal`` is rarely told; a killed process has exit code 128 plus its number."""

    exit_code: int
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: datetime | None = None


class ContainerState(Struct, kw_only=True, frozen=True, rename="camel"):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    name: str
    state: ContainerState | None = None


class PodCondition(Struct, kw_only=True, frozen=True, rename="camel"):
    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(Struct, kw_only=True, frozen=True, rename="camel"):
    metadata: PodMetadata
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def node(self) -> str:
        """Where it runs; "" before it is bound."""
        return self.spec.node_name or ""

    def unmarked(self) -> Self:
        """Without labels and annotations, a third of it, which are read once."""
        bare = replace(self.metadata, labels=None, annotations=None)
        return replace(self, metadata=bare)

    def condition(self, kind: str) -> PodCondition | None:
        """The condition of this type, if the pod has it."""
        return next((c for c in self.status.conditions or [] if c.type == kind), None)

    def state_of(self, container: str) -> ContainerState:
        """What is told of a container; nothing is told before the kubelet saw it."""
        for status in self.status.container_statuses or []:
            if status.name == container and status.state is not None:
                return status.state
        return ContainerState()
