"""Whom a record of the event log concerns: which jobs, which nodes, or the leader.

What lives here: the answer, and the little memory it needs, since most facts about a
worker carry its id alone. What may not: subjects and publishing (``events.projection``).
"""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from events.entities import LedgerState
from events.facts import (
    CommandForgotten,
    CommandTaken,
    JobForgotten,
    LeaderStarted,
    Record,
    RunForgotten,
    WorkerAssigned,
)


class Concerns(Struct, frozen=True):
    """Ids in the order in which the record names them, each once. ``unresolved``: workers
    and commands that it names and nobody knows."""

    jobs: list[str]
    nodes: list[str]
    leader: bool
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
        jobs: dict[str, None] = {}
        nodes: dict[str, None] = {}
        unresolved: dict[str, None] = {}
        leader = False
        for fact in record.events:
            if isinstance(fact, WorkerAssigned):
                self._assign(fact.worker_id, fact.job_id, fact.run_id, fact.node_id)
            elif isinstance(fact, CommandTaken):
                self._commands[fact.command_id] = _Owner(fact.job_id, fact.node_id)
            leader = leader or isinstance(fact, LeaderStarted | CommandForgotten)
            # By the name of the field, so that a new kind of fact is not forgotten here.
            owners = [_Owner(getattr(fact, "job_id", ""), getattr(fact, "node_id", ""))]
            known = (self._workers, "worker_id"), (self._commands, "command_id")
            for directory, name in known:
                key = getattr(fact, name, "")
                if key in directory:
                    owners.append(directory[key])
                elif key:
                    unresolved[key] = None
            jobs.update((owner.job_id, None) for owner in owners if owner.job_id)
            nodes.update((owner.node_id, None) for owner in owners if owner.node_id)
        for fact in record.events:
            self._forget(fact)
        return Concerns(
            jobs=list(jobs),
            nodes=list(nodes),
            leader=leader or not (jobs or nodes),
            unresolved=list(unresolved),
        )

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
