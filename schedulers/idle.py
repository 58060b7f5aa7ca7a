"""The packaged idle worker: holds its slots, says so, and ends when asked.

What lives here: the program that runs where nobody said what a worker executes, so that a
first try shows something. What may not: imports of slotbus, since it is run by path.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def idle_command() -> list[str]:
    """The argument vector that runs the idle worker with this Python."""
    return [sys.executable, str(Path(__file__).resolve())]


def main() -> int:
    """Waits for TERM or INT. Exit code 0."""
    wanted = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    job, slots = os.environ.get("SLOTBUS_JOB_ID", "?"), os.environ.get("SLOTBUS_SLOTS", "?")
    print(f"idle worker of job {job} with {slots} slots: no worker command was given", flush=True)  # noqa: T201
    signal.sigwait(wanted)
    print("idle worker ends", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
