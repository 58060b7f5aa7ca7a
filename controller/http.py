"""The operators' pages: metrics for Prometheus, liveness and readiness.

What lives here: the HTTP server and what its four pages say. What may not: commands; those
come over NATS.

``/healthz``: 200 while the program's loop runs, 503 when it has failed; restart it then.
``/readyz``: 200 ``ok`` for the leader and 200 ``standby`` for a controller that waits to
take over: a standby is as it should be, nothing is load-balanced by this page (work comes
over NATS, to the leader alone), and a rolling update that waits for readiness would never
end if standbys were not ready. 503 and the reason for everything else.
``/leaderz``: 200 for the leader, 503 for everybody else, for those who ask that.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import ClassVar, Final, Protocol

import structlog
from aiohttp import web
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST

from controller.config import DEFAULT_HTTP, HTTP_OFF, Address, split_address
from events.errors import SlotbusError

SHUTDOWN_S: Final = 1.0

_log = structlog.get_logger("slotbus.http")


class Phase(StrEnum):
    """Where a controller is in its life."""

    CONNECTING = "connecting"
    STANDBY = "standby"
    STARTING = "starting"
    LEADING = "ok"
    STOPPING = "stopping"


READY: Final = frozenset({Phase.STANDBY, Phase.LEADING})


class Health(Struct):
    """What the pages say. ``failure``: why the program's loop failed, "" while it runs.
    ``unready``: what is in its way outside, which a new start would not change."""

    phase: Phase = Phase.CONNECTING
    failure: str = ""
    unready: str = ""


class HealthView(Protocol):
    """Health as the pages read it, at every request."""

    @property
    def phase(self) -> Phase: ...
    @property
    def failure(self) -> str: ...
    @property
    def unready(self) -> str: ...


class HttpFailed(SlotbusError):
    """The pages can't be served where they were asked for."""

    code: ClassVar[str] = "http_failed"


class Pages:
    """The HTTP server. ``address``: where it listens, once started."""

    def __init__(self, health: HealthView, metrics: Callable[[], Awaitable[bytes]]) -> None:
        self.address: Address | None = None
        self._health = health
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def start(self, http: str | None, *, default: str = DEFAULT_HTTP) -> None:
        """Listens on ``http``; None is ``default`` or, where that is taken, a free port of
        it; ``off`` is nothing. Raises HttpFailed, Invalid."""
        if http == HTTP_OFF:
            return
        wanted = split_address(http or default)
        runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        try:
            await self._listen(runner, wanted, fall_back=http is None)
        except OSError as error:
            await runner.cleanup()
            raise HttpFailed(
                f"the pages can't be served on {wanted.host}:{wanted.port}: "
                f"{error.strerror or error}; say another address, or `off`",
                path="http",
            ) from error
        self._runner = runner
        bound = runner.addresses[0]
        self.address = Address(str(bound[0]), int(bound[1]))

    async def _listen(self, runner: web.AppRunner, wanted: Address, *, fall_back: bool) -> None:
        try:
            await web.TCPSite(runner, wanted.host, wanted.port).start()
        except OSError as error:
            if not fall_back or error.errno != errno.EADDRINUSE:
                raise
            await web.TCPSite(runner, wanted.host, 0).start()
            _log.warning(
                "default port taken, using a free one",
                wanted=wanted.port,
                got=runner.addresses[0][1],
            )

    async def close(self) -> None:
        """Stops listening."""
        runner, self._runner = self._runner, None
        if runner is not None:
            with contextlib.suppress(OSError):
                await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application()
        pages: dict[str, Callable[[web.Request], Awaitable[web.Response]]] = {
            "/metrics": self._serve_metrics,
            "/healthz": self._serve_health,
            "/readyz": self._serve_ready,
            "/leaderz": self._serve_leader,
        }
        for path, page in pages.items():
            app.router.add_get(path, page)
        return app

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        body = await self._metrics()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _serve_health(self, _request: web.Request) -> web.Response:
        failure = self._health.failure
        return _text(failure or "ok", good=not failure)

    async def _serve_ready(self, _request: web.Request) -> web.Response:
        phase, wrong = self._health.phase, self._health.failure or self._health.unready
        return _text(wrong or phase.value, good=phase in READY and not wrong)

    async def _serve_leader(self, _request: web.Request) -> web.Response:
        phase, wrong = self._health.phase, self._health.failure or self._health.unready
        return _text(wrong or phase.value, good=phase is Phase.LEADING and not wrong)


def _text(text: str, *, good: bool) -> web.Response:
    return web.Response(text=f"{text}\n", status=200 if good else 503)
