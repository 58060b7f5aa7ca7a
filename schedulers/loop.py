"""The loop that everything goes through, from message to effect.

    message -> decide (folds at once) -> append -> release: effects, answers
                 ^                                   |
                 +---- outcomes come back as messages +

What lives here: this loop and what puts messages before it. What may not: how a leadership
begins and ends (``schedulers.leading``), rules (``schedulers.decide``), NATS, processes,
Kubernetes: to it those are a log and a launcher.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import Final

import structlog
from msgspec import Struct, field

from events.errors import Internal, NotLeader, SlotbusError, TooLarge
from events.facts import CommandDone, Record
from events.ids import START, Position
from events.ledger import Ledger
from events.log import EventLog, LogFull, conflict
from events.pulse import Pulse
from events.recall import recall
from events.states import WorkerState
from events.traffic import HeartbeatNodeReq, HeartbeatReply
from schedulers.backend import Backend
from schedulers.chance import Chance, SystemChance
from schedulers.clock import Clock, MonotonicClock
from schedulers.decide import Draft, Rules, decide, next_due, only_beats
from schedulers.decide.commands import accepted_reply, outcome_of
from schedulers.decide.messages import (
    Continue,
    Effect,
    Grace,
    Inbound,
    Launch,
    LedRead,
    Reply,
    Stop,
    Tick,
)
from schedulers.dispatch import Dispatcher
from schedulers.inbox import Answer, Entry, Inbox, Waiters
from schedulers.recording import Recorder
from schedulers.tape import Tape

GATHERED: Final = 256
"""Messages decided together, and so written together, at the most."""

QUEUE_LIMIT: Final = 10_000
APPEND_TIMEOUT_S: Final = 10.0
PULSE_S: Final = 1.0
STALL_S: Final = 3.0
"""A loop that did not run for this long can't say that a node was silent."""

IDLE_TICK_S: Final = 60.0
"""Time passes at least this often, also where nothing is due: old things are forgotten."""

JUST_AFTER_S: Final = 0.001
"""Exactly at its expiry a node is still alive."""

FAULT_PAUSE_S: Final = 1.0
"""What is due and fails for a fault of ours is not tried again sooner."""

log = structlog.get_logger("slotbus.engine")


class EngineSettings(Struct, frozen=True, kw_only=True):
    """``epoch`` None: the log's last plus one, or the wall clock's milliseconds; and above
    ``above_epoch``, which a node has seen."""

    cluster: str = "local"
    version: str = ""
    rules: Rules = field(default_factory=Rules)
    epoch: int | None = None
    above_epoch: int = 0
    queue_limit: int = QUEUE_LIMIT


class EngineStats(Struct):
    """Counts since this engine was made, for metrics. ``append_s``: seconds in all."""

    messages: Counter[str] = field(default_factory=Counter)
    records: int = 0
    appends: int = 0
    append_s: float = 0.0
    loop_errors: int = 0


class Decision(Struct, frozen=True):
    """A message and what was decided on it; nothing of it is out before it is stored."""

    entry: Entry
    draft: Draft


class EngineLoop:
    """One leadership over an event log and a backend's launcher; once closed it is
    thrown away. ``may_act()``: seconds for which this controller may still act as leader.
    """

    def __init__(
        self,
        backend: Backend,
        log: EventLog,
        settings: EngineSettings | None = None,
        *,
        clock: Clock | None = None,
        chance: Chance | None = None,
        may_act: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.backend = backend
        self.log = log
        self.settings = settings or EngineSettings()
        self.rules = self.settings.rules
        self.ledger = Ledger()
        self.pulse = Pulse(self.rules.expiry)
        self.stats = EngineStats()
        self.epoch = 0
        self.dispatcher = Dispatcher(
            backend.launcher,
            wanted=self._wants,
            tell=self._put,
            launch_timeout_s=self.rules.launch_timeout_s,
            at_once=backend.at_once,
            try_s=backend.try_s,
            jitter=lambda: self._chance.jitter(),
        )
        self.tape = Tape()
        self._clock = clock
        self._chance = chance or SystemChance()
        self._may_act = may_act
        self._fold: Callable[[], Awaitable[Ledger]] | None = None
        self._inbox = Inbox(self.settings.queue_limit)
        self._one_by_one = 0
        self._unreleased: deque[Decision] = deque()
        self._waiters = Waiters()
        self._observers: list[Callable[[Position, Record], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tick_due: datetime | None = None
        self._ran_at = 0.0
        self._turn: datetime | None = None
        """When the heartbeats of this turn of the event loop were received."""
        self._stored = START
        self._leading = False
        self._lost: SlotbusError | None = None
        """Why the lead is over."""

    # --- the loop -----------------------------------------------------------------------

    async def _lead(self) -> None:
        while True:
            entries = await self._inbox.take(1 if self._one_by_one else GATHERED)
            faults = self._decide_all(entries)
            try:
                await self._append()
            except TooLarge as error:
                faults += self._set_back(error)
            if faults:
                await self._heal()
            self._release_all()
            self.tape.open_if_wanted(self)
            self._set_timer(FAULT_PAUSE_S if faults else 0.0)

    def _decide_all(self, entries: list[Entry]) -> int:
        """Decides, and folds at once, up to the first message that shows a fault of ours;
        what comes after that one waits. Returns the number of faults."""
        self._one_by_one = max(0, self._one_by_one - len(entries))
        for index, entry in enumerate(entries):
            turn = entry
            try:
                for turn in self._turns(entry):
                    self._unreleased.append(Decision(turn, self._decide(turn)))
            except Exception as error:
                self.stats.loop_errors += 1
                self.tape.faulted(turn, error)
                log.exception("decision failed", message=type(turn.message).__name__)
                _answer(entry.answer, Internal(f"a fault of slotbus: {error!r}"))
                self._inbox.put_back(entries[index + 1 :])
                return 1
        return 0

    def _turns(self, entry: Entry) -> Iterator[Entry]:
        """What is decided when a message has its turn: what is due by then, the message, and
        what that leaves over; each in a record of its own. The one before must be decided
        when the next is asked for."""
        if self.pulse.overdue(entry.at) and not isinstance(entry.message, Tick | Grace | LedRead):
            yield from self._rest(Continue(), entry.at)
        yield entry
        yield from self._rest(self._unreleased[-1].draft.rest, entry.at)

    def _rest(self, rest: Continue | None, at: datetime) -> Iterator[Entry]:
        while rest is not None:
            yield Entry(rest, at, self._chance.token())
            rest = self._unreleased[-1].draft.rest

    def _decide(self, entry: Entry) -> Draft:
        self.stats.messages[type(entry.message).__name__] += 1
        draft = decide(
            self.ledger,
            self.pulse,
            self.rules,
            entry.message,
            now=entry.at,
            epoch=self.epoch,
            token=entry.token,
            check=self.tape.overheard(self.backend.check),
        )
        self.tape.decided(entry)
        return draft

    async def _append(self) -> None:
        """Stores what was decided, all or none. Raises LogError, NotLeader, TooLarge."""
        before = self._stored
        left = self._may_act()
        if left <= 0:
            raise NotLeader("the lease is over")
        for decision in self._unreleased:
            self._check_rank(decision.draft)
        records = [d.draft.record for d in self._unreleased if d.draft.record is not None]
        if not records:
            return
        began = asyncio.get_running_loop().time()
        await self.log.append(records, expected=before, timeout_s=min(left, APPEND_TIMEOUT_S))
        self.stats.append_s += asyncio.get_running_loop().time() - began
        self.stats.appends += 1
        self.stats.records += len(records)
        self._stored = Position(before + len(records))
        self.tape.stored(self._stored, records)
        for offset, record in enumerate(records, start=1):
            for observer in self._observers:
                observer(Position(before + offset), record)

    def _check_rank(self, draft: Draft) -> None:
        """Raises NotLeader where a node has seen a higher epoch than ours."""
        if draft.outranked_by is not None:
            node_id, epoch = draft.outranked_by
            raise NotLeader(
                f"node {node_id} has seen epoch {epoch}, above {self.epoch}: the log has lost "
                "its end, or another controller leads",
                epoch_seen=epoch,
            )

    def _release_all(self) -> None:
        """Lets out what waited for the acknowledgement. Raises NotLeader."""
        while self._unreleased:
            if self._may_act() <= 0:
                raise NotLeader("the lease is over")
            self._release(self._unreleased[0])
            self._unreleased.popleft()

    def _release(self, decision: Decision) -> None:
        entry, draft = decision.entry, decision.draft
        for effect in draft.effects:
            self.dispatcher.start(effect)
        for fact in draft.events:
            if isinstance(fact, CommandDone):
                outcome = outcome_of(self.ledger, fact.command_id)
                if outcome is not None:
                    self._waiters.settle(fact.command_id, outcome)
        if draft.joined is not None and entry.answer is not None:
            self._answer_or_wait(entry, entry.answer, draft.joined)
        elif draft.answer is not None:
            _answer(entry.answer, draft.answer)

    def _answer_or_wait(self, entry: Entry, answer: Answer, command_id: str) -> None:
        outcome = outcome_of(self.ledger, command_id)
        wait_s: float = getattr(entry.message, "wait_s", 0.0)
        if outcome is not None:
            answer(outcome)
        elif wait_s <= 0:
            answer(accepted_reply(self.ledger, command_id))
        else:
            self._waiters.add(command_id, answer, wait_s)

    # --- when something is wrong --------------------------------------------------------

    def _set_back(self, error: TooLarge) -> int:
        """A record is over the log's limit and nothing was stored: its sender is told so,
        and the others are decided again, one by one, until it is known which it is. Counts
        as a fault, since what was folded is to be forgotten."""
        undone = list(self._unreleased)
        self._unreleased.clear()
        self.tape.unstored(error)
        if sum(d.draft.record is not None for d in undone) == 1:
            guilty = next(d for d in undone if d.draft.record is not None)
            undone.remove(guilty)
            log.error("record too large", message=type(guilty.entry.message).__name__)
            _answer(guilty.entry.answer, error)
        self._inbox.put_back([d.entry for d in undone])
        self._one_by_one = max(self._one_by_one, len(undone))
        return 1

    async def _heal(self) -> None:
        """A failed decision may have folded half of itself: what is true is in the log.

        Raises LogConflict where somebody else wrote there.
        """
        ledger = await self._fold_log()
        if ledger.position != self._stored:
            raise conflict(self._stored, ledger.position)
        self.ledger.become(ledger)
        now = self.clock.now()
        self.pulse.follow(self.ledger, now)
        self.tape.healed(now)
        log.warning("ledger read again", position=ledger.position)

    async def _fold_log(self) -> Ledger:
        """A ledger at the log's end. Raises LogError, LogUnreadable for a record that can't
        follow those before it."""
        return await self._fold() if self._fold is not None else (await recall(self.log)).ledger

    def _refuse_all(self, error: SlotbusError | None) -> None:
        """Everybody who waits is told that it is over here."""
        cause = f" ({error.message})" if error is not None else ""
        over = NotLeader(
            f"this controller no longer leads{cause}: ask again, the next one will answer"
        )
        unstored = error if isinstance(error, LogFull) else over
        while self._unreleased:
            _answer(self._unreleased.popleft().entry.answer, unstored)
        self._waiters.close(over)
        for entry in self._inbox.drain():
            _answer(entry.answer, over)

    # --- time ---------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        if self._clock is None:
            self._clock = MonotonicClock(asyncio.get_running_loop().time)
        return self._clock

    def _set_timer(self, pause_s: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self.clock.now()
        if self._tick_due is None or self._tick_due <= now:
            self._tick_due = now + timedelta(seconds=IDLE_TICK_S)
        due = min(self._tick_due, next_due(self.ledger, self.pulse) or self._tick_due)
        delay = max(pause_s, (due - now).total_seconds() + JUST_AFTER_S, JUST_AFTER_S)
        self._timer = asyncio.get_running_loop().call_later(delay, self._put, Tick())

    def _notice_stall(self) -> None:
        now = asyncio.get_running_loop().time()
        silent_s, self._ran_at = now - self._ran_at, now
        if silent_s > STALL_S + PULSE_S:
            log.warning("stalled", seconds=round(silent_s, 1))
            self.grace(f"the loop stood still for {silent_s:.0f} s")

    # --- what comes in ------------------------------------------------------------------

    def offer(self, message: Inbound, answer: Answer | None = None) -> None:
        """Puts a message into the inbox. ``answer`` is called once, in the loop, after the
        log acknowledged what the message led to. Raises Overloaded, NotLeader."""
        if not self._leading:
            cause = f": {self._lost.message}" if self._lost else ""
            raise NotLeader(f"this controller does not lead{cause}")
        if type(message) is HeartbeatNodeReq and self._beats_on(message, answer):
            return
        self._notice_stall()
        self._inbox.put(self._entry(message, answer), inner=False)

    def _beats_on(self, message: HeartbeatNodeReq, answer: Answer | None) -> bool:
        """Takes a heartbeat at once where it says nothing but that its node lives: most of
        what comes in is such. It may overtake what waits, an append too: nothing but the time
        at which the node was heard follows from it."""
        recorder = self.tape.recorder
        if self._may_act() <= 0 or (recorder is not None and recorder.wants_opening):
            return False
        now = self._turn
        if now is None:
            now = self._begin_turn()
        if not only_beats(self.ledger, self.pulse, message, now):
            return False
        self.stats.messages["HeartbeatNodeReq"] += 1
        if recorder is not None:
            self.tape.decided(Entry(message, now, ""))
        if answer is not None:
            answer(HeartbeatReply(epoch=self.epoch))
        return True

    def _begin_turn(self) -> datetime:
        self._notice_stall()
        self._turn = self.clock.now()
        asyncio.get_running_loop().call_soon(self._end_turn)
        return self._turn

    def _end_turn(self) -> None:
        self._turn = None

    async def submit(self, message: Inbound) -> Reply:
        """``offer``, and waits for the answer. Raises the SlotbusError it is."""
        future: asyncio.Future[Reply | SlotbusError] = asyncio.get_running_loop().create_future()

        def answer(reply: Reply | SlotbusError) -> None:
            if not future.done():
                future.set_result(reply)

        self.offer(message, answer)
        reply = await future
        if isinstance(reply, SlotbusError):
            raise reply
        return reply

    def observe(self, observer: Callable[[Position, Record], None]) -> None:
        """Calls ``observer`` for each acknowledged record, in order; it must not block."""
        self._observers.append(observer)

    def record(self, recorder: Recorder) -> None:
        """Tells ``recorder`` everything that enters, in order; before ``start``."""
        self.tape = Tape(recorder)

    def fold_by(self, fold: Callable[[], Awaitable[Ledger]]) -> None:
        """How the log becomes a ledger of the engine's own, where that is not by reading all
        of it; before ``start``. ``fold`` raises LogError."""
        self._fold = fold

    def grace(self, reason: str) -> None:
        """Gives every node a new full term: it could not have been heard."""
        self._put(Grace(reason))

    def __len__(self) -> int:
        """Messages waiting."""
        return len(self._inbox)

    def __bool__(self) -> bool:
        return True  # an engine with nothing to do is an engine

    def _put(self, message: Inbound) -> None:
        if self._leading:
            self._notice_stall()
            self._inbox.put(self._entry(message, None), inner=True)

    def _entry(self, message: Inbound, answer: Answer | None) -> Entry:
        return Entry(message, self.clock.now(), self._chance.token(), answer)

    def _wants(self, effect: Effect) -> bool:
        """Whether the ledger still wants an effect and we may still act."""
        if self._may_act() <= 0 or not self._leading:
            return False
        if isinstance(effect, Launch):
            worker = self.ledger.workers.get(effect.assignment.worker_id)
            return worker is not None and worker.state is WorkerState.ASSIGNED
        if isinstance(effect, Stop):
            worker = self.ledger.workers.get(effect.order.worker_id)
            node = self.ledger.nodes.get(effect.order.node_id)
            here = node is not None and not node.expired
            return here and (worker is None or not worker.gone or effect.orphan)
        return True


def _answer(answer: Answer | None, reply: Reply | SlotbusError) -> None:
    if answer is not None:
        answer(reply)
