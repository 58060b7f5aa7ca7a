"""A real kube-apiserver on a real etcd, on loopback, with users of different rights.

What lives here: ``KubeServer``, which is started, killed and started again on the same port
and data, and what a test asks an administrator for: namespaces, service accounts, quotas.
What may not: nodes and pods (``kubelet``), faults on the way (``faultproxy``).

There is no controller manager: nothing collects garbage, expires or evicts by itself, and
deleted namespaces stay.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec

from tests.support.kube.build import Binaries
from tests.support.kube.program import LOCALHOST, Program, ProgramFailed, free_port, new_signing_key
from tests.support.kube.rest import JsonObject, Refused, Rest, Wire

START_TIMEOUT_S: Final = 50.0
START_TRIES: Final = 3
"""A free port may be somebody else's by the time it is bound."""

POLL_S: Final = 0.05
ISSUER: Final = "https://kubernetes.default.svc"


class _TokenStatus(Wire):
    token: str


class _TokenRequest(Wire):
    status: _TokenStatus


class KubeServer:
    """Everything below ``folder``. ``flags`` are added to the API server's own.

    Holds nothing of an event loop, so one server serves the loops of many tests. Methods
    raise ProgramFailed where a program misbehaves.
    """

    def __init__(self, folder: Path, binaries: Binaries, *, flags: Sequence[str] = ()) -> None:
        self.folder = folder
        self.binaries = binaries
        self.port = 0
        self.admin_token = secrets.token_hex(16)
        self.stranger_token = secrets.token_hex(16)
        """Of a user whom the server knows and who may do nothing."""
        self._flags = list(flags)
        self._etcd_port = 0
        self.etcd = Program("etcd", folder / "etcd.log")
        self.api = Program("kube-apiserver", folder / "kube-apiserver.log")
        self.start_s = 0.0
        """How long the last start took."""

    @property
    def url(self) -> str:
        return f"https://{LOCALHOST}:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        # The certificate that the server makes for itself lacks what strictness asks for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def admin(self) -> Rest:
        """An administrator; use it as a context manager."""
        return self.user(self.admin_token)

    def user(self, token: str | None) -> Rest:
        return Rest(self.url, token, self.tls())

    def kubeconfig(self, path: Path, token: str, namespace: str, url: str | None = None) -> Path:
        """Writes a kubeconfig for one user; ``url`` goes elsewhere, as to a proxy."""
        cluster: JsonObject = {"server": url or self.url}
        if url is None or url.startswith("https"):
            cluster["certificate-authority"] = str(self.ca_file)
        context = {"cluster": "rig", "user": "rig", "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "rig", "cluster": cluster}],
            "users": [{"name": "rig", "user": {"token": token}}],
            "contexts": [{"name": "rig", "context": context}],
            "current-context": "rig",
        }
        path.write_text(json.dumps(config))  # JSON is YAML
        return path

    # --- its life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts what does not run; returns when the server says it is ready."""
        began = time.monotonic()
        self._prepare()
        for tries_left in reversed(range(START_TRIES)):
            first = self.port == 0
            try:
                await self._start_etcd()
                await self._start_api()
                break
            except ProgramFailed:
                if not first or not tries_left:
                    raise
                self.kill()
                self.etcd.kill()
                self.port = self._etcd_port = 0
        self.start_s = time.monotonic() - began

    async def stop(self) -> None:
        """Ends both; the data stays."""
        await self.api.stop()
        await self.etcd.stop()

    def kill(self) -> None:
        """The API server crashes; ``start`` brings it back on the same port."""
        self.api.kill()

    async def restart(self) -> None:
        """The API server crashes and comes back with empty caches."""
        self.kill()
        await self.start()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._kill_all()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Nobody needs the data any more, so neither is asked to be tidy.
        self._kill_all()

    def _kill_all(self) -> None:
        self.api.kill()
        self.etcd.kill()

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "service-account.pem"
        if not key.exists():
            key.write_text(new_signing_key())
            (self.folder / "tokens.csv").write_text(
                f'{self.admin_token},admin,1,"system:masters"\n{self.stranger_token},stranger,2\n'
            )

    async def _start_etcd(self) -> None:
        if self.etcd.running:
            return
        self._etcd_port = self._etcd_port or free_port()
        url = f"http://{LOCALHOST}:{self._etcd_port}"
        self.etcd.spawn(
            [
                str(self.binaries.etcd),
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={url}",
                f"--advertise-client-urls={url}",
                # It has no peers; the port is whatever is free.
                f"--listen-peer-urls=http://{LOCALHOST}:0",
                "--unsafe-no-fsync",
                "--logger=zap",
                "--log-level=warn",
            ]
        )
        async with aiohttp.ClientSession(url) as session:
            await self._until_ready(self.etcd, session, "/health")

    async def _start_api(self) -> None:
        if self.api.running:
            return
        self.port = self.port or free_port()
        key = self.folder / "service-account.pem"
        self.api.spawn(
            [
                str(self.binaries.kube_apiserver),
                f"--etcd-servers=http://{LOCALHOST}:{self._etcd_port}",
                f"--cert-dir={self.folder / 'certificates'}",
                f"--bind-address={LOCALHOST}",
                f"--advertise-address={LOCALHOST}",
                f"--secure-port={self.port}",
                "--service-cluster-ip-range=10.0.0.0/24",
                f"--service-account-issuer={ISSUER}",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--disable-admission-plugins=ServiceAccount",
                "--endpoint-reconciler-type=none",
                "--allow-privileged=true",
                "--profiling=false",
                *self._flags,
            ]
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.ca_file.exists():
            self.api.check()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"kube-apiserver made no certificate; {self.api.tail()}")
            await asyncio.sleep(POLL_S)
        async with self.admin() as admin:
            await self._until_ready(self.api, admin.session, "/readyz")

    async def _until_ready(
        self, program: Program, session: aiohttp.ClientSession, path: str
    ) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        headers = {"Authorization": f"Bearer {self.admin_token}"}
        said = "nothing"
        while time.monotonic() < deadline:
            program.check()
            try:
                async with session.get(
                    path, headers=headers, timeout=aiohttp.ClientTimeout(total=5)
                ) as answer:
                    if answer.status == 200:
                        return
                    said = await answer.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                said = str(error)
            await asyncio.sleep(POLL_S)
        raise ProgramFailed(
            f"{program.name} was not ready in {START_TIMEOUT_S:g} s, it said {said}; "
            f"{program.tail()}"
        )


# --- what an administrator does ---------------------------------------------------------------


async def make_namespace(admin: Rest, prefix: str = "t") -> str:
    """A namespace that nobody else uses; returns its name."""
    name = f"{prefix}-{secrets.token_hex(5)}"
    await admin.post("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


async def make_service_account(
    admin: Rest, namespace: str, name: str, rules: Sequence[JsonObject]
) -> str:
    """A service account with exactly these RBAC rules in its namespace; returns a token."""
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    await admin.post(
        f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}}
    )
    await admin.post(f"{roles}/roles", {"metadata": {"name": name}, "rules": list(rules)})
    await admin.post(
        f"{roles}/rolebindings",
        {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )
    return await make_token(admin, namespace, name)


async def make_token(admin: Rest, namespace: str, name: str, lifetime_s: int = 3600) -> str:
    """Another token of a service account (600 s at least); it ends with the account too."""
    body: JsonObject = {"spec": {"expirationSeconds": lifetime_s, "audiences": [ISSUER]}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    answer = await admin.call("POST", path, body)
    return msgspec.json.decode(answer, type=_TokenRequest).status.token


async def set_quota(admin: Rest, namespace: str, **hard: str) -> None:
    """A quota that the server enforces at once; ``set_quota(..., pods="2")``. What is freed
    is not counted back: that is the work of a controller that isn't there."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    spec: JsonObject = {"hard": hard}
    try:
        await admin.post(path, {"metadata": {"name": "quota"}, "spec": spec})
    except Refused as error:
        if error.status != 409:
            raise
        await admin.patch(f"{path}/quota", {"spec": spec})
    used = dict.fromkeys(hard, "0")
    await admin.patch(f"{path}/quota/status", {"status": {"hard": hard, "used": used}})
