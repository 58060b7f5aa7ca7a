"""What must hold: by the event log, by the process table, and by what agents answer.

What lives here: reading along in the log with the auditor, comparing it with the process
table again and again, and the books at the end. What may not: causing trouble.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js.errors import Error as JetStreamError

from events import facts as f
from events.audit import Auditor
from events.ids import Position
from events.jetstream import JetStreamLog
from events.log import LogError, LogLost
from events.subjects import Subjects
from tests.drills.cluster import Cluster
from tests.drills.frames import Frame, Way
from tests.drills.story import Story
from tests.drills.table import Picture

EVERY_S: Final = 0.15
READ_S: Final = 5.0
STALL_S: Final = 2.0
_TROUBLE: Final = (LogError, nats.errors.Error, JetStreamError, TimeoutError, OSError)
"""The server is away or frozen: what can't be read now is read later."""


class Books:
    """What the log says, as far as the drill needs it."""

    def __init__(self) -> None:
        self.assigned: set[str] = set()
        self.ended: set[str] = set()
        self.taken: set[str] = set()
        self.outcomes: dict[str, Any] = {}
        self.records = 0
        self.leaders = 0
        self.news = asyncio.Event()

    @property
    def live(self) -> set[str]:
        """Workers that hold slots."""
        return self.assigned - self.ended

    def take(self, record: f.Record) -> None:
        self.records += 1
        for fact in record.events:
            match fact:
                case f.LeaderStarted():
                    self.leaders += 1
                case f.WorkerAssigned():
                    self.assigned.add(fact.worker_id)
                case f.WorkerEnded():
                    self.ended.add(fact.worker_id)
                case f.CommandTaken():
                    self.taken.add(fact.command_id)
                case f.CommandDone():
                    self.outcomes[fact.command_id] = fact.reply
                case _:
                    pass
        self.news.set()


class Laws:
    """``nc``: a connection of its own, on which no fault is played."""

    def __init__(self, cluster: Cluster, nc: Client, story: Story) -> None:
        self.books = Books()
        self.looks = 0
        self._cluster = cluster
        self._story = story
        self._log = JetStreamLog(nc, Subjects(), create=False, stall_s=STALL_S)
        self._auditor = Auditor()
        self._reading = asyncio.Lock()

    async def watch(self) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(EVERY_S)

    async def check(self) -> Picture:
        """One look at the log and then at the table: what had ended must not run."""
        await self.follow()
        ended = set(self.books.ended)
        picture = await self._cluster.look()
        self.looks += 1
        for worker_id, members in picture.workers().items():
            leaders = sorted(member.id.pid for member in members if member.leads)
            if len(leaders) > 1:
                self._story.violation(
                    "one process tree a worker", f"{worker_id} has sessions {leaders}"
                )
            if worker_id in ended:
                pids = sorted(member.id.pid for member in members)
                self._story.violation(
                    "what has ended does not run", f"{worker_id} ended in the log, and runs: {pids}"
                )
        return picture

    async def follow(self) -> bool:
        """Reads what is new in the log; False where it can't be read at the moment."""
        async with self._reading:
            try:
                async with asyncio.timeout(READ_S):
                    async for batch in self._log.read(self._auditor.position):
                        for record in batch:
                            self._take(record)
            except LogLost as error:
                self._story.violation("the log keeps what it acknowledged", error.message)
                return False
            except _TROUBLE:
                return False
            return True

    async def until_in_log(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Reads along until the books say so."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while loop.time() < deadline:
            await self.follow()
            if condition():
                return True
            await asyncio.sleep(0.02)
        return False

    def _take(self, record: f.Record) -> None:
        position = Position(self._auditor.position + 1)
        for broken in self._auditor.observe(position, record):
            self._story.violation(f"law {broken.law}", f"record {position}: {broken.sentence}")
        for fact in record.events:
            if isinstance(fact, f.WorkerOrphaned) and not fact.stopped:
                self._story.violation("no orphans but after log loss", fact.reason)
        self.books.take(record)

    # --- at rest ------------------------------------------------------------------------

    def compare(self, picture: Picture) -> str:
        """Where ledger and process table differ, in a sentence; empty: nowhere."""
        running, live = set(picture.workers()), self.books.live
        differ = []
        if running - live:
            differ.append(f"run and are not in the ledger: {sorted(running - live)}")
        if live - running:
            differ.append(f"in the ledger and don't run: {sorted(live - running)}")
        return "; ".join(differ)

    def check_outcomes(self, answered: dict[str, dict[str, Any]], asked: set[str]) -> None:
        """Every answer is its command's outcome in the log; what was taken has one. Only
        what was refused at the door (``invalid``) is not in the log."""
        for command_id, said in answered.items():
            logged = self.books.outcomes.get(command_id)
            if {**said, "warnings": []} not in (logged, {**(logged or {}), "warnings": []}):
                self._story.violation(
                    "an answer is the logged outcome",
                    f"{command_id} was answered {said}, the log says {logged}",
                )
        for command_id in sorted(self.books.taken - set(self.books.outcomes)):
            self._story.violation("every command has an outcome", f"{command_id} has none")
        for command_id in sorted(self.books.taken - asked):
            self._story.violation("no command from nowhere", f"nobody gave {command_id}")

    def finish(self) -> None:
        """What the auditor can only see at the end."""
        for broken in self._auditor.finish(self._auditor.ledger.state.at):
            self._story.violation(f"law {broken.law}", broken.sentence)


class _Order(msgspec.Struct, frozen=True):
    epoch: int
    seen: int
    """The highest epoch that the agent had obeyed when the order reached it."""


class _Epoch(msgspec.Struct):
    epoch: int = 0


class _Refusal(msgspec.Struct):
    error: Any = None


class AgentWitness:
    """Law 5 on a node's own line: once an order of an epoch was obeyed, none of a lower one
    that comes later is."""

    def __init__(self, node: str, story: Story) -> None:
        self.obeyed = 0
        self.refused = 0
        self._prefix = Subjects().agent(node, "")
        self._node = node
        self._story = story
        self._asked: dict[str, _Order] = {}
        self._highest = 0

    def __call__(self, way: Way, frame: Frame) -> None:
        if way is Way.DOWN and frame.subject.startswith(self._prefix) and frame.reply:
            if frame.subject.removeprefix(self._prefix) in ("start", "stop", "inventory"):
                order = msgspec.json.decode(frame.payload, type=_Epoch)
                self._asked[frame.reply] = _Order(order.epoch, self._highest)
        elif way is Way.UP and frame.subject in self._asked:
            self._answered(self._asked.pop(frame.subject), frame.payload)

    def _answered(self, order: _Order, answer: bytes) -> None:
        if msgspec.json.decode(answer, type=_Refusal).error is not None:
            self.refused += 1
            return
        self.obeyed += 1
        if order.epoch < order.seen:
            self._story.violation(
                "law 5 on the node",
                f"{self._node} obeyed epoch {order.epoch} after {order.seen}",
            )
        self._highest = max(self._highest, order.epoch)
