"""The faults that a proxy can make of a request, as values.

What lives here: what can go wrong, and ready-made refusals in the API server's own words. What
may not: doing it (``faultproxy``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from tests.support.kube.rest import JsonObject

WATCH: Final = "watch"


@dataclass(frozen=True)
class Answer:
    """A refusal instead of the server's answer. With ``carry_out`` the server has done the
    work all the same."""

    status: int
    reason: str
    message: str = "injected"
    retry_after_s: int | None = None
    carry_out: bool = False

    def body(self) -> bytes:
        return msgspec.json.encode(status_object(self.status, self.reason, self.message))


@dataclass(frozen=True)
class Delay:
    """The request waits before it goes on to the server."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """No answer, ever, on a connection that stays open."""

    carry_out: bool = False


@dataclass(frozen=True)
class Drop:
    """The connection breaks without an answer."""

    carry_out: bool = False


@dataclass(frozen=True)
class EndStream:
    """A watch ends properly, after so many events; 0 is the empty answer."""

    after: int = 0


@dataclass(frozen=True)
class CutStream:
    """A watch's connection breaks after so many events, by default within the next one."""

    after: int = 0
    mid_event: bool = True


@dataclass(frozen=True)
class Silence:
    """After so many events a watch says nothing more, on a connection that stays open."""

    after: int = 0


@dataclass(frozen=True)
class ErrorEvent:
    """After so many events a watch gives an ERROR event and ends."""

    code: int = 410
    reason: str = "Expired"
    message: str = "too old resource version: 1 (2)"
    after: int = 0

    def line(self) -> bytes:
        error = status_object(self.code, self.reason, self.message)
        return msgspec.json.encode({"type": "ERROR", "object": error}) + b"\n"


@dataclass(frozen=True)
class Repeat:
    """A watch gives every event ``times`` times."""

    times: int = 2


@dataclass(frozen=True)
class Stale:
    """After each event a watch gives all that it gave before once more, oldest first."""


StreamFault: TypeAlias = EndStream | CutStream | Silence | ErrorEvent | Repeat | Stale
Fault: TypeAlias = Answer | Delay | Hang | Drop | StreamFault


def status_object(code: int, reason: str, message: str) -> JsonObject:
    """The API's Status of a failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def gone() -> Answer:
    return Answer(410, "Expired", "too old resource version: 1 (2)")


def too_many_requests(retry_after_s: int | None = 1) -> Answer:
    message = "too many requests, please try again later"
    return Answer(429, "TooManyRequests", message, retry_after_s)


def server_error(*, carry_out: bool = False) -> Answer:
    return Answer(500, "InternalError", "etcdserver: leader changed", carry_out=carry_out)


def unavailable() -> Answer:
    return Answer(503, "ServiceUnavailable", "apiserver is shutting down")


def gateway_timeout(*, carry_out: bool = True) -> Answer:
    message = "request did not complete within requested timeout"
    return Answer(504, "Timeout", message, carry_out=carry_out)


def quota_exceeded() -> Answer:
    sums = "requested: pods=1, used: pods=2, limited: pods=2"
    return Answer(403, "Forbidden", f'pods "x" is forbidden: exceeded quota: quota, {sums}')


def quota_conflict() -> Answer:
    """What the server says of a create that met another one's change of the quota's status."""
    return Answer(409, "Conflict", "please apply your changes to the latest version")


def unauthorized() -> Answer:
    return Answer(401, "Unauthorized", "Unauthorized")
