"""The way to a cluster: from inside one, or by a kubeconfig.

What lives here: finding host, certificates and tokens, and reading tokens again, since they
are replaced while we run, and whether the way leads there. What may not: other requests.

kubernetes_asyncio is imported here, when a connection is made: it takes a second.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from events.errors import Invalid
from schedulers.kubernetes.client import ApiRefused, ApiUnreachable, KubeApi
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.identity import nobody, workers
from schedulers.kubernetes.owner import POD_NAMESPACE
from schedulers.kubernetes.pacing import Pacer

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's own credentials."""

_HOST: Final = "KUBERNETES_SERVICE_HOST"
PODS: Final = "pods"
_SPARE_CONNECTIONS: Final = 8
"""For watches, which don't count among the requests."""


def own_namespace(environ: Mapping[str, str] = os.environ, account_dir: Path = ACCOUNT_DIR) -> str:
    """The namespace that this program runs in, or that its kubeconfig is set to; "" for
    neither."""
    try:
        inside = environ.get(POD_NAMESPACE) or (account_dir / "namespace").read_text().strip()
    except OSError:
        inside = ""
    return inside or _chosen_namespace(_kubeconfig(environ))


def _chosen_namespace(file: str) -> str:
    """Of the kubeconfig's current context. What is wrong with it is told when it is used."""
    if not any(Path(part).exists() for part in file.split(os.pathsep)):
        return ""
    from kubernetes_asyncio.config import ConfigException, list_kube_config_contexts
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        _, chosen = list_kube_config_contexts(config_file=file)
        return str(((chosen or {}).get("context") or {}).get("namespace") or "")
    except (ConfigException, YAMLError, OSError, TypeError, AttributeError):
        return ""


def _kubeconfig(environ: Mapping[str, str]) -> str:
    return environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def api_over(client: ApiClient, config: KubernetesConfig) -> KubeApi:
    """The API over a client that is somebody else's to configure and to close."""
    return KubeApi(client, config.namespace, _pacer(config))


async def connect(
    config: KubernetesConfig,
    environ: Mapping[str, str] = os.environ,
    account_dir: Path = ACCOUNT_DIR,
) -> KubeApi:
    """In a cluster by its service account, else by ``KUBECONFIG`` or ~/.kube/config.

    Raises Invalid where there is neither, or it can't be read.
    """
    if environ.get(_HOST) and (account_dir / "token").exists():
        return _in_cluster(config, environ, account_dir)
    return await _by_kubeconfig(config, environ)


async def obstacle(config: KubernetesConfig, environ: Mapping[str, str] = os.environ) -> str:
    """What keeps us from the pods at the moment, "" for nothing: one list that finds none."""
    try:
        api = await connect(config, environ)
    except Invalid as error:
        return error.message
    try:
        await api.list(PODS, nobody(workers(config.cluster)))
    except ApiUnreachable as error:
        return f"the API server can't be reached: {error}"
    except ApiRefused as refused:
        return f"the pods can't be listed: {refused.message}"
    finally:
        await api.close()
    return ""


def _in_cluster(config: KubernetesConfig, environ: Mapping[str, str], folder: Path) -> KubeApi:
    from kubernetes_asyncio.client import ApiClient, Configuration
    from kubernetes_asyncio.config import ConfigException
    from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader

    made = Configuration()
    loader = InClusterConfigLoader(
        str(folder / "token"), str(folder / "ca.crt"), environ=dict(environ)
    )
    try:
        loader.load_and_set(made)
    except (ConfigException, OSError) as error:
        raise Invalid(f"no way to this cluster's API: {error}", path="kubernetes") from error

    async def refresh() -> None:
        loader.token_expires_at = datetime.datetime.min  # noqa: DTZ901  as the loader has it

    made.connection_pool_maxsize = config.requests_at_once + _SPARE_CONNECTIONS
    return KubeApi(ApiClient(made), config.namespace, _pacer(config), own=True, refresh=refresh)


async def _by_kubeconfig(config: KubernetesConfig, environ: Mapping[str, str]) -> KubeApi:
    from kubernetes_asyncio.client import ApiClient, Configuration
    from kubernetes_asyncio.config import ConfigException, load_kube_config

    file = _kubeconfig(environ)
    made = Configuration()
    try:
        await load_kube_config(config_file=file, client_configuration=made, persist_config=False)
    except (ConfigException, OSError) as error:
        raise Invalid(
            f"not in a cluster, and no kubeconfig that can be used: {error}", path="kubernetes"
        ) from error

    async def refresh() -> None:
        again = Configuration()
        try:
            await load_kube_config(
                config_file=file, client_configuration=again, persist_config=False
            )
        except (ConfigException, OSError):
            return  # being rewritten: the next refusal asks again
        made.api_key = again.api_key

    made.connection_pool_maxsize = config.requests_at_once + _SPARE_CONNECTIONS
    return KubeApi(ApiClient(made), config.namespace, _pacer(config), own=True, refresh=refresh)


def _pacer(config: KubernetesConfig) -> Pacer:
    return Pacer(config.requests_per_s, config.burst, config.requests_at_once)
