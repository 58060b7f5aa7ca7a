"""The operators' pages over HTTP."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from msgspec import Struct

from controller import http as http_module
from controller.http import Health, HttpFailed, Pages, Phase
from controller.metrics import Metrics
from controller.outbox import InboxStats
from events.errors import Invalid


class Page(Struct, frozen=True):
    status: int
    text: str


class Browser:
    def __init__(self, session: aiohttp.ClientSession, pages: Pages) -> None:
        self._session = session
        self._pages = pages

    async def get(self, path: str) -> Page:
        at = self._pages.address
        assert at is not None
        async with self._session.get(f"http://{at.host}:{at.port}{path}") as response:
            return Page(response.status, (await response.text()).strip())


async def nothing() -> bytes:
    return b""


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
async def pages(health: Health) -> AsyncIterator[Pages]:
    made = Pages(health, Metrics(InboxStats(), version="1.2.3").render)
    await made.start("127.0.0.1:0")
    yield made
    await made.close()


@pytest.fixture
async def browser(pages: Pages) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession() as session:
        yield Browser(session, pages)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.mark.parametrize(
    ("phase", "ready", "leads"),
    [
        (Phase.CONNECTING, 503, 503),
        (Phase.STANDBY, 200, 503),
        (Phase.STARTING, 503, 503),
        (Phase.LEADING, 200, 200),
        (Phase.STOPPING, 503, 503),
    ],
)
async def test_readiness_says_the_phase(
    browser: Browser, health: Health, phase: Phase, ready: int, leads: int
) -> None:
    health.phase = phase
    assert await browser.get("/readyz") == Page(ready, phase.value)
    assert await browser.get("/leaderz") == Page(leads, phase.value)
    assert await browser.get("/healthz") == Page(200, "ok")


async def test_a_failed_loop_is_neither_alive_nor_ready(browser: Browser, health: Health) -> None:
    health.phase, health.failure = Phase.LEADING, "the loop failed"
    assert await browser.get("/healthz") == Page(503, "the loop failed")
    assert (await browser.get("/readyz")).status == 503
    assert (await browser.get("/leaderz")).status == 503


async def test_metrics_are_there_and_nothing_else_is(browser: Browser) -> None:
    page = await browser.get("/metrics")
    assert page.status == 200
    assert "slotbus_leader 0.0" in page.text
    assert 'slotbus_build_info{version="1.2.3"} 1.0' in page.text
    assert (await browser.get("/")).status == 404


async def test_a_taken_address_that_was_asked_for_is_an_error(taken: int, health: Health) -> None:
    pages = Pages(health, nothing)
    with pytest.raises(HttpFailed, match=str(taken)):
        await pages.start(f"127.0.0.1:{taken}")
    assert pages.address is None


async def test_a_taken_default_address_means_a_free_port(
    taken: int, health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "DEFAULT_HTTP", f"127.0.0.1:{taken}")
    pages = Pages(health, nothing)
    await pages.start(None)
    try:
        assert pages.address is not None
        assert pages.address.port not in (0, taken)
    finally:
        await pages.close()


async def test_off_listens_nowhere_and_nonsense_is_refused(health: Health) -> None:
    pages = Pages(health, nothing)
    await pages.start("off")
    assert pages.address is None
    await pages.close()
    with pytest.raises(Invalid):
        await pages.start("nowhere")
