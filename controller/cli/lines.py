"""Output of several workers as lines that say whose they are.

What lives here: putting pieces together to whole lines. What may not: getting them.
"""

from __future__ import annotations

from controller.cli.output import write


class WorkerLines:
    """Prints whole lines; an unfinished one is held until its end comes, or nothing more.

    Text goes out as the workers wrote it, colours too.
    """

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._held: dict[str, str] = {}

    def add(self, worker_id: str, text: str) -> None:
        """Takes the next piece of a worker's output."""
        *lines, rest = (self._held.pop(worker_id, "") + text).split("\n")
        if rest:
            self._held[worker_id] = rest
        if lines:
            self._print(worker_id, lines)

    def finish(self) -> None:
        """Nothing more comes: prints what is held."""
        for worker_id, rest in self._held.items():
            self._print(worker_id, [rest])
        self._held.clear()

    def _print(self, worker_id: str, lines: list[str]) -> None:
        lead = f"{worker_id} | " if self._prefix else ""
        write("".join(f"{lead}{line}\n" for line in lines))
