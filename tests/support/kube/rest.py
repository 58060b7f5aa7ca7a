"""The Kubernetes API in its plainest form: JSON over HTTP, and watches as they come.

What lives here: ``Rest``, the calls the rig makes, and ``Pod``, what the rig reads of a pod.
What may not: retries, and anything of slotbus; what is tested must not test itself.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar

import aiohttp
import msgspec
from msgspec import Struct, field

JsonObject: TypeAlias = dict[str, object]
T = TypeVar("T")

MERGE_PATCH: Final = "application/merge-patch+json"
JSON: Final = "application/json"
REQUEST_TIMEOUT_S: Final = 30.0
WATCH_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Above the largest object: an event is one line."""


class Wire(Struct, rename="camel", kw_only=True):
    """A part of an object of the API; what is not named is not read."""


class Meta(Wire):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None

    @property
    def grace_s(self) -> int:
        """Of a deletion that is under way; 0 if it was forced, or none is."""
        return self.deletion_grace_period_seconds or 0


class Container(Wire):
    name: str
    image: str = ""
    restart_policy: str | None = None


class PodSpec(Wire):
    node_name: str = ""
    scheduler_name: str = ""
    containers: list[Container] = []
    init_containers: list[Container] = []


class PodStatus(Wire):
    phase: str = ""
    reason: str = ""
    message: str = ""
    container_statuses: list[JsonObject] = []
    conditions: list[JsonObject] = []


class Pod(Wire):
    metadata: Meta = field(default_factory=Meta)
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class PodList(Wire):
    metadata: Meta = field(default_factory=Meta)
    items: list[Pod] = []


class Event(Wire):
    """One line of a watch; ``object`` is whatever the type says."""

    type: str
    object: msgspec.Raw

    @property
    def pod(self) -> Pod:
        return msgspec.json.decode(self.object, type=Pod)

    @property
    def refusal(self) -> Refusal:
        return msgspec.json.decode(self.object, type=Refusal)


class Refusal(Wire):
    """The API's ``Status`` object."""

    code: int = 0
    reason: str = ""
    message: str = ""


class Refused(Exception):
    """The API server said no; ``status`` is the HTTP code."""

    def __init__(self, status: int, refusal: Refusal, retry_after: str | None) -> None:
        super().__init__(f"{status} {refusal.reason}: {refusal.message}")
        self.status = status
        self.reason = refusal.reason
        self.message = refusal.message
        self.retry_after = retry_after


class Rest:
    """One user's way to one server. Every call raises Refused, aiohttp.ClientError or
    TimeoutError."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.url = url
        self.token = token
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=True if self._tls is None else self._tls, limit=0)
        self.session = aiohttp.ClientSession(
            self.url, connector=connector, read_bufsize=WATCH_BUFFER_BYTES
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.session.close()

    def _headers(self, content_type: str = JSON) -> dict[str, str]:
        headers = {"Content-Type": content_type, "Accept": JSON}
        return (
            headers if self.token is None else headers | {"Authorization": f"Bearer {self.token}"}
        )

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        """Sends one request and returns the answer's body."""
        async with self.session.request(
            method,
            path,
            params=params,
            data=None if body is None else msgspec.json.encode(body),
            headers=self._headers(content_type),
            timeout=self._timeout,
        ) as answer:
            text = await answer.read()
            _check(answer, text)
            return text

    async def get(self, path: str, **params: str) -> JsonObject:
        return _object(await self.call("GET", path, params=params))

    async def get_as(self, path: str, kind: type[T], **params: str) -> T:
        return msgspec.json.decode(await self.call("GET", path, params=params), type=kind)

    async def post(self, path: str, body: Mapping[str, object], **params: str) -> JsonObject:
        return _object(await self.call("POST", path, body, params=params))

    async def patch(self, path: str, body: Mapping[str, object]) -> JsonObject:
        return _object(await self.call("PATCH", path, body, content_type=MERGE_PATCH))

    async def delete(
        self, path: str, *, grace_s: int | None = None, uid: str | None = None, **params: str
    ) -> JsonObject:
        """Deletes an object, or a collection where ``path`` is one; ``uid`` only that one."""
        options: JsonObject = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        return _object(await self.call("DELETE", path, options, params=params))

    @asynccontextmanager
    async def watch(
        self, path: str, version: str, **params: str
    ) -> AsyncGenerator[AsyncGenerator[Event]]:
        """A watch from a resource version; its events end when the server ends the stream."""
        async with self.session.get(
            path,
            params={"watch": "1", "resourceVersion": version, **params},
            headers=self._headers(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout.total),
        ) as answer:
            if answer.status != 200:
                _check(answer, await answer.read())
            yield _events(answer)


async def _events(answer: aiohttp.ClientResponse) -> AsyncGenerator[Event]:
    while line := await answer.content.readline():
        yield msgspec.json.decode(line, type=Event)


def _check(answer: aiohttp.ClientResponse, text: bytes) -> None:
    if answer.status < 400:
        return
    try:
        refusal = msgspec.json.decode(text, type=Refusal)
    except msgspec.DecodeError:
        refusal = Refusal(message=text.decode(errors="replace"))
    raise Refused(answer.status, refusal, answer.headers.get("Retry-After"))


def _object(text: bytes) -> JsonObject:
    return msgspec.json.decode(text, type=JsonObject)


def pods_path(namespace: str, name: str = "", part: str = "") -> str:
    """``/api/v1/namespaces/N/pods[/NAME[/PART]]``."""
    whole = f"/api/v1/namespaces/{namespace}/pods"
    return whole + (f"/{name}" if name else "") + (f"/{part}" if part else "")
