"""The loop that everything goes through, from message to effect.

    message -> decide (folds at once) -> append -> release: answers, effects, observers
                 ^                                             |
                 +------- outcomes come back as messages ------+

What lives here: this loop, its start and its end. What may not: rules
(``schedulers.decide``), NATS, processes, Kubernetes: to it those are a log and a launcher.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Final, Self

import structlog
from msgspec import Struct, field

from events.errors import Internal, NotLeader, SlotbusError
from events.facts import CommandDone, Record
from events.ids import START, Position
from events.ledger import Ledger
from events.log import EventLog
from events.messages import (
    InventoryRow,
    RegisterNodeReq,
)
from events.pulse import Pulse
from schedulers.clock import Clock, MonotonicClock
from schedulers.decide import Draft, Rules, decide, next_due
from schedulers.decide.commands import accepted_reply, outcome_of
from schedulers.decide.messages import (
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
from schedulers.launcher import Launcher

GATHERED: Final = 256
"""Messages decided together, and so written together, at the most."""

QUEUE_LIMIT: Final = 10_000
APPEND_TIMEOUT_S: Final = 10.0
SETTLE_S: Final = 2.0
"""How long a new leader waits for the nodes' first inventories before it serves."""

PULSE_S: Final = 1.0
STALL_S: Final = 3.0
"""A loop that did not run for this long can't say that a node was silent."""

IDLE_TICK_S: Final = 60.0

log = structlog.get_logger("slotbus.engine")


class LocalNode(Struct, frozen=True, kw_only=True):
    """The one node of a backend without agents."""

    node_id: str
    task_slots: int
    incarnation: str
    machine_id: str = ""


class Backend(Struct, frozen=True, kw_only=True):
    """What a backend adds: a launcher, and the node it is itself, if it has no agents."""

    name: str
    launcher: Launcher
    local: LocalNode | None = None


class EngineSettings(Struct, frozen=True, kw_only=True):
    """``epoch`` None: the log's last plus one, or the wall clock's milliseconds."""

    cluster: str = "local"
    version: str = ""
    rules: Rules = field(default_factory=Rules)
    epoch: int | None = None
    queue_limit: int = QUEUE_LIMIT


class Decision(Struct, frozen=True):
    """A message and what was decided on it; nothing of it is out before it is stored."""

    entry: Entry
    draft: Draft


class EngineStats(Struct):
    """Counts since this engine was made, for metrics."""

    messages: Counter[str] = field(default_factory=Counter)
    records: int = 0
    appends: int = 0
    append_s: float = 0.0
    loop_errors: int = 0


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
        )
        self._clock = clock
        self._may_act = may_act
        self._inbox = Inbox(self.settings.queue_limit)
        self._waiters = Waiters()
        self._observers: list[Callable[[Position, Record], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ran_at = 0.0
        self._stored = START
        self._starting = asyncio.Lock()
        self._started = False
        self._ended: asyncio.Future[SlotbusError | None] | None = None

    # --- the loop -----------------------------------------------------------------------

    async def _lead(self) -> None:
        while True:
            entries = await self._inbox.take(GATHERED)
            decided, failed = self._decide_all(entries)
            await self._append(decided)
            for decision in decided:
                self._release(decision)
            if failed is not None:
                await self._heal(failed)
            self._set_timer()

    def _decide_all(self, entries: list[Entry]) -> tuple[list[Decision], Entry | None]:
        """Decides, and folds at once, up to the first message that shows a fault of ours;
        what comes after that one waits."""
        decided: list[Decision] = []
        for index, entry in enumerate(entries):
            try:
                decided.append(Decision(entry, self._decide(entry)))
            except Exception as error:
                self.stats.loop_errors += 1
                log.exception("decision failed", message=type(entry.message).__name__)
                _answer(entry.answer, Internal(f"a fault of slotbus: {error!r}"))
                self._inbox.put_back(entries[index + 1 :])
                return decided, entry
        return decided, None

    def _decide(self, entry: Entry) -> Draft:
        self.stats.messages[type(entry.message).__name__] += 1
        return decide(
            self.ledger,
            self.pulse,
            self.rules,
            entry.message,
            now=entry.at,
            epoch=self.epoch,
            token=entry.token,
        )

    async def _append(self, decided: list[Decision]) -> None:
        """Stores the records of these decisions, all or none. Raises LogError, NotLeader,
        which are the answer then."""
        records = [d.draft.record for d in decided if d.draft.record is not None]
        try:
            await self._store(records)
        except SlotbusError as error:
            for decision in decided:
                _answer(decision.entry.answer, error)
            raise

    async def _store(self, records: list[Record]) -> None:
        before = self._stored
        left = self._may_act()
        if left <= 0:
            raise NotLeader("the lease is over")
        if records:
            began = asyncio.get_running_loop().time()
            timeout_s = min(left, APPEND_TIMEOUT_S)
            await self.log.append(records, expected=before, timeout_s=timeout_s)
            self.stats.append_s += asyncio.get_running_loop().time() - began
            self.stats.appends += 1
            self.stats.records += len(records)
            self._stored = Position(before + len(records))
            for offset, record in enumerate(records, start=1):
                for observer in self._observers:
                    observer(Position(before + offset), record)

    def _release(self, decision: Decision) -> None:
        """Lets out what waited for the acknowledgement."""
        entry, draft = decision.entry, decision.draft
        if self._may_act() <= 0:
            raise NotLeader("the lease is over")
        for effect in draft.effects:
            self.dispatcher.start(effect)
        if draft.joined is not None and entry.answer is not None:
            self._answer_or_wait(entry, draft.joined)
        elif draft.answer is not None:
            _answer(entry.answer, draft.answer)
        for fact in draft.events:
            if isinstance(fact, CommandDone):
                outcome = outcome_of(self.ledger, fact.command_id)
                if outcome is not None:
                    self._waiters.settle(fact.command_id, outcome)

    async def _heal(self, failed: Entry) -> None:
        """A failed decision may have folded half of itself: what is true is in the log."""
        self.ledger = await self._fold_log()
        log.warning("ledger read again", position=self.ledger.position, token=failed.token)

    def _answer_or_wait(self, entry: Entry, command_id: str) -> None:
        assert entry.answer is not None
        outcome = outcome_of(self.ledger, command_id)
        wait_s: float = getattr(entry.message, "wait_s", 0.0)
        if outcome is not None:
            _answer(entry.answer, outcome)
        elif wait_s <= 0:
            _answer(entry.answer, accepted_reply(self.ledger, command_id))
        else:
            self._waiters.add(command_id, entry.answer, wait_s)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = next_due(self.ledger, self.pulse)
        delay = IDLE_TICK_S
        if due is not None:
            # Just after: exactly at its expiry a node is still alive.
            delay = min(delay, max(0.0, (due - self.clock.now()).total_seconds()) + 0.001)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, self._put, Tick())

    # --- what comes in ------------------------------------------------------------------

    def offer(self, message: Inbound, answer: Answer | None = None) -> None:
        """Puts a message into the inbox. ``answer`` is called once, in the loop, after the
        log acknowledged what the message led to. Raises Overloaded, NotLeader."""
        if self._ended is None or self._ended.done():
            raise NotLeader("this controller does not lead")
        self._notice_stall()
        self._inbox.put(self._entry(message, answer), inner=False)

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

    def grace(self, reason: str) -> None:
        """Gives every node a new full term: it could not have been heard."""
        self._put(Grace(reason))

    def __len__(self) -> int:
        """Messages waiting."""
        return len(self._inbox)

    def _put(self, message: Inbound) -> None:
        self._notice_stall()
        self._inbox.put(self._entry(message, None), inner=True)

    def _entry(self, message: Inbound, answer: Answer | None) -> Entry:
        return Entry(message, self.clock.now(), secrets.token_hex(6), answer)

    def _notice_stall(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._ran_at > STALL_S + PULSE_S:
            reason = f"the loop stood still for {now - self._ran_at:.0f} s"
            log.warning("stalled", seconds=round(now - self._ran_at, 1))
            self._ran_at = now
            self._inbox.put(self._entry(Grace(reason), None), inner=True)
        self._ran_at = now

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            self._notice_stall()

    async def _take_reports(self) -> None:
        async for report in self.backend.launcher.reports():
            self._put(report)

    # --- start and end ------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        if self._clock is None:
            self._clock = MonotonicClock(asyncio.get_running_loop().time)
        return self._clock

    async def start(self) -> None:
        """Reads the log, writes that this controller leads, asks the nodes what they run.

        Raises LogError, NotLeader; the launcher's errors for a local node.
        """
        async with self._starting:
            if self._started:
                return
            await self._read_log()
            self._ended = asyncio.get_running_loop().create_future()
            self._ran_at = asyncio.get_running_loop().time()
            entry = self._entry(self._led(), None)
            led = Decision(entry, self._decide(entry))
            await self._append([led])
            self._release(led)
            self._tasks = [
                asyncio.create_task(self._guard(self._lead()), name="engine loop"),
                asyncio.create_task(self._guard(self._beat()), name="engine pulse"),
                asyncio.create_task(self._guard(self._take_reports()), name="engine reports"),
            ]
            if self.backend.local is not None:
                await self._register_local(self.backend.local)
            await self.dispatcher.until_idle(SETTLE_S)
            self._started = True

    async def _fold_log(self) -> Ledger:
        ledger = Ledger()
        async for records in self.log.read():
            for record in records:
                ledger.apply(record)
        self._stored = Position(ledger.position)
        return ledger

    async def _read_log(self) -> None:
        self.ledger = await self._fold_log()
        if self.ledger.state.at is not None:
            self.clock.not_before(self.ledger.state.at)
        wall_ms = int(datetime.now(UTC).timestamp() * 1000)
        self.epoch = self.settings.epoch or max(self.ledger.state.epoch + 1, wall_ms)

    def _led(self) -> LedRead:
        cluster = self.settings.cluster
        return LedRead(cluster, self.backend.name, self.settings.version)

    async def _register_local(self, local: LocalNode) -> None:
        inventory = await self.backend.launcher.inventory(
            local.node_id, local.incarnation, self.epoch, SETTLE_S
        )
        workers: list[InventoryRow] = inventory.workers
        await self.submit(
            RegisterNodeReq(
                node_id=local.node_id,
                task_slots=local.task_slots,
                incarnation=local.incarnation,
                machine_id=local.machine_id,
                workers=workers,
                epoch=self.epoch,
            )
        )

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        """Whatever ends one of the engine's tasks ends the leadership, with its cause."""
        try:
            await work
        except SlotbusError as error:
            self._end(error)
        except Exception as error:
            self.stats.loop_errors += 1
            log.exception("loop failed")
            self._end(Internal(f"the engine's loop failed: {error!r}"))

    def _end(self, error: SlotbusError | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(error)
        over = NotLeader("this controller no longer leads: ask again")
        self._waiters.close(over)
        for entry in self._inbox.drain():
            _answer(entry.answer, over)

    async def wait_closed(self) -> SlotbusError | None:
        """Waits for the end of this leadership; its cause, or None after ``close``."""
        if self._ended is None:
            raise NotLeader("this engine was never started")
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Ends this leadership: nothing goes out afterwards, everybody is answered."""
        self._end(None)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.dispatcher.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _wants(self, effect: Effect) -> bool:
        """Whether the ledger still wants an effect and we may still act."""
        if self._may_act() <= 0 or self._ended is None or self._ended.done():
            return False
        if isinstance(effect, Launch):
            worker = self.ledger.workers.get(effect.assignment.worker_id)
            return worker is not None and not worker.gone and not worker.launched
        if isinstance(effect, Stop):
            worker = self.ledger.workers.get(effect.order.worker_id)
            node = self.ledger.nodes.get(effect.order.node_id)
            here = node is not None and not node.expired
            return here and (worker is None or not worker.gone or effect.orphan)
        return True


def _answer(answer: Answer | None, reply: Reply | SlotbusError) -> None:
    if answer is not None:
        answer(reply)
