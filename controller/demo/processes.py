"""The demo's processes: started as a user would start them, found in the process table, ended.

What lives here: the console script's calls, a mark in the environment by which every process of
the demo is known (those that our processes started too), and killing a whole node. What may
not: NATS, and what the processes say to each other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

MARK: Final = "DEMO_MARK"
END_TIMEOUT_S: Final = 5.0
OUTPUT_TAIL: Final = 2_000


class LiveWorker(Struct, frozen=True):
    """A worker as the process table shows it, by its environment."""

    worker_id: str
    node_id: str
    slots: int
    pid: int


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Processes:
    """Everything that runs for one demo. `folder` is its own, and names its processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.mark = folder.name
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def marked(self) -> dict[str, str]:
        """What a process needs in its environment to be known as one of ours."""
        return {MARK: self.mark}

    def start(self, name: str, arguments: list[str], settings: Mapping[str, str]) -> int:
        """Starts `slotbus` with these arguments and `SLOTBUS_CFG_` settings; its output goes to
        a file. Returns the pid. Raises OSError."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLOTBUS_")}
        inherited.pop("NATS_URL", None)
        chosen = {f"SLOTBUS_CFG_{key.upper()}": value for key, value in settings.items()}
        command = [sys.executable, "-P", "-m", "controller.entry", *arguments]
        with self._output(name).open("ab") as output:
            self._started[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**inherited, **chosen, **self.marked()},
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them
            )
        return self._started[name].pid

    def ended(self) -> dict[str, str]:
        """Those of the started ones that have ended unasked, with the last of their output."""
        return {
            name: self._output(name).read_text(errors="replace")[-OUTPUT_TAIL:].strip()
            for name, process in self._started.items()
            if process.poll() is not None
        }

    def all(self) -> list[psutil.Process]:
        """Every process with our mark that runs now, supervisors and workers too."""
        return [
            process for process in psutil.process_iter() if _env(process).get(MARK) == self.mark
        ]

    def workers(self) -> list[LiveWorker]:
        """The workers in the process table. Only the first process of a worker counts."""
        found: dict[str, LiveWorker] = {}
        for process in sorted(self.all(), key=lambda process: process.pid):
            env = _env(process)
            worker_id = env.get("SLOTBUS_WORKER_ID", "")
            if worker_id and worker_id not in found:
                slots = int(env["SLOTBUS_SLOTS"])
                found[worker_id] = LiveWorker(worker_id, env["SLOTBUS_NODE_ID"], slots, process.pid)
        return list(found.values())

    def kill_node(self, node_id: str, state_dir: Path) -> list[int]:
        """What a power cut does: agent, supervisor and workers of a node are gone at once. The
        agent was started under the node's name.

        They are frozen first, so that none can still report another's end. Returns the pids.
        """
        victims = [
            process
            for process in self.all()
            if _env(process).get("SLOTBUS_NODE_ID") == node_id
            or any(str(state_dir) in word for word in _cmdline(process))
        ]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        self._started.pop(node_id).wait(END_TIMEOUT_S)
        return [process.pid for process in victims]

    def end_all(self) -> list[int]:
        """Asks every process to end and kills what does not. Returns the pids that are left,
        which is none."""
        remaining = self.all()
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for process in remaining:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
            psutil.wait_procs(remaining, timeout=END_TIMEOUT_S)
            remaining = self.all()
        for started in self._started.values():
            started.poll()
        return [process.pid for process in remaining]

    def _output(self, name: str) -> Path:
        return self._folder / f"{name}.out"


def _env(process: psutil.Process) -> dict[str, str]:
    """A process's environment; nothing for those that are not ours to see, or gone."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
