"""The Kubernetes API as slotbus uses it: JSON in and out, every refusal a value.

What lives here: ``KubeApi``, requests and streams over a client that somebody else configured
(tokens, certificates, proxies). What may not: retries, and what the answers mean.

``ApiClient`` is kubernetes_asyncio's, whose connections and credentials are used. Its typed
models are passed by: they are slow, and refuse what is newer than they are. So is its HTTP
session, which looks for proxies and a netrc file anew, in threads, at every request.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from msgspec import Raw, Struct

from schedulers.kubernetes.overlay import Json
from schedulers.kubernetes.pacing import Pacer
from schedulers.kubernetes.pods import Pod

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

REQUEST_TIMEOUT_S: Final = 10.0
"""For the server to answer; it gives up itself a little earlier, so that what was not
answered is not carried out much later."""

CONNECT_TIMEOUT_S: Final = 5.0
PAGE: Final = 1_000
"""Pods in one answer to a list."""

NOBODY: Final = (502, 503, 504)
"""What is answered in place of a server that is not there, or not ready."""

READ_BUFFER_BYTES: Final = 2 * 1024 * 1024
"""An event of a watch is one line, and as long as an object may be."""

UNAUTHORIZED, NOT_FOUND, CONFLICT, GONE, TOO_MANY = 401, 404, 409, 410, 429
UNREACHED: Final = (400, GONE, 504)
"""What a server answers that is asked for a version it no longer has, or never had."""

_RETRY_AFTER_S: Final = 1.0
"""Where a 429 does not say."""


class Status(Struct, frozen=True):
    """The API's word for what went wrong."""

    code: int = 0
    reason: str = ""
    message: str = ""


class ApiRefused(Exception):
    """The server said no. ``code``: of HTTP; ``reason``: one word of the API's."""

    def __init__(self, code: int, reason: str, message: str, retry_after_s: float | None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message or f"the API server answered {code}"
        self.retry_after_s = retry_after_s

    @property
    def passes(self) -> bool:
        """Whether the same request may be answered otherwise some time later."""
        transient = (UNAUTHORIZED, 408, TOO_MANY)
        conflict = self.code == CONFLICT and self.reason != "AlreadyExists"
        return self.code in transient or self.code >= 500 or conflict


class ApiUnreachable(Exception):
    """No answer: nothing is known about whether it was done."""


class ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(Struct, frozen=True, rename="camel"):
    metadata: ListMeta = ListMeta()
    items: list[Raw] | None = None


class Listed(Struct, frozen=True):
    """Objects as they were at ``version``."""

    version: str
    items: list[Raw]


class WatchEvent(Struct, frozen=True):
    """One line of a watch."""

    type: str
    object: Raw


class Asked(Struct, frozen=True):
    """Of requests: what was asked (create, get, delete, list, watch), and the answer's HTTP
    status, "none" where there was none."""

    verb: str
    code: str


class KubeApi:
    """One server, one namespace. Methods raise ApiRefused and ApiUnreachable.

    ``refresh()`` is called when the server does not know us any more: the token may be newer
    in its file. ``own``: whether ``close`` closes the client.
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        pacer: Pacer,
        *,
        own: bool = False,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.namespace = namespace
        self.asked: Counter[Asked] = Counter()
        self.pacer = pacer
        self._client = client
        self._own = own
        self._refresh = refresh
        self._host = (client.configuration.host or "").rstrip("/")
        self._proxy = client.configuration.proxy or _proxy_of(self._host)
        self._session = aiohttp.ClientSession(
            connector=client.rest_client.pool_manager.connector,
            connector_owner=False,
            read_bufsize=READ_BUFFER_BYTES,
        )

    # --- objects ------------------------------------------------------------------------

    async def create(self, kind: str, manifest: Callable[[], Json]) -> bytes:
        """Creates an object of this kind ("pods"), which is made when its turn has come; the
        answer is the object."""
        return await self._paced("create", "POST", self._path(kind), body=manifest)

    async def get(self, kind: str, name: str, group: str = "") -> bytes:
        return await self._paced("get", "GET", self._path(kind, name, group))

    async def delete(
        self, kind: str, name: str, *, grace_s: int | None = None, uid: str = ""
    ) -> bytes:
        """Deletes exactly the object with this uid, where one is given; 409 is another."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        return await self._paced("delete", "DELETE", self._path(kind, name), body=lambda: options)

    async def list(self, kind: str, selector: str) -> Listed:
        """All of them, page by page, as they were when it began."""
        items: list[Raw] = []
        params = {"labelSelector": selector, "limit": str(PAGE)}
        while True:
            body = await self._paced("list", "GET", self._path(kind), params=params)
            page = decoded(body, _RawList)
            items += page.items or []
            if not page.metadata.continue_:
                return Listed(page.metadata.resource_version, items)
            params["continue"] = page.metadata.continue_

    async def knows(self, kind: str, selector: str, version: str) -> bool:
        """Whether a version of this kind is in the server's past. ``selector``: of objects that
        are listed for it, best none."""
        params = {
            "labelSelector": selector,
            "resourceVersion": version,
            "resourceVersionMatch": "NotOlderThan",
        }
        try:
            await self._paced("list", "GET", self._path(kind), params=params)
        except ApiRefused as refused:
            if refused.code in UNREACHED:
                return False
            raise
        return True

    @asynccontextmanager
    async def watch(
        self, kind: str, selector: str, version: str, timeout_s: float, silence_s: float
    ) -> AsyncGenerator[AsyncGenerator[WatchEvent]]:
        """Events after ``version``, until the server ends the stream, as it is asked to after
        ``timeout_s``; silence for ``silence_s`` is ApiUnreachable."""
        params = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(timeout_s))),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s
        )
        async with (
            self._answer("watch", "GET", self._path(kind), params, None, timeout) as answer,
            aclosing(_events(answer)) as events,
        ):
            yield events

    async def close(self) -> None:
        await self._session.close()
        if self._own:
            await self._client.close()

    # --- requests -----------------------------------------------------------------------

    def _path(self, kind: str, name: str = "", group: str = "") -> str:
        base = f"/apis/{group}" if group else "/api/v1"
        path = f"{base}/namespaces/{self.namespace}/{kind}"
        return f"{path}/{name}" if name else path

    async def _paced(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Callable[[], Json] | None = None,
    ) -> bytes:
        given = dict(params or {})
        if method != "GET":
            given["timeout"] = f"{REQUEST_TIMEOUT_S:g}s"
        timeout = aiohttp.ClientTimeout(
            total=REQUEST_TIMEOUT_S + 2.0, sock_connect=CONNECT_TIMEOUT_S
        )
        async with self.pacer.turn():
            data = msgspec.json.encode(body()) if body is not None else None
            async with self._answer(verb, method, path, given, data, timeout) as answer:
                try:
                    return await answer.read()
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    raise ApiUnreachable(f"the answer broke off: {told(error)}") from error

    @asynccontextmanager
    async def _answer(
        self,
        verb: str,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: bytes | None,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """An answer that is no refusal."""
        answer = await self._asked(verb, method, path, params, body, timeout)
        try:
            if answer.status >= 400:
                raise await self._refusal(answer)
            yield answer
        finally:
            answer.release() if answer.content.at_eof() else answer.close()

    async def _asked(
        self,
        verb: str,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: bytes | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The head of the answer, whatever it is. Raises ApiUnreachable."""
        settings = self._client.configuration
        headers = {**self._client.default_headers, "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        code = "none"
        try:
            await self._client.update_params_for_auth(headers, [], ["BearerToken"])
            answer = await self._session.request(
                method,
                f"{self._host}{path}",
                params=params,
                data=body,
                headers=headers,
                timeout=timeout,
                proxy=self._proxy,
                proxy_headers=settings.proxy_headers,
                server_hostname=settings.tls_server_name,
            )
            code = str(answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
            self.pacer.unanswered(told(error))
            raise ApiUnreachable(f"the API server can't be reached: {told(error)}") from error
        finally:
            self.asked[Asked(verb, code)] += 1
        if answer.status in NOBODY:
            self.pacer.unanswered(f"it answers {answer.status}")
        else:
            self.pacer.answered()
        return answer

    async def _refusal(self, answer: aiohttp.ClientResponse) -> ApiRefused:
        try:
            text = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            text = b""
        try:
            status = msgspec.json.decode(text, type=Status)
        except msgspec.DecodeError:  # a proxy in between
            status = Status(message=text[:200].decode(errors="replace"))
        retry_after_s = _seconds(answer.headers.get("Retry-After"))
        if answer.status == TOO_MANY:
            self.pacer.hold_off(_RETRY_AFTER_S if retry_after_s is None else retry_after_s)
        if answer.status == UNAUTHORIZED and self._refresh is not None:
            await self._refresh()
        return ApiRefused(answer.status, status.reason, status.message, retry_after_s)


def decoded(body: bytes | Raw, kind: type[Any]) -> Any:
    """What a server sent, as a struct. Raises ApiUnreachable for what it can't mean."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiUnreachable(f"the API server's answer can't be read: {error}") from error


def pod_of(body: bytes | Raw) -> Pod:
    """A pod as the server sent it. Raises ApiUnreachable."""
    pod: Pod = decoded(body, Pod)
    return pod


def _proxy_of(url: str) -> str | None:
    """What the environment says about the way to this server (HTTPS_PROXY, NO_PROXY)."""
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def told(error: BaseException) -> str:
    """An error in words, also where it has none itself."""
    return str(error) or type(error).__name__


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:  # a date: then the usual wait
        return None


async def _events(answer: aiohttp.ClientResponse) -> AsyncGenerator[WatchEvent]:
    while True:
        try:
            line = await answer.content.readline()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiUnreachable(f"the watch broke off: {told(error)}") from error
        if not line:
            return
        if not line.endswith(b"\n"):
            raise ApiUnreachable("the watch broke off within an event")
        yield decoded(line, WatchEvent)
