"""Little programs for workers in tests, most of them a shell's one line.

What lives here: argument vectors. Each program writes what a test waits for to its output
or to a file named by the test. What may not: starting them.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def python(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", script, *arguments]


def exits(code: int) -> list[str]:
    return shell(f"exit {code}")


def dies_by(signal_name: str) -> list[str]:
    return shell(f"kill -{signal_name} $$")


def sleeps() -> list[str]:
    """Ends by TERM at once, by itself never."""
    return ["sleep", "600"]


def ends_in_order(code: int) -> list[str]:
    """Prints ``ready``; on TERM it prints ``bye`` and ends with this code."""
    return shell(f"trap 'echo bye; exit {code}' TERM; echo ready; while :; do sleep 0.02; done")


def ignores_term() -> list[str]:
    """Prints ``ready`` when it is deaf to TERM."""
    return shell("trap '' TERM; echo ready; while :; do sleep 600; done")


def has_children_of_children(pids: Path) -> list[str]:
    """Three generations in one group, deaf to TERM; every pid is a line of ``pids``."""
    file = shlex.quote(str(pids))
    inner = f"trap \"\" TERM; echo $$ >> {file}; sh -c 'echo $$ >> {file}; sleep 600; :'; :"
    return shell(f"trap '' TERM; echo $$ >> {file}; sh -c {shlex.quote(inner)}; :")


_FORK_AWAY = """
import os, sys, time
path, clear, stay = sys.argv[1], sys.argv[2], sys.argv[3]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\\n")
        if clear == "clear":
            os.execve("/bin/sleep", ["sleep", "600"], {})
        time.sleep(600)
    if clear == "clear" and stay != "orphan":
        time.sleep(600)
    os._exit(0)
while len(open(path, "a+").read() or open(path).read()) == 0:
    time.sleep(0.005)
print("ready", flush=True)
if stay == "stay":
    time.sleep(600)
"""


def forks_away(
    pids: Path, *, stays: bool, clears: bool = False, orphaned: bool = False
) -> list[str]:
    """A daemon's double fork: its grandchild has its own session and no parent of ours.

    Prints ``ready`` when the grandchild's pid is in ``pids``. ``stays``: the main process
    sleeps on, else it ends with 0. ``clears``: the grandchild loses its environment too,
    under a parent that left the session as well (``orphaned``: without that parent).
    """
    stay = "orphan" if orphaned else "stay" if stays else "leave"
    return python(_FORK_AWAY, str(pids), "clear" if clears else "keep", stay)


_FORK_CHAIN = """
import os, sys, time
while True:
    pid = os.fork()
    if pid:
        if len(sys.argv) > 1:
            sys.argv.pop()
            print("ready", flush=True)
            time.sleep(600)
        os._exit(0)
    os.setsid()
"""


def flees() -> list[str]:
    """A descendant that forks on and on, each time into a session of its own."""
    return python(_FORK_CHAIN, "first")


def prints(lines: int, width: int = 100) -> list[str]:
    """So many lines of so many bytes each, newline included, numbered from 0; then waits."""
    return python(
        "import sys, time\n"
        "n, width = int(sys.argv[1]), int(sys.argv[2])\n"
        "for i in range(n):\n"
        "    sys.stdout.write(f'{i:0{width - 1}d}\\n')\n"
        "    sys.stdout.flush()\n"
        "    i % 50 or time.sleep(0.001)\n"
        "time.sleep(600)",
        str(lines),
        str(width),
    )


def tells_environment() -> list[str]:
    """Prints its environment and its working directory."""
    return shell("env; echo CWD=$(pwd)")


def copies_program_file(target: Path) -> list[str]:
    return shell(f'cp "$SLOTBUS_PROGRAM_FILE" {shlex.quote(str(target))}')
