"""What a test asks of its cluster: states, processes, stories, the log.

What lives here: reading. What may not: anything that changes the cluster
(``slotbus_pytest.cluster``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, TypeVar

from events.entities import Worker
from events.facts import Record
from events.ledger import Ledger
from events.log import MemoryLog, encode_record
from events.states import NodeState, WorkerState
from events.stories import about, numbered, tell_story
from schedulers.engine import Engine
from schedulers.recorders import MemoryRecorder
from schedulers.recording import AnyLine
from slotbus_pytest.scripted import ScriptedNode

T = TypeVar("T")


class Seen(ABC):
    """A log, what was recorded, and the nodes' own process tables."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.recorder = MemoryRecorder()
        self._nodes: dict[str, ScriptedNode] = {}

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The leader."""

    @property
    def ledger(self) -> Ledger:
        """The state as the leader sees it; read-only."""
        return self.engine.ledger

    @property
    def now(self) -> datetime:
        """The leader's time."""
        return self.engine.clock.now()

    @property
    def records(self) -> list[Record]:
        """The event log."""

        async def read() -> list[Record]:
            return [record async for batch in self.log.read() for record in batch]

        return _finish(read())

    def recording(self) -> list[AnyLine]:
        """Everything that entered the leaders, for ``replay``."""
        return self.recorder.recording()

    def workers(self, job_id: str | None = None, *, ended: bool = False) -> list[Worker]:
        """Workers of a job or of all, in the order of their assignment; live ones, or all."""
        return [
            worker
            for worker in self.ledger.workers.values()
            if (job_id is None or worker.job_id == job_id) and (ended or not worker.gone)
        ]

    def state(self, thing: str) -> str:
        """The state of a worker or a node, or of a job's newest run. Raises KeyError."""
        ledger = self.ledger
        if thing in ledger.workers:
            return str(ledger.workers[thing].state)
        if thing in ledger.nodes:
            return str(ledger.nodes[thing].state)
        return str(ledger.jobs[thing].current.state)

    def free_slots(self, node_id: str | None = None) -> int:
        """Of one node, or of all that are not expired."""
        if node_id is not None:
            return self.ledger.free_slots(node_id)
        return sum(
            self.ledger.free_slots(node.node_id)
            for node in self.ledger.nodes.values()
            if node.state is not NodeState.EXPIRED
        )

    def processes(self, node_id: str | None = None) -> list[str]:
        """Worker ids whose processes exist: the truth, whatever the leader believes."""
        nodes = self._nodes.values() if node_id is None else [self._node(node_id)]
        return [worker_id for node in nodes for worker_id in node.running()]

    def story(self, job_id: str | None = None, *, node_id: str | None = None) -> str:
        """What happened, for people: all of it, or what concerns a job or a node."""
        told = numbered(self.records)
        if job_id is not None or node_id is not None:
            told = about(told, job_id=job_id, node_id=node_id)
        return tell_story(told)

    def log_lines(self) -> bytes:
        """The event log as a file would hold it: the same for the same test, each time."""
        return b"".join(encode_record(record) + b"\n" for record in self.records)

    def expect(self, thing: str, state: str | WorkerState | NodeState) -> None:
        """Raises AssertionError, with the story, where something is in another state."""
        found = self.state(thing)
        assert found == state, f"{thing} is {found}, not {state}\n\n{self.story()}"

    def _node(self, node_id: str) -> ScriptedNode:
        if node_id not in self._nodes:
            raise KeyError(f"no node {node_id}; there are {', '.join(self._nodes)}")
        return self._nodes[node_id]

    def _node_of(self, worker_id: str) -> ScriptedNode:
        for node in self._nodes.values():
            if worker_id in node.running():
                return node
        raise KeyError(f"no process of worker {worker_id} exists; there are {self.processes()}")


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("a log in memory had to wait")
