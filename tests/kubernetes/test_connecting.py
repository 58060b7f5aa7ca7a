"""The way to a cluster: whose token is used, and that a new one is found."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import kubernetes_asyncio.client
import pytest
import structlog

from events.errors import Invalid
from schedulers import leading
from schedulers.kubernetes.client import ApiRefused
from schedulers.kubernetes.connecting import connect, own_namespace
from schedulers.kubernetes.identity import workers
from schedulers.kubernetes.scheduler import KubernetesScheduler
from schedulers.launcher import Unreachable
from tests.support.kube.apiserver import KubeServer, make_service_account, make_token
from tests.support.kube.clients import CLUSTER, client_of, config_of
from tests.support.kube.faultproxy import FaultProxy
from tests.support.kube.program import free_port
from tests.support.kube.rest import JsonObject, Rest

KUBECONFIG = """\
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
READS: JsonObject = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}


async def test_a_rotated_token_is_read_again_inside_a_cluster(
    kube_server: KubeServer, kube: Rest, kube_namespace: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # The certificate that the server makes for itself lacks what newer Pythons ask for.
    usual = kubernetes_asyncio.client.Configuration

    def lenient() -> object:
        made = usual()
        made.disable_strict_ssl_verification = True
        return made

    monkeypatch.setattr(kubernetes_asyncio.client, "Configuration", lenient)
    (tmp_path / "ca.crt").write_bytes(kube_server.ca_file.read_bytes())
    (tmp_path / "token").write_text("long expired")
    (tmp_path / "namespace").write_text(f"{kube_namespace}\n")
    nowhere = {"KUBECONFIG": str(tmp_path / "none")}
    assert own_namespace(nowhere, tmp_path) == kube_namespace
    assert own_namespace({"POD_NAMESPACE": "here"}, tmp_path) == "here"
    environ = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(kube_server.port),
    }
    api = await connect(config_of(kube_namespace), environ, tmp_path)
    try:
        ask = partial(api.list, "pods", workers(CLUSTER))
        with pytest.raises(ApiRefused) as refused:
            await ask()
        assert refused.value.code == 401
        assert refused.value.passes
        token = await make_service_account(kube, kube_namespace, "reader", [READS])
        (tmp_path / "token").write_text(token)
        assert (await ask()).items == []
    finally:
        await api.close()


async def test_a_rotated_token_is_read_again_from_a_kubeconfig(
    kube_server: KubeServer, kube: Rest, kube_namespace: str, fault_proxy: FaultProxy,
    tmp_path: Path,
) -> None:  # fmt: skip
    first = await make_service_account(kube, kube_namespace, "reader", [READS])
    second = await make_token(kube, kube_namespace, "reader")
    file = tmp_path / "kubeconfig"
    kube_server.kubeconfig(file, first, kube_namespace, fault_proxy.url)
    api = await connect(config_of(kube_namespace), {"KUBECONFIG": str(file)}, tmp_path)
    try:
        assert (await api.list("pods", workers(CLUSTER))).items == []
        fault_proxy.valid_tokens = {second}
        kube_server.kubeconfig(file, second, kube_namespace, fault_proxy.url)
        with pytest.raises(ApiRefused):
            await api.list("pods", workers(CLUSTER))
        assert (await api.list("pods", workers(CLUSTER))).items == []
    finally:
        await api.close()


async def test_no_cluster_at_all_is_named(tmp_path: Path) -> None:
    environ = {"KUBECONFIG": str(tmp_path / "none")}
    with pytest.raises(Invalid, match="not in a cluster") as refused:
        await connect(config_of("x"), environ, tmp_path)
    assert refused.value.path == "kubernetes"


@pytest.mark.parametrize(
    ("text", "namespace"),
    [
        (None, ""),
        ("", ""),
        ("{", ""),
        ("[]", ""),
        ("contexts: []", ""),
        (KUBECONFIG, ""),
        (KUBECONFIG.replace("user: u", "user: u, namespace: team"), "team"),
        (KUBECONFIG.replace("current-context: x", "current-context: y"), ""),
    ],
)
def test_outside_of_a_cluster_the_kubeconfig_says_which_namespace(
    text: str | None, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    assert own_namespace({"KUBECONFIG": str(file)}, tmp_path) == namespace
    inside = {"KUBECONFIG": str(file), "POD_NAMESPACE": "here"}
    assert own_namespace(inside, tmp_path) == "here"


@pytest.mark.parametrize(
    ("token", "words"),
    [("nobody's", "Unauthorized"), (None, "the API server can't be reached: ")],
    ids=["a token of nobody", "a port where nobody listens"],
)
async def test_a_way_that_leads_nowhere_is_told_at_once_and_once(
    token: str | None, words: str, kube_server: KubeServer, kube_namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(leading, "LOCAL_WAIT_S", 2.0)
    url = None if token else f"https://127.0.0.1:{free_port()}"
    client = client_of(kube_server, token, url)
    scheduler = KubernetesScheduler(config_of(kube_namespace), client=client)
    with structlog.testing.capture_logs() as logs, pytest.raises(Unreachable, match=words):
        await scheduler.start()
    told = [line["cause"] for line in logs if line["event"].startswith("the pods can't be listed")]
    assert len(told) == len(set(told)) >= 1
    assert words in told[0]
    await scheduler.close()
    await client.close()
