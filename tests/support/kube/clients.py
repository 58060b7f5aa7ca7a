"""slotbus's own way to the rig's server.

What lives here: clients, configurations and launchers for tests. What may not: faults.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
from kubernetes_asyncio.client import ApiClient, Configuration

from schedulers.kubernetes.client import KubeApi
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.connecting import api_over
from tests.support.kube.apiserver import KubeServer

CLUSTER = "test"


def client_of(server: KubeServer, token: str | None = None, url: str | None = None) -> ApiClient:
    """A user's client, an administrator's by default; ``url`` goes elsewhere, as to a proxy."""
    made = Configuration(host=url or server.url)
    made.api_key["BearerToken"] = f"Bearer {token or server.admin_token}"
    made.ssl_ca_cert = str(server.ca_file)
    # The certificate that the server makes for itself lacks what strictness asks for.
    made.disable_strict_ssl_verification = True
    made.connection_pool_maxsize = 64
    return ApiClient(made)


@asynccontextmanager
async def api_of(
    server: KubeServer,
    config: KubernetesConfig,
    token: str | None = None,
    url: str | None = None,
) -> AsyncGenerator[KubeApi]:
    client = client_of(server, token, url)
    try:
        yield api_over(client, config)
    finally:
        await client.close()


def config_of(in_namespace: str, **fields: object) -> KubernetesConfig:
    """A configuration for tests: short times, pods that count as launched once they run."""
    usual = KubernetesConfig(
        namespace=in_namespace,
        cluster=CLUSTER,
        image="rig/none",
        launched_when="running",
        termination_grace_s=1,
        owner="none",
    )
    return msgspec.structs.replace(usual, **fields)
