"""Whom a record of the event log concerns: which jobs, which nodes, or the leader.

What lives here: the answer, and the little memory it needs, since most facts about a
worker carry its id alone. What may not: subjects and publishing (``events.projection``).
"""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from events.entities import LedgerState
from events.facts import (
    AnyFact,
    CommandForgotten,
    CommandTaken,
    JobForgotten,
    Record,
    RunForgotten,
    WorkerAssigned,
)


class Concerns(Struct, frozen=True):
    """For each job and node the facts of the record that concern it, by their places in it;
    ``leader``: those that concern nobody else. ``unresolved``: workers and commands that it
    names and nobody knows."""

    jobs: dict[str, list[int]]
    nodes: dict[str, list[int]]
    leader: list[int]
    unresolved: list[str]


class _Owner(Struct, frozen=True):
    """Whose a worker or a command is; empty where it is nobody's."""

    job_id: str = ""
    node_id: str = ""


class Directory:
    """Remembers whose each worker and command is, from the records it is shown in order."""

    def __init__(self) -> None:
        self._workers: dict[str, _Owner] = {}
        self._commands: dict[str, _Owner] = {}
        self._of_run: dict[str, dict[int, list[str]]] = {}

    @classmethod
    def of(cls, state: LedgerState) -> Self:
        """What the ledger knows at this moment."""
        made = cls()
        for worker in state.workers.values():
            made._assign(worker.worker_id, worker.job_id, worker.run_id, worker.node_id)
        for command in state.commands.values():
            made._commands[command.command_id] = _Owner(command.job_id, command.node_id)
        return made

    def concerns(self, record: Record) -> Concerns:
        """Whom the record concerns; learns from it for those that follow."""
        found = Concerns({}, {}, [], [])
        unresolved: dict[str, None] = {}
        for at, fact in enumerate(record.events):
            self._learn(fact)
            job_ids, node_ids = self._owners(fact, unresolved)
            for job_id in job_ids:
                found.jobs.setdefault(job_id, []).append(at)
            for node_id in node_ids:
                found.nodes.setdefault(node_id, []).append(at)
            if not job_ids and not node_ids:
                found.leader.append(at)
        for fact in record.events:
            self._forget(fact)
        found.unresolved.extend(unresolved)
        return found

    def _owners(
        self, fact: AnyFact, unresolved: dict[str, None]
    ) -> tuple[dict[str, None], dict[str, None]]:
        """Job ids and node ids, by the names of fields: so no new kind of fact is forgotten."""
        owners = [_Owner(getattr(fact, "job_id", ""), getattr(fact, "node_id", ""))]
        known = (self._workers, "worker_id"), (self._commands, "command_id")
        for directory, name in known:
            key = getattr(fact, name, "")
            if key in directory:
                owners.append(directory[key])
            elif key:
                unresolved[key] = None
        jobs = dict.fromkeys(owner.job_id for owner in owners if owner.job_id)
        return jobs, dict.fromkeys(owner.node_id for owner in owners if owner.node_id)

    def _learn(self, fact: AnyFact) -> None:
        if isinstance(fact, WorkerAssigned):
            self._assign(fact.worker_id, fact.job_id, fact.run_id, fact.node_id)
        elif isinstance(fact, CommandTaken):
            self._commands[fact.command_id] = _Owner(fact.job_id, fact.node_id)

    def _assign(self, worker_id: str, job_id: str, run_id: int, node_id: str) -> None:
        self._workers[worker_id] = _Owner(job_id, node_id)
        self._of_run.setdefault(job_id, {}).setdefault(run_id, []).append(worker_id)

    def _forget(self, fact: object) -> None:
        if isinstance(fact, JobForgotten):
            gone = [w for run in self._of_run.pop(fact.job_id, {}).values() for w in run]
        elif isinstance(fact, RunForgotten):
            gone = self._of_run.get(fact.job_id, {}).pop(fact.run_id, [])
        else:
            gone = []
        for worker_id in gone:
            self._workers.pop(worker_id, None)
        if isinstance(fact, CommandForgotten):
            for command_id in fact.command_ids:
                self._commands.pop(command_id, None)
