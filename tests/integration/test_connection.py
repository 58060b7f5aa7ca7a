"""The first connect fails fast and says why; afterwards nothing ends the connection."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller.embedded import EmbeddedServer
from events.connection import Access, ConnectionFailed, Hooks, connect, request
from tests.support.waiting import until


async def why(server: str, **options: float) -> str:
    """Why no connection to ``server`` can be made."""
    with pytest.raises(ConnectionFailed) as failed:
        await connect(server, name="test", connect_timeout_s=options.get("timeout_s", 5.0))
    return failed.value.why


@pytest.fixture
def free_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server that asks for a password, and lets ``limited`` publish on ``ok`` only."""
    users = (
        '{user: full, password: "s3cret"}, '
        '{user: limited, password: "s3cret", permissions: {publish: ["ok"], subscribe: [">"]}}'
    )
    config = f"authorization {{ users: [{users}] }}"
    async with EmbeddedServer(tmp_path / "guarded", config=config) as server:
        yield server


async def test_each_way_to_fail_has_its_name(free_port: int) -> None:
    assert await why(f"nats://127.0.0.1:{free_port}") == "refused"
    assert await why(f"127.0.0.1:{free_port},127.0.0.1:{free_port}") == "refused"
    assert await why("nats://no-such-host.invalid:4222") == "no_such_host"
    assert await why("") == "setup"
    assert await why("nats://") == "setup"


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        assert await why(f"127.0.0.1:{port}", timeout_s=0.3) == "timeout"
        assert time.monotonic() - began < 3.0
        gone.set()


async def test_wrong_and_missing_passwords_are_told_from_a_dead_server(
    guarded: EmbeddedServer,
) -> None:
    assert await why(guarded.url) == "auth"
    wrong = guarded.url.replace("nats://", "nats://full:wrong@")
    with pytest.raises(ConnectionFailed) as failed:
        await connect(wrong, name="test")
    assert failed.value.why == "auth"
    assert "wrong@" not in str(failed.value)
    nc = await connect(guarded.url, name="test", access=Access(user="full", password="s3cret"))
    await nc.close()


async def test_files_that_cannot_be_read_are_said_to_be_the_problem(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    access = Access(tls_ca=str(tmp_path / "no-such-file.pem"))
    with pytest.raises(ConnectionFailed) as failed:
        await connect(nats_server.url, name="test", access=access)
    assert failed.value.why == "setup"


async def test_one_address_that_answers_is_enough(
    nats_server: EmbeddedServer, free_port: int
) -> None:
    nc = await connect(f"127.0.0.1:{free_port},{nats_server.url}", name="test")
    assert nc.is_connected
    await nc.close()


async def test_a_denied_publish_is_heard_of(guarded: EmbeddedServer) -> None:
    denied: list[Exception] = []
    access = Access(user="limited", password="s3cret")
    nc = await connect(guarded.url, name="test", access=access, hooks=Hooks(denied=denied.append))
    await nc.publish("not.ok", b"")
    await until(lambda: bool(denied))
    assert "not.ok" in str(denied[0])
    assert nc.is_connected
    await nc.close()


async def test_a_lost_server_is_waited_for_and_nothing_is_sent_late(
    own_nats_server: EmbeddedServer,
) -> None:
    told: list[str] = []
    hooks = Hooks(disconnected=lambda: told.append("down"), reconnected=lambda: told.append("up"))
    nc = await connect(own_nats_server.url, name="test", hooks=hooks)
    subscription = await nc.subscribe("s")
    await own_nats_server.stop()
    await until(lambda: told == ["down"])
    with pytest.raises(nats.errors.OutboundBufferLimitError):
        await nc.publish("s", b"late")
    await own_nats_server.start()
    await until(lambda: told == ["down", "up"])
    await nc.publish("s", b"now")
    assert (await subscription.next_msg(10)).data == b"now"
    await nc.close()


class Meeting(Client):
    """A client whose answer is set by the test, and waited for as nats-py does."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        return await asyncio.wait_for(self.answer, timeout)


async def test_a_cancellation_that_meets_the_answer_is_not_lost() -> None:
    client = Meeting()
    asking = asyncio.create_task(request(client, "q", b"", 5.0))
    while not client.answer._callbacks:  # noqa: ASYNC110  until it waits
        await asyncio.sleep(0)
    client.answer.set_result(Msg(client, "q"))
    asking.cancel()
    await asyncio.wait({asking}, timeout=5.0)
    assert asking.cancelled()


async def test_a_request_made_while_being_cancelled_is_answered() -> None:
    client = Meeting()
    client.answer.set_result(Msg(client, "q"))

    answers: list[Msg] = []

    async def say_goodbye() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            answers.append(await request(client, "q", b"", 5.0))

    leaving = asyncio.create_task(say_goodbye())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert [answer.subject for answer in answers] == ["q"]
