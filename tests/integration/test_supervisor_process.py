"""The supervisor process: clients that die, starts that meet, ends in order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from events.states import WorkerState
from schedulers.supervisor import frames
from schedulers.supervisor.__main__ import EXIT_BUSY
from schedulers.supervisor.api import StateDirBusy, SupervisorGone
from schedulers.supervisor.client import SupervisorClient
from schedulers.supervisor.core import LocalSupervisor, Settings
from schedulers.supervisor.server import MAX_CLIENTS
from schedulers.supervisor.starter import ensure_supervisor
from tests.support import workers
from tests.support.supervision import (
    EPOCH,
    NODE,
    Home,
    alive,
    pids_in,
    processes_of,
    spec,
    zombies_of,
)
from tests.support.waiting import until

_CLIENT = """
import asyncio, os, signal, sys
from pathlib import Path
from schedulers.supervisor.server import MAX_CLIENTS
from schedulers.supervisor.starter import ensure_supervisor
from tests.support.supervision import EPOCH, NODE, spec

async def main():
    supervisor = await ensure_supervisor(Path(sys.argv[1]), NODE)
    for name, script in (("a", "sleep 0.3; exit 11"), ("b", "echo on; sleep 600")):
        await supervisor.launch(spec(name, ["sh", "-c", script]), EPOCH)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def run(*command: str, deadline_s: float = 30.0) -> tuple[int, str]:
    """Exit code and error output of a program that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(deadline_s):
        _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_workers_outlive_the_client_and_the_next_hears_true_exit_codes(
    process_home: Home,
) -> None:
    code, _ = await run(sys.executable, "-c", _CLIENT, str(process_home.state_dir))
    assert code == -signal.SIGKILL
    end = await process_home.end("a")
    assert (end.state, end.exit_code) == (WorkerState.FAILED, 11)
    row = await process_home.row("b")
    assert row is not None
    assert row.state is WorkerState.RUNNING
    assert b"on" in (await process_home.printed("b", b"on")).data


async def test_many_that_want_one_get_the_same(process_home: Home) -> None:
    clients = await asyncio.gather(
        *(ensure_supervisor(process_home.state_dir, NODE) for _ in range(4))
    )
    assert {client.welcome.pid for client in clients} == process_home.servers
    for client in clients:
        await client.close()


async def test_many_that_start_one_at_once_get_the_same(tmp_path: Path) -> None:
    clients = await asyncio.gather(*(ensure_supervisor(tmp_path, NODE) for _ in range(4)))
    assert len({client.welcome.pid for client in clients}) == 1
    for client in clients[1:]:
        await client.close()
    await clients[0].shutdown(1)
    assert not alive(clients[0].welcome.pid)


async def test_a_second_start_says_who_is_there(process_home: Home) -> None:
    (pid,) = process_home.servers
    code, said = await run(
        sys.executable,
        "-m",
        "schedulers.supervisor",
        f"--state-dir={process_home.state_dir}",
        f"--node-id={NODE}",
    )
    assert code == EXIT_BUSY
    assert f"another supervisor (pid {pid}) holds {process_home.state_dir}" in said


async def test_the_supervisor_of_another_node_is_not_taken(process_home: Home) -> None:
    with pytest.raises(StateDirBusy, match="for node node-1, not node-2"):
        await ensure_supervisor(process_home.state_dir, "node-2")


async def test_a_directory_held_in_another_program_is_busy(local_home: Home) -> None:
    with pytest.raises(StateDirBusy, match=f"pid {os.getpid()}"):
        await ensure_supervisor(local_home.state_dir, NODE)
    with pytest.raises(StateDirBusy):
        LocalSupervisor(local_home.state_dir).open()


async def test_a_directory_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SupervisorGone, match="Not a directory"):
        await ensure_supervisor(tmp_path / "file" / "state", NODE)


async def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    state_dir = tmp_path / ("long-" * 20) / ("longer-" * 20)
    client = await ensure_supervisor(state_dir, NODE)
    await client.launch(spec("w", workers.exits(4)), EPOCH)
    async with asyncio.timeout(10):
        async for row in client.reports():
            assert row.exit_code == 4
            break
    await client.shutdown(1)


async def test_the_socket_is_the_owners_alone(process_home: Home) -> None:
    mode = (process_home.state_dir / frames.SOCKET_NAME).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(process_home.state_dir.stat().st_mode) == 0o700


async def test_it_has_left_the_terminal(process_home: Home) -> None:
    (pid,) = process_home.servers
    assert os.getsid(pid) not in (os.getsid(0), 0)
    fds = Path(f"/proc/{pid}/fd")
    targets = {number: str((fds / str(number)).readlink()) for number in (0, 1, 2)}
    log = str(process_home.state_dir / "supervisor.log")
    assert targets == {0: os.devnull, 1: log, 2: log}
    os.kill(pid, signal.SIGHUP)
    assert (await process_home.supervisor.inventory(0)).workers == []


async def test_term_stops_the_workers_and_ends_it(process_home: Home) -> None:
    pid = await process_home.launch("w", workers.ignores_term())
    await process_home.printed("w", b"ready")
    (server,) = process_home.servers
    os.kill(server, signal.SIGTERM)
    end = await process_home.end("w")
    assert "stopped with its supervisor" in end.reason
    await until(lambda: not alive(server))
    assert not alive(pid)
    with pytest.raises(SupervisorGone):
        await process_home.supervisor.inventory(0)


async def test_without_workers_and_clients_it_ends(tmp_path: Path) -> None:
    client = await ensure_supervisor(tmp_path, NODE, idle_exit_s=0.3)
    pid = client.welcome.pid
    await client.launch(spec("w", workers.exits(9)), EPOCH)
    await client.close()
    await until(lambda: not alive(pid))
    again = await ensure_supervisor(tmp_path, NODE)
    async with asyncio.timeout(10):
        async for row in again.reports():
            assert (row.worker_id, row.exit_code) == ("w", 9)
            break
    await again.shutdown(1)


async def test_a_client_that_talks_nonsense_hurts_nobody(process_home: Home) -> None:
    for nonsense in (b"\xff" * 64, b"\0\0\0\2{]", b"\0\0\0\1", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(process_home.state_dir / frames.SOCKET_NAME))
            peer.sendall(nonsense)
    assert (await process_home.supervisor.inventory(0)).workers == []


async def test_who_does_not_answer_is_gone(process_home: Home) -> None:
    (server,) = process_home.servers
    client = await SupervisorClient.connect(process_home.state_dir, timeout_s=0.3)
    os.kill(server, signal.SIGSTOP)
    try:
        with pytest.raises(SupervisorGone, match="does not answer"):
            await client.inventory(0)
    finally:
        os.kill(server, signal.SIGCONT)
    await client.close()
    with pytest.raises(SupervisorGone, match="closed"):
        await client.renew()


async def test_ended_orphans_do_not_stay_as_zombies(process_home: Home) -> None:
    (server,) = process_home.servers
    await process_home.launch(
        "w", workers.shell("for i in 1 2 3 4 5; do (setsid sleep 0.05 &); done; echo on; sleep 600")
    )
    await process_home.printed("w", b"on")
    (mark,) = process_home.marks
    await until(lambda: len(processes_of(mark)) == 2)
    await until(lambda: not zombies_of(server))
    row = await process_home.row("w")
    assert row is not None
    assert row.state is WorkerState.RUNNING


async def test_an_orphan_without_a_name_ends_with_the_last_worker(
    process_home: Home, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    away = workers.forks_away(pids, stays=False, clears=True, orphaned=True)
    await process_home.launch("w", away)
    await process_home.end("w")
    await until(lambda: not alive(pids_in(pids)[0]))


async def test_settings_reach_the_process(tmp_path: Path) -> None:
    workdir = tmp_path / "elsewhere"
    workdir.mkdir()
    client = await ensure_supervisor(tmp_path / "state", NODE, Settings(workdir=str(workdir)))
    await client.launch(spec("w", workers.shell("touch here")), EPOCH)
    await until(lambda: (workdir / "here").exists())
    await client.shutdown(1)


async def test_too_many_clients_are_turned_away(process_home: Home) -> None:
    paths = str(process_home.state_dir / frames.SOCKET_NAME)
    peers = [socket.socket(socket.AF_UNIX) for _ in range(MAX_CLIENTS)]
    for peer in peers:
        peer.connect(paths)
    with pytest.raises(SupervisorGone):
        await SupervisorClient.connect(process_home.state_dir)
    assert (await process_home.supervisor.inventory(0)).workers == []
    for peer in peers:
        peer.close()

    async def connect() -> None:
        client = await SupervisorClient.connect(process_home.state_dir)
        await client.close()

    async with asyncio.timeout(10):
        while True:
            try:
                await connect()
            except SupervisorGone:
                await asyncio.sleep(0.01)
            else:
                break
