"""Finding the supervisor process of a state directory, or starting it.

What lives here: ``ensure_supervisor``. What may not: what is said to it (``client``).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Final

import msgspec

import schedulers
from events.ids import RESERVED_ENV_PREFIX
from schedulers.supervisor.__main__ import EXIT_BUSY
from schedulers.supervisor.api import StateDirBusy, SupervisorGone
from schedulers.supervisor.client import TIMEOUT_S, SupervisorClient
from schedulers.supervisor.core import Settings
from schedulers.supervisor.server import IDLE_EXIT_S

START_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.05
MAX_REFUSALS: Final = 12
"""Refusals taken before the directory is called busy: some five seconds."""

_CONFIG_PREFIX: Final = "SLOTBUS_CFG_"


async def ensure_supervisor(
    state_dir: Path,
    node_id: str,
    settings: Settings | None = None,
    *,
    idle_exit_s: float = IDLE_EXIT_S,
    start_timeout_s: float = START_TIMEOUT_S,
    timeout_s: float = TIMEOUT_S,
) -> SupervisorClient:
    """A client of the supervisor that serves ``state_dir``; one is started if none does.

    It outlives this program. ``settings`` only matter if it is started now; without a
    ``workdir`` its workers start in the current directory. ``timeout_s``: the client's.
    Raises SupervisorGone if it can't be started within ``start_timeout_s``, StateDirBusy if
    the directory is held by one without a socket (in another program), or is another node's.
    """
    command = _command(state_dir, node_id, settings or Settings(), idle_exit_s)
    try:
        async with asyncio.timeout(start_timeout_s):
            client = await _connect_or_start(state_dir, command, timeout_s)
    except TimeoutError as error:
        raise SupervisorGone(
            f"the supervisor of {state_dir} did not start within {start_timeout_s:g} s"
        ) from error
    if client.welcome.node_id != node_id:
        other = client.welcome.node_id
        await client.close()
        raise StateDirBusy(f"{state_dir} is in use for node {other}, not {node_id}")
    return client


async def _connect_or_start(
    state_dir: Path, command: list[str], timeout_s: float
) -> SupervisorClient:
    refusals = 0
    while True:
        try:
            return await SupervisorClient.connect(state_dir, timeout_s)
        except SupervisorGone as error:
            why = error.message
            busy = await _start(command)
        if busy:
            # Somebody else has just started it, or it is about to end; both pass.
            refusals += 1
            if refusals > MAX_REFUSALS:
                raise StateDirBusy(f"{busy}; {why}")
            await asyncio.sleep(RETRY_S * refusals * random.uniform(0.5, 1.5))


async def _start(command: list[str]) -> str:
    """Returns when it serves, or with the words of why the directory is busy.

    Raises SupervisorGone when it could not start.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )
    try:
        _, said = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
        raise
    words = said.decode("utf-8", "replace").strip()
    if process.returncode == EXIT_BUSY:
        return words
    if process.returncode != 0:
        raise SupervisorGone(words or f"{command} could not start")
    return ""


def _command(state_dir: Path, node_id: str, settings: Settings, idle_exit_s: float) -> list[str]:
    return [
        sys.executable,
        "-P",  # a person's folder must not shadow our modules
        "-m",
        "schedulers.supervisor",
        f"--state-dir={state_dir.absolute()}",
        f"--node-id={node_id}",
        f"--settings={msgspec.json.encode(settings).decode()}",
        f"--idle-exit-s={idle_exit_s}",
        "--detach",
    ]


def _environment() -> dict[str, str]:
    """Ours, without what a worker is told (we may be one), able to import what we import."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(RESERVED_ENV_PREFIX) or name.startswith(_CONFIG_PREFIX)
    }
    root = str(Path(schedulers.__file__).parents[1])
    own["PYTHONPATH"] = os.pathsep.join(filter(None, (root, own.get("PYTHONPATH", ""))))
    return own
