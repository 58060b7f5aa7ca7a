"""``python -m schedulers.supervisor``: one supervisor process for one state directory.

What lives here: arguments, becoming a daemon, the log file. What may not: serving
(``server``).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import logging.handlers
import os
import select
import sys
from pathlib import Path
from typing import Final

import msgspec

from schedulers.supervisor.api import StateDirBusy
from schedulers.supervisor.core import LocalSupervisor, Settings
from schedulers.supervisor.server import IDLE_EXIT_S, Server

LOG_NAME: Final = "supervisor.log"
LOG_BYTES: Final = 1024 * 1024
EXIT_BUSY: Final = 3
"""Another supervisor holds the directory; the message names it."""

EXIT_FAILED: Final = 1
START_TIMEOUT_S: Final = 30.0
_READY: Final = b"ready"

_log = logging.getLogger("schedulers.supervisor")


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 ended in order (or, detached, serves), EXIT_BUSY, EXIT_FAILED."""
    arguments = _arguments(argv)
    state_dir: Path = arguments.state_dir.absolute()
    try:
        settings = msgspec.json.decode(arguments.settings, type=Settings)
        settings = msgspec.structs.replace(
            settings, workdir=str(Path(settings.workdir).absolute()), subreaper=True
        )
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not arguments.detach:
            return _run(arguments, state_dir, settings, tell=None)
        return _detach(arguments, state_dir, settings)
    except (OSError, msgspec.DecodeError) as error:
        _say(str(error))
        return EXIT_FAILED


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m schedulers.supervisor",
        description="Starts, watches and stops the workers of one node.",
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="held by one supervisor")
    parser.add_argument("--node-id", required=True)
    parser.add_argument("--detach", action="store_true", help="return when it serves")
    parser.add_argument(
        "--idle-exit-s",
        type=float,
        default=IDLE_EXIT_S,
        help="end without workers and clients for so many seconds (%(default)g)",
    )
    parser.add_argument(
        "--settings", default="{}", help="fields of core.Settings, as a JSON object"
    )
    return parser.parse_args(argv)


def _run(
    arguments: argparse.Namespace, state_dir: Path, settings: Settings, tell: int | None
) -> int:
    """``tell``: a descriptor that hears _READY, or why not."""
    handler = logging.handlers.RotatingFileHandler(
        state_dir / LOG_NAME, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)

    def ready() -> None:
        if tell is not None:
            os.write(tell, _READY)
            os.close(tell)

    async def serve() -> None:
        core = LocalSupervisor(state_dir, settings)
        server = Server(core, state_dir, arguments.node_id, arguments.idle_exit_s)
        await server.serve(ready)

    try:
        asyncio.run(serve())
    except StateDirBusy as error:
        _complain(error.message, tell)
        return EXIT_BUSY
    except OSError as error:
        _log.exception("the supervisor ends")
        _complain(str(error), tell)
        return EXIT_FAILED
    return 0


def _detach(arguments: argparse.Namespace, state_dir: Path, settings: Settings) -> int:
    """Forks, waits until the child serves, and returns in the parent."""
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hear)
        os.setsid()
        _leave_terminal(state_dir)
        os._exit(_run(arguments, state_dir, settings, tell))
    os.close(tell)
    heard = _hear(hear)
    os.close(hear)
    if heard == _READY:
        return 0
    if heard is None:
        _say(f"it does not serve within {START_TIMEOUT_S:g} s: see {state_dir / LOG_NAME}")
        return EXIT_FAILED
    _say(heard.decode("utf-8", "replace") or f"it ended at once: see {state_dir / LOG_NAME}")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _hear(fd: int) -> bytes | None:
    """All that the child says: _READY, or its last words; None if it only hangs."""
    heard = b""
    while select.select([fd], [], [], START_TIMEOUT_S)[0]:
        chunk = os.read(fd, 4096)
        heard += chunk
        if not chunk or heard == _READY:
            return heard
    return None


def _leave_terminal(state_dir: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(state_dir / LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)
    os.chdir("/")


def _complain(message: str, tell: int | None) -> None:
    _log.error("%s", message)
    if tell is None:
        _say(message)
    else:
        os.write(tell, message.encode("utf-8", "replace"))


def _say(message: str) -> None:
    sys.stderr.write(f"slotbus supervisor: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
