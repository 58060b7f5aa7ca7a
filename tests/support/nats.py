"""A real nats-server for tests, and connections to it.

What lives here: the fixtures ``nats_server`` (one a test process, shared: keep to your
own ``subjects``), ``own_nats_server`` (yours to stop, kill and start again on the same
port and store), ``subjects`` (a root nobody else uses) and ``nc`` (a connection to
``nats_server``). What may not: anything about logs, leaders or schedulers.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.subjects import Subjects

CONNECT_TIMEOUT_S = 10.0


async def _quiet(error: Exception) -> None:
    """Tests break connections on purpose; what matters reaches them as exceptions."""


async def connect(url: str, *, inbox_prefix: bytes = b"_INBOX") -> Client:
    """Connects as our programs do: bounded at first, then reconnecting for ever and
    keeping nothing back for later."""
    return await asyncio.wait_for(
        nats.connect(
            url,
            error_cb=_quiet,
            pending_size=0,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.05,
            inbox_prefix=inbox_prefix,
        ),
        CONNECT_TIMEOUT_S,
    )


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """A connection for a block of code; closed at its end."""
    client = await connect(url)
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nats_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """One server for all tests of this process. Don't stop it."""
    async with EmbeddedServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest_asyncio.fixture
async def own_nats_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server of this test alone: ``stop()`` or ``kill()`` it and ``start()`` it again."""
    server = EmbeddedServer(tmp_path / "own-nats")
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
def subjects() -> Subjects:
    """A subject root of this test alone; stream and bucket names follow from it."""
    return Subjects(f"t{uuid.uuid4().hex[:12]}")


@pytest_asyncio.fixture
async def nc(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    """A connection of this test to the shared server."""
    async with connected(nats_server.url) as client:
        yield client
