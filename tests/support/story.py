"""Stories: a leader's decisions told message by message, without a loop.

What lives here: ``Story`` (given facts, when a message at a time, then facts, effects and an
answer), audited with every record, and short builders of messages. What may not: asyncio.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from events.audit import Auditor, Violation
from events.errors import SlotbusError
from events.facts import Record, WorkerAssigned
from events.ids import Position
from events.ledger import Ledger
from events.messages import SchedulerConfig, StartPipelineReq, StopWorkersReq
from events.pulse import Pulse
from events.states import NodeState, WorkerState
from events.traffic import (
    HeartbeatNodeReq,
    InventoryReply,
    InventoryRow,
    RegisterNodeReq,
    Stamp,
    WorkerFinishedReq,
)
from schedulers.decide import Draft, Rules, decide
from schedulers.decide.commands import outcome_of
from schedulers.decide.messages import (
    Inbound,
    InventoryTaken,
    Launch,
    Launched,
    LaunchFailed,
    LedRead,
    Reply,
    Stop,
    StopAnswered,
    TakeInventory,
    Tick,
)
from schedulers.launcher import Assignment, StopOrder

DAWN = datetime(2026, 1, 1, tzinfo=UTC)
FIRST_EPOCH = 1_000
CLUSTER = "here"

F = TypeVar("F", bound=msgspec.Struct)


class Story:
    """One leader after another over one log. ``tell`` decides, stores and audits; time
    stands still unless ``after`` or ``at`` moves it. ``snapshot_every`` as the auditor has it."""

    def __init__(self, rules: Rules | None = None, *, snapshot_every: int = 7) -> None:
        self.rules = rules or Rules()
        self.now = DAWN
        self.epoch = FIRST_EPOCH - 1
        self.records: list[Record] = []
        self.auditor = Auditor(snapshot_every)
        self.ledger = Ledger()
        self.pulse = Pulse(self.rules.expiry)
        self._tokens = 0
        self.lead()

    # --- when ---------------------------------------------------------------------------

    def lead(self, *, epoch: int | None = None, cluster: str = CLUSTER) -> Draft:
        """A new leader reads the log and takes over."""
        self.epoch = epoch or self.epoch + 1
        self.ledger = self.fold()
        self.pulse = Pulse(self.rules.expiry)
        return self.tell(LedRead(cluster, "test", "1"))

    def tell(
        self, message: Inbound, *, after: float = 0.0, at: float | None = None, token: str = ""
    ) -> Draft:
        """Decides on a message that comes ``after`` seconds, or ``at`` seconds after DAWN;
        what that leaves over is decided, too, and told with it."""
        self.now += timedelta(seconds=after)
        if at is not None:
            self.now = DAWN + timedelta(seconds=at)
        draft = self._decide(message, token)
        rest = draft.rest
        while rest is not None:
            more = self._decide(rest, "")
            draft.events = draft.events + more.events
            draft.effects = draft.effects + more.effects
            rest = more.rest
        return draft

    def _decide(self, message: Inbound, token: str) -> Draft:
        self._tokens += 1
        draft = decide(
            self.ledger,
            self.pulse,
            self.rules,
            message,
            now=self.now,
            epoch=self.epoch,
            token=token or f"t{self._tokens}",
        )
        if draft.record is not None:
            self.records.append(draft.record)
            self._audit(self.auditor.observe(Position(len(self.records)), draft.record))
        return draft

    # --- then ---------------------------------------------------------------------------

    def fold(self) -> Ledger:
        """The ledger as anybody else folds it from the bytes of the log."""
        ledger = Ledger()
        for record in self.records:
            ledger.apply(msgspec.json.decode(msgspec.json.encode(record), type=Record))
        return ledger

    def check(self) -> None:
        """The laws, also those that only the end shows, and the ledger against the log."""
        self._audit(self.auditor.finish(self.now))
        assert self.ledger.snapshot() == self.fold().snapshot()
        assert indexes(Ledger.restore(self.ledger.snapshot())) == indexes(self.ledger)

    def outcome(self, command_id: str) -> Reply | SlotbusError | None:
        return outcome_of(self.ledger, command_id)

    def refusal(self, command_id: str) -> SlotbusError:
        found = self.outcome(command_id)
        assert isinstance(found, SlotbusError), found
        return found

    def state_of(self, worker_id: str) -> WorkerState:
        return self.ledger.workers[worker_id].state

    def node_state(self, node_id: str) -> NodeState:
        return self.ledger.nodes[node_id].state

    def free(self, node_id: str) -> int:
        return self.ledger.free_slots(node_id)

    def _audit(self, found: list[Violation]) -> None:
        assert not found, "\n".join(f"law {v.law} at {v.position}: {v.sentence}" for v in found)

    # --- given --------------------------------------------------------------------------

    def nodes(self, **slots: int) -> Story:
        """Registers nodes, each ready to be used."""
        for node_id, task_slots in slots.items():
            self.tell(register(node_id, task_slots))
        return self

    def running(self, job_id: str = "j", slots: int = 1, **fields: object) -> list[str]:
        """Starts a run and launches all its workers; their ids."""
        draft = self.tell(start(job_id, slots, **fields))
        assigned = launches(draft)
        assert assigned, draft.events
        for order in assigned:
            self.tell(acknowledged(order))
        return [order.worker_id for order in assigned]


def indexes(ledger: Ledger) -> dict[str, object]:
    """What follows from a ledger's state, as it is kept beside it."""
    return {
        "waiting": list(ledger.waiting),
        "alarms": list(ledger.alarms),
        "leases": list(ledger.leases),
        "starting": set(ledger.starting),
        "moving": set(ledger.moving),
        "draining": set(ledger.draining),
        "pending": set(ledger.pending),
        "tallies": {
            (job.job_id, run.run_id): ledger.tally(job.job_id, run.run_id)
            for job in ledger.jobs.values()
            for run in job.runs
        },
    }


# --- reading a draft ------------------------------------------------------------------------


def kinds(draft: Draft) -> list[str]:
    """The types of a draft's facts, in order."""
    return [str(type(fact).__struct_config__.tag) for fact in draft.events]


def facts(draft: Draft, kind: type[F]) -> list[F]:
    return [fact for fact in draft.events if isinstance(fact, kind)]


def fact(draft: Draft, kind: type[F]) -> F:
    """The one fact of this kind."""
    (found,) = facts(draft, kind)
    return found


def launches(draft: Draft) -> list[Assignment]:
    return [effect.assignment for effect in draft.effects if isinstance(effect, Launch)]


def stops(draft: Draft) -> list[StopOrder]:
    return [effect.order for effect in draft.effects if isinstance(effect, Stop)]


def stopped_ids(draft: Draft) -> list[str]:
    return [order.worker_id for order in stops(draft)]


def asked(draft: Draft) -> list[str]:
    """Nodes that are asked for their inventory."""
    return [effect.node_id for effect in draft.effects if isinstance(effect, TakeInventory)]


def placed(draft: Draft) -> dict[str, list[int]]:
    """Slots of the launches asked for, by node."""
    found: dict[str, list[int]] = {}
    for order in launches(draft):
        found.setdefault(order.node_id, []).append(order.slots)
    return found


def assigned(draft: Draft) -> dict[str, list[int]]:
    """Slots of the workers that were given to nodes, by node."""
    found: dict[str, list[int]] = {}
    for fact in facts(draft, WorkerAssigned):
        found.setdefault(fact.node_id, []).append(fact.slots)
    return found


# --- messages -------------------------------------------------------------------------------


def start(job_id: str = "j", slots: int = 1, **fields: object) -> StartPipelineReq:
    """``selector``, ``spread`` and ``command`` go into the scheduler_config."""
    names = ("selector", "spread", "command", "stop_after_s")
    config = {name: fields.pop(name) for name in names if name in fields}
    return msgspec.convert(
        {"job_id": job_id, "slots": slots, **fields}
        | ({"scheduler_config": config} if config else {}),
        StartPipelineReq,
    )


def stop(job_id: str = "j", **fields: object) -> StopWorkersReq:
    return msgspec.convert({"job_id": job_id, **fields}, StopWorkersReq)


def register(node_id: str = "n1", slots: int = 4, **fields: object) -> RegisterNodeReq:
    """Incarnation ``<node_id>-a`` with nothing running, unless said otherwise."""
    given = {"incarnation": f"{node_id}-a", "machine_id": f"m-{node_id}", "workers": []} | fields
    return msgspec.convert(
        {"node_id": node_id, "task_slots": slots, **given}, RegisterNodeReq, from_attributes=True
    )


def beat(node_id: str = "n1", **fields: object) -> HeartbeatNodeReq:
    given = {"incarnation": f"{node_id}-a", "epoch": FIRST_EPOCH} | fields
    return msgspec.convert({"node_id": node_id, **given}, HeartbeatNodeReq)


def finished(order: Assignment | StopOrder, **fields: object) -> WorkerFinishedReq:
    """The end of a worker that was ordered; exit code 0 unless said otherwise."""
    return ended(order.worker_id, order.node_id, **fields)


def ended(worker_id: str, node_id: str = "n1", **fields: object) -> WorkerFinishedReq:
    """The end of a worker by its id, as ``finished``."""
    given: dict[str, object] = {} if "signal" in fields else {"exit_code": 0}
    whole = {"job_id": "j", "run_id": 1, "slots": 1} | given | fields
    return msgspec.convert({"node_id": node_id, "worker_id": worker_id, **whole}, WorkerFinishedReq)


def acknowledged(order: Assignment, *, seq: int = 1, pid: int = 4711) -> Launched:
    return Launched(order.worker_id, order.incarnation, pid=pid, seq=seq)


def refused(order: Assignment, reason: str = "no such program") -> LaunchFailed:
    return LaunchFailed(order.worker_id, reason)


def never_ran(order: StopOrder) -> StopAnswered:
    """The answer of a node that does not know the worker, and never will."""
    return StopAnswered(order.worker_id, "unknown", order.node_id)


def row(
    order: Assignment, state: WorkerState = WorkerState.RUNNING, **fields: object
) -> InventoryRow:
    whole = {"job_id": order.job_id, "run_id": order.run_id, "slots": order.slots} | fields
    return msgspec.convert(
        {"worker_id": order.worker_id, "state": state, "stamp": order.stamp, **whole},
        InventoryRow,
        from_attributes=True,
    )


def inventory(
    node_id: str = "n1",
    *rows: InventoryRow,
    seq: int = 100,
    epoch: int = FIRST_EPOCH,
    incarnation: str = "",
) -> InventoryTaken:
    listed = InventoryReply(
        incarnation=incarnation or f"{node_id}-a", seq=seq, epoch=epoch, workers=list(rows)
    )
    return InventoryTaken(node_id, listed)


def tick() -> Tick:
    return Tick()


def stamp(epoch: int = FIRST_EPOCH, position: int = 1, cluster: str = CLUSTER) -> Stamp:
    return Stamp(cluster=cluster, epoch=epoch, position=position)


def config(**fields: object) -> SchedulerConfig:
    return msgspec.convert(fields, SchedulerConfig)
