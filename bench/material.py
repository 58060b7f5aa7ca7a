"""What benchmarks work on: ledgers of any size, and the records of a busy day.

What lives here: making them, without randomness. What may not: measuring.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from events.facts import AnyFact, LeaderStarted, NodeRegistered, Record
from events.ledger import Ledger
from events.messages import StartPipelineReq
from events.pulse import Pulse
from events.traffic import WorkerFinishedReq
from schedulers.decide import Draft, Rules, decide
from schedulers.decide.messages import Inbound, Launch, Launched

EPOCH: Final = 1_700_000_000_000
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Story:
    """A leader without a loop: messages in, records out, launches answered at once."""

    def __init__(self, nodes: int, slots: int, rules: Rules | None = None) -> None:
        self.rules = rules or Rules(expiry_s=1e6)  # nobody beats here
        self.ledger = Ledger()
        self.pulse = Pulse(self.rules.expiry)
        self.now = BEGIN
        self._count = 0
        self.records: list[Record] = []
        start = LeaderStarted(epoch=EPOCH, cluster="bench", scheduler="node")
        self._keep("leader", [start, *_nodes(nodes, slots)])
        for node_id in self.ledger.nodes:
            self.pulse.heard(node_id, self.now, epoch=EPOCH)

    def _keep(self, cause: str, facts: list[AnyFact]) -> None:
        record = Record(at=self.now, epoch=EPOCH, cause=cause, events=facts)
        self.ledger.apply(record)
        self.records.append(record)

    def tell(self, message: Inbound) -> Draft:
        """Decides on a message, a millisecond after the last one."""
        self.now += timedelta(milliseconds=1)
        self._count += 1
        draft = decide(
            self.ledger,
            self.pulse,
            self.rules,
            message,
            now=self.now,
            epoch=EPOCH,
            token=f"{self._count:012x}",
        )
        if draft.record is not None:
            self.records.append(draft.record)
        return draft

    def start(self, job_id: str, slots: int) -> None:
        """A start whose launches succeed."""
        draft = self.tell(
            StartPipelineReq(job_id=job_id, slots=slots, command_id=f"c-{self._count:x}")
        )
        for effect in draft.effects:
            if isinstance(effect, Launch):
                what = effect.assignment
                self.tell(Launched(what.worker_id, what.incarnation, pid=1_000, seq=1))

    def finish(self, job_id: str) -> None:
        """All workers of a job end well."""
        for worker in self.ledger.live_of(job_id):
            self.tell(
                WorkerFinishedReq(
                    node_id=worker.node_id,
                    worker_id=worker.worker_id,
                    job_id=job_id,
                    run_id=worker.run_id,
                    slots=worker.slots,
                    exit_code=0,
                )
            )


def _nodes(count: int, slots: int) -> Iterator[NodeRegistered]:
    for number in range(count):
        yield NodeRegistered(
            node_id=f"node-{number:06}",
            incarnation=f"{number:016x}",
            task_slots=slots,
            machine_id=f"machine-{number:06}",
            addr=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            labels={"zone": f"z{number % 3}"},
            version="0.1.0",
        )


def busy_day(jobs: int, *, nodes: int = 200) -> Story:
    """Starts of three slots each, of which two thirds end again."""
    story = Story(nodes, slots=max(8, jobs * 3 // nodes + 1))
    for number in range(jobs):
        story.start(f"job-{number:06}", 3)
        if number % 3:
            story.finish(f"job-{number:06}")
    return story
