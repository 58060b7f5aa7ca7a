"""Whose end ends the pods: the controller's own Deployment, found from inside the cluster.

What lives here: the way from our pod up to what manages it. What may not: pods of workers.

The pods must not belong to the controller's pod, which is replaced at every upgrade, but to
what stays: the Deployment (over its ReplicaSet), or whatever else the pod is made by.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from events.errors import Internal
from schedulers.kubernetes.client import ApiRefused, KubeApi, decoded
from schedulers.kubernetes.config import KubernetesConfig, Owner

POD_NAME: Final = "POD_NAME"
POD_NAMESPACE: Final = "POD_NAMESPACE"
"""Variables that the downward API fills, as in ``compose/kubernetes``."""

_STEPS: Final = 3
_KINDS: Final = {"ReplicaSet": ("replicasets", "apps/v1")}
"""What is itself owned by something that stays, and where it is found."""


class _Reference(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class _Meta(Struct, frozen=True, rename="camel"):
    owner_references: list[_Reference] | None = None


class _Owned(Struct, frozen=True):
    metadata: _Meta = _Meta()


async def find_owner(
    config: KubernetesConfig, api: KubeApi, environ: Mapping[str, str] = os.environ
) -> Owner | None:
    """The owner as configured. Raises Internal where our own may not be read, and
    ApiUnreachable."""
    if config.owner == "none":
        return None
    if isinstance(config.owner, Owner):
        return config.owner
    name, namespace = environ.get(POD_NAME, ""), environ.get(POD_NAMESPACE, "")
    if not name or namespace != config.namespace:
        return None
    return await _managing(api, name)


async def _managing(api: KubeApi, pod: str) -> Owner | None:
    kind, name, group = "pods", pod, ""
    found: _Reference | None = None
    for _ in range(_STEPS):
        try:
            owned: _Owned = decoded(await api.get(kind, name, group), _Owned)
        except ApiRefused as refused:
            if refused.passes:
                raise
            raise Internal(
                f"the owner of this controller can't be found: {refused.message}; allow it, or "
                "set owner to none"
            ) from refused
        above = [one for one in owned.metadata.owner_references or [] if one.controller]
        if not above:
            break
        found = above[0]
        if found.kind not in _KINDS:
            break
        (kind, group), name = _KINDS[found.kind], found.name
    if found is None:
        return None
    return Owner(api_version=found.api_version, kind=found.kind, name=found.name, uid=found.uid)
