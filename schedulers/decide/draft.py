"""A decision in the making: facts that are folded at once, effects, an answer.

What lives here: ``Rules`` (the configuration decisions depend on) and ``Draft``. What may
not: I/O, clocks, randomness: time and a token for fresh ids are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import Struct, field

from events.errors import SlotbusError
from events.facts import AnyFact, Record
from events.ledger import Ledger
from events.messages import Stamp, StartPipelineReq
from events.pulse import Pulse
from schedulers.decide.messages import Effect, Reply


class Rules(Struct, frozen=True, kw_only=True):
    """What an operator may set; all durations in seconds.

    ``start_timeout_s``: by then all workers of a start are launched, or it has failed.
    ``stop_timeout_s``: on top of a stop's grace; by then workers not seen gone are
    reported as unconfirmed. ``per_worker``: the most slots a worker gets (None: no limit).
    ``worker_command``: what a worker executes where neither the job nor its node says so.
    ``local_node``: the node that is this machine itself and needs no heartbeat ("" for
    backends with agents). ``chooses_nodes``: whether a selector is ours to obey; else it is
    handed on, as to a cluster with a scheduler of its own. ``remembered_*``: how much of
    what ended the ledger keeps.
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
    remembered_commands: int = 10_000
    remembered_jobs: int = 1_000
    remembered_runs: int = 5
    node_memory_s: float = 86_400.0

    @property
    def expiry(self) -> timedelta:
        return timedelta(seconds=self.expiry_s)


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
        self.record: Record | None = None
        self._made = 0

    def emit(self, fact: AnyFact) -> None:
        self.ledger.fold(fact, self.now, self.epoch)
        self.events.append(fact)

    def effect(self, effect: Effect) -> None:
        self.effects.append(effect)

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
