"""The line: the runs that wait to be placed, in the order in which they are.

What lives here: keeping that order cheaply. What may not: who may be placed
(``schedulers.decide.waiting``).

Most runs are placed by the record that creates them; only those that are still here when
somebody asks are put in their places.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from events.entities import Run

Place = tuple[int, int, str, int]
"""Minus a run's priority, the position of its creation, job_id, run_id."""


def place_of(run: Run) -> Place:
    return (-run.priority, run.position, run.job_id, run.run_id)


class Line:
    """A collection of places, in their order."""

    def __init__(self) -> None:
        self._joined: dict[tuple[str, int], Run] = {}
        self._standing: SortedList[Place] = SortedList()

    def join(self, run: Run) -> None:
        self._joined[run.job_id, run.run_id] = run

    def leave(self, run: Run) -> None:
        """Raises ValueError for a run that is not in it."""
        if self._joined.pop((run.job_id, run.run_id), None) is None:
            self._standing.remove(place_of(run))

    def __len__(self) -> int:
        return len(self._joined) + len(self._standing)

    def __iter__(self) -> Iterator[Place]:
        self._standing.update(map(place_of, self._joined.values()))
        self._joined.clear()
        return iter(self._standing)
