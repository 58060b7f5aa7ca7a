"""A log that loses its tail: what the laws know of what was written once.

What lives here: which workers and commands a lost part of the log was about. What may not: what
follows from it (``laws``).
"""

from __future__ import annotations

from collections.abc import Sequence

from events.facts import AnyFact, Record, WorkerStopping


class Doubts:
    """Names in lost records. ``workers``: nothing is sure of them any more; ``stopping``: of
    those, the ones that it was once decided to stop."""

    def __init__(self) -> None:
        self.workers: set[str] = set()
        self.commands: set[str] = set()
        self.stopping: set[str] = set()
        self.any = False

    def add(self, lost: Sequence[Record]) -> None:
        """These records are no more."""
        self.any = True
        for record in lost:
            for fact in record.events:
                self.workers.update(_named(fact, "worker_id"))
                self.commands.update(_named(fact, "command_id"))
                if isinstance(fact, WorkerStopping):
                    self.stopping.add(fact.worker_id)


def _named(fact: AnyFact, field: str) -> list[str]:
    found = getattr(fact, field, None)
    return [found] if isinstance(found, str) else []
