"""The cluster under drill: a nats-server, controllers and agents, each behind a line.

What lives here: starting the programs as users do, finding them and their supervisors in the
process table, signals, and ending all of it. What may not: what happens to them when.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from controller.embedded import EmbeddedServer
from schedulers.supervisor.process_tree import ProcessId, read_process, send_signal
from tests.drills.line import Line
from tests.drills.table import MARK, Member, Picture, look

CONTROLLERS: Final = ("c1", "c2")
NODES: Final = ("n1", "n2", "n3")
NODE_SLOTS: Final = 6
EXPIRY_S: Final = 2.5
HEARTBEAT_S: Final = 0.4
LEASE_S: Final = 2
END_S: Final = 15.0
"""For what is asked to end, before it is killed."""

ENTRY: Final = ("controller.entry",)

_CONTROLLER: Final = {
    "node_expiry_s": EXPIRY_S,
    "heartbeat_s": HEARTBEAT_S,
    "lease_ttl_s": LEASE_S,
    "start_timeout_s": 8.0,
    "launch_timeout_s": 4.0,
    "stop_timeout_s": 8.0,
    "shutdown_timeout_s": 2.0,
    "record_compress": "none",
}
_AGENT: Final = {"request_timeout_s": 1.0, "exit_grace_s": 2.0}


class Programs(Struct, frozen=True):
    """The modules that are run, and their first arguments; a test of the drill itself puts a
    broken one here."""

    controller: tuple[str, ...] = ENTRY
    agent: tuple[str, ...] = ENTRY


class Cluster:
    """Programs by name: controllers ``c1``, ``c2``, agents ``n1`` to ``n3``. ``open`` and
    ``close`` it; lines are made with it."""

    def __init__(self, folder: Path, programs: Programs | None = None) -> None:
        self.folder = folder
        self.mark = folder.name
        self.programs = programs or Programs()
        self.server = EmbeddedServer(folder / "nats")
        self.lines: dict[str, Line] = {}
        self.broken: list[str] = []
        """Programs that have ended though nobody ended them."""
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._locks = {name: asyncio.Lock() for name in (*CONTROLLERS, *NODES, "nats")}

    async def open(self) -> None:
        """Starts all of it; it need not be ready when this returns."""
        await self.server.start()
        for name in (*CONTROLLERS, *NODES):
            self.lines[name] = Line(self.server.port)
            await self.lines[name].open()
            await self.start(name)

    async def close(self) -> list[Member]:
        """Asks every program to end, ends their supervisors; what is left of all the drill's
        processes, which is then killed."""
        for name in (*NODES, *CONTROLLERS):
            await self.end(name)
        picture = await self.look()
        for member in picture.others():
            send_signal(member.id, signal.SIGTERM)
        left = await self._until_none(END_S)
        for member in left:
            send_signal(member.id, signal.SIGKILL)
        for line in self.lines.values():
            await line.close()
        await self.server.stop()
        return left

    async def _until_none(self, within_s: float) -> list[Member]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while (left := (await self.look()).members) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return left

    # --- programs -----------------------------------------------------------------------

    def state_dir(self, name: str) -> Path:
        return self.folder / name

    async def start(self, name: str) -> bool:
        """Starts a program unless it runs; whether it did."""
        async with self._locks[name]:
            if self.runs(name):
                return False
            self._running[name] = await asyncio.to_thread(self._spawn, name)
            return True

    def runs(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def pid(self, name: str) -> ProcessId | None:
        """A program's process; None where it does not run."""
        process = self._running.get(name)
        if process is None or process.poll() is not None:
            return None
        row = read_process(process.pid)
        return None if row is None else row.id

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Whether there was somebody to signal."""
        found = self.pid(name)
        return found is not None and send_signal(found, number)

    async def end(self, name: str) -> int | None:
        """Asks a program to end; its exit code, None where it had to be killed."""
        process = self._running.get(name)
        if process is None:
            return None
        self.signal(name, signal.SIGTERM)
        self.signal(name, signal.SIGCONT)
        try:
            return await asyncio.to_thread(process.wait, END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
            return None

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        kind = "agent" if name in NODES else "controller"
        settings = dict(_AGENT if kind == "agent" else _CONTROLLER)
        if kind == "agent":
            arguments = ["--node-id", name, "--slots", str(NODE_SLOTS)]
        else:
            arguments = ["--scheduler", "node"]
        environ = {
            **_clean(os.environ),
            **{f"SLOTBUS_CFG_{key.upper()}": str(value) for key, value in settings.items()},
            "PYTHONPATH": str(Path(__file__).parents[2]),
            MARK: self.mark,
        }
        if kind == "controller":
            environ["SLOTBUS_CFG_RECORD"] = str(self.folder / "recording" / name)
        module: tuple[str, ...] = getattr(self.programs, kind)
        with (self.folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", *module, kind, *arguments),
                    *("--server", self.lines[name].url, "--http", "off"),
                    *("--state-dir", str(self.state_dir(name))),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                start_new_session=True,
            )

    # --- the table ----------------------------------------------------------------------

    async def look(self) -> Picture:
        return await asyncio.to_thread(look, self.mark)

    async def supervisor(self, node: str) -> ProcessId | None:
        """The process that serves a node's workers, the eldest where there are two."""
        found = (await self.look()).supervisors(str(self.state_dir(node)))
        return min((member.id for member in found), key=lambda id_: id_.start, default=None)

    async def kill_node(self, node: str) -> int:
        """A power cut: agent, supervisor and workers of a node are gone at once. They are
        frozen first, so that none reports another's end. How many processes it were."""
        picture = await self.look()
        agent = self.pid(node)
        state_dir = str(self.state_dir(node))
        victims = [
            member.id
            for member in picture.members
            if member.id == agent or member.supervises == state_dir or member.node_id == node
        ]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for victim in victims:
                send_signal(victim, number)
        return len(victims)

    # --- the server ---------------------------------------------------------------------

    async def restart_server(self, *, kill: bool, away_s: float) -> None:
        """``kill``: as a crash would end it; else in order."""
        async with self._locks["nats"]:
            if kill:
                self.server.kill()
            else:
                await self.server.stop()
            await asyncio.sleep(away_s)
            await self.server.start()

    async def heal(self) -> None:
        """Wakes what is frozen, mends the lines, starts what does not run."""
        for member in (await self.look()).members:
            send_signal(member.id, signal.SIGCONT)
        if self.server.pid is not None:
            os.kill(self.server.pid, signal.SIGCONT)
        for line in self.lines.values():
            line.heal()
        async with self._locks["nats"]:
            if not self.server.running:
                self.server.kill()
                await self.server.start()
        for name in (*CONTROLLERS, *NODES):
            await self.start(name)


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if not k.startswith(("SLOTBUS_", "NATS_"))}
