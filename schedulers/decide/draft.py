"""A decision in the making: facts that are folded at once, effects, an answer.

What lives here: ``Rules`` (the configuration decisions depend on) and ``Draft``. What may
not: I/O, clocks, randomness: time and a token for fresh ids are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from events.entities import Node
from events.errors import SlotbusError
from events.facts import AnyFact, Record
from events.ids import MAX_REASON, MAX_RECORD_BYTES
from events.ledger import Ledger
from events.messages import StartPipelineReq
from events.policies import OnDrain, OnEnd, Restarting
from events.pulse import Pulse
from events.traffic import Stamp
from schedulers.decide.messages import Continue, Effect, Reply

ENOUGH_BYTES: Final = 200_000
"""Of facts, after which a decision begins nothing more that can be left to the next. What is
one thing (a run of 1,000 workers that is rolled back) adds at most some 500 kB to that."""

_ENCODER: Final = msgspec.json.Encoder()


class Rules(Struct, frozen=True, kw_only=True):
    """What an operator may set; all durations in seconds.

    ``start_timeout_s``: by then all workers of a start are launched, or it has failed.
    ``stop_timeout_s``: on top of a stop's grace; by then workers not seen gone are
    reported as unconfirmed. ``per_worker``: the most slots a worker gets (None: no limit).
    ``worker_command``: what a worker executes where neither the job nor its node says so.
    ``local_node``: the node that is this machine itself and needs no heartbeat ("" for
    backends with agents). ``chooses_nodes``: whether a selector is ours to obey; else it is
    handed on, as to a cluster with a scheduler of its own. ``on_shortage``: what becomes of
    a start for which slots are missing, if it does not say; ``on_failure``, ``on_lost``,
    ``on_drain`` (None: move what may be restarted, stop the rest) and ``restart`` likewise.
    ``most_waiting``: starts that may wait. ``remembered_*``: how much of what ended the
    ledger keeps.
    """

    heartbeat_s: float = 5.0
    expiry_s: float = 30.0
    start_timeout_s: float = 30.0
    launch_timeout_s: float = 10.0
    stop_timeout_s: float = 30.0
    rollback_grace_s: float = 5.0
    per_worker: int | None = None
    allow_job_command: bool = True
    worker_command: list[str] = field(default_factory=list)
    local_node: str = ""
    chooses_nodes: bool = True
    on_shortage: Literal["fail", "wait"] = "fail"
    on_failure: OnEnd = "report"
    on_lost: OnEnd = "report"
    on_drain: OnDrain | None = None
    restart: Restarting = Restarting()
    most_waiting: int = 10_000
    remembered_commands: int = 10_000
    remembered_jobs: int = 1_000
    remembered_runs: int = 5
    node_memory_s: float = 86_400.0

    def theirs(self, node: Node) -> bool:
        """Whether a node belongs to another scheduler over the same log: nobody here can
        reach it."""
        return (node.node_id if not node.watched else "") != self.local_node

    @property
    def start_s(self) -> float:
        """Seconds after which a start that was placed has its outcome at the latest."""
        return self.start_timeout_s + self.rollback_grace_s + self.stop_timeout_s

    @property
    def expiry(self) -> timedelta:
        return timedelta(seconds=self.expiry_s)


class SpokenFor(Struct, frozen=True):
    """Slots by node that are promised, as of so many facts of a draft."""

    facts: int
    slots: dict[str, int]


class Draft:
    """One decision. ``emit`` folds a fact into the ledger at once, so that the next rule
    sees it; what depends on it (effects, the answer) is only collected here."""

    def __init__(
        self,
        ledger: Ledger,
        pulse: Pulse,
        rules: Rules,
        *,
        now: datetime,
        epoch: int,
        token: str,
        cause: str,
    ) -> None:
        self.ledger = ledger
        self.pulse = pulse
        self.rules = rules
        self.now = now
        self.epoch = epoch
        self.token = token
        self.cause = cause
        self.events: list[AnyFact] = []
        self.effects: list[Effect] = []
        self.answer: Reply | SlotbusError | None = None
        self.check: Callable[[StartPipelineReq], None] = lambda request: None
        self.joined: str | None = None
        """The command whose outcome is the answer."""
        self.outranked_by: tuple[str, int] | None = None
        """A node that has seen an epoch above ours, and that epoch: we lead no more."""
        self.record: Record | None = None
        self.spoken_for: SpokenFor | None = None
        """Found once, for all that is planned between two facts."""
        self._made = 0
        self._bytes = 0
        self._weighed = 0
        self._left_nodes: dict[str, datetime] = {}
        self._left_jobs: dict[str, None] = {}
        self._old = False
        self._more = False

    def emit(self, fact: AnyFact) -> None:
        reason: str = getattr(fact, "reason", "")
        if len(reason) > MAX_REASON:
            fact = msgspec.structs.replace(fact, reason=reason[: MAX_REASON - 3] + "...")
        self.ledger.fold(fact, self.now, self.epoch)
        self.events.append(fact)

    def effect(self, effect: Effect) -> None:
        self.effects.append(effect)

    def full(self) -> bool:
        """Whether this decision has written enough: a record must fit into one message."""
        return self._weigh() > ENOUGH_BYTES

    def has_room(self, size: int) -> bool:
        """Whether facts of so many bytes still fit in; in a draft without facts they must."""
        return not self.events or self._weigh() + size <= MAX_RECORD_BYTES

    def _weigh(self) -> int:
        for fact in self.events[self._weighed :]:
            self._bytes += len(_ENCODER.encode(fact))
        self._weighed = len(self.events)
        return self._bytes

    def leave(self, *job_ids: str) -> None:
        """Leaves the consequences for jobs, or whatever is due by now anyway, to the decision
        that follows this one."""
        self._more = True
        self._left_jobs.update(dict.fromkeys(job_ids))

    def leave_node(self, node_id: str, last_seen: datetime) -> None:
        """Leaves the workers of an expired node to the decision that follows."""
        self._more = True
        self._left_nodes[node_id] = last_seen

    def leave_old(self) -> None:
        """Leaves what is to be forgotten, to the decision that follows."""
        self._more = self._old = True

    @property
    def rest(self) -> Continue | None:
        """What is left, to be decided before anything else."""
        if not self._more:
            return None
        return Continue(nodes=self._left_nodes, jobs=list(self._left_jobs), old=self._old)

    def fresh_worker_id(self) -> str:
        """Never used before: made of the message's token and a count."""
        self._made += 1
        return f"w-{self.token}-{self._made}"

    def after(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    @property
    def stamp(self) -> Stamp:
        """Where this decision will stand in the log."""
        return Stamp(
            cluster=self.ledger.state.cluster,
            epoch=self.epoch,
            position=self.ledger.position + 1,
        )

    def finish(self) -> None:
        """Closes the record of this decision, where anything happened."""
        if self.events:
            self.ledger.close_record(self.now)
            self.record = Record(
                at=self.now, epoch=self.epoch, cause=self.cause, events=self.events
            )
