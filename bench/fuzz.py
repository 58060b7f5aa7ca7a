"""``python -m bench.fuzz [COUNT] [SEED]``: random bodies through the decoder and the engine.

What lives here: bodies of every shape, the way they take to a real engine over a memory log,
and what is counted. What may not: the wire; ``tests/integration/test_bad_input.py`` has that.

It ends by itself. It fails where a body was not answered, an answer had no code, deciding
was a fault of ours, a law was broken, or the log says otherwise than the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct

from controller.services import read_request
from events.asking import ROUTES
from events.audit import Auditor
from events.codec import decode_with, encode
from events.errors import CODES, SlotbusError
from events.facts import Record
from events.ids import Position
from events.ledger import Ledger
from events.log import MemoryLog
from events.traffic import (
    AgentStopReply,
    HeartbeatNodeReq,
    InventoryReply,
    RegisterNodeReq,
    WorkerFinishedReq,
)
from schedulers.decide.draft import Rules
from schedulers.decide.messages import Inbound, Reply
from schedulers.engine import Backend, Engine, EngineSettings
from schedulers.launcher import Assignment, LaunchAck, Report, StopOrder

COUNT: Final = 1_000_000
SEED: Final = 1
IN_FLIGHT: Final = 2_000
ANSWERED_S: Final = 60.0
AUDIT_EVERY: Final = 5_000
NODE_KINDS: Final = (RegisterNodeReq, HeartbeatNodeReq, WorkerFinishedReq)
KINDS: Final[tuple[type[msgspec.Struct], ...]] = (*ROUTES, *NODE_KINDS)
IDS: Final = ("a", "b", "n1", "n2", "w-1", "", "a.b", "a b", "*", ">", "x" * 128, "x" * 300, "é")
RAW: Final = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"0", b"1.5", b"true", b"null", b'"1"',
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"1" + b"0" * 60,
    b"1" + b"0" * 5_000, b"[]", b"{}", b'"\\ud800"', b'"\\u0000"', b'"\xff"', b"[[[[]]]]", b"1e308",
    b'{"SLOTBUS_X":"1"}', b'{"1A":"x"}', b'{"A":"\\u0000"}', b'{"A":1}', b'{"a":{"b":[1]}}',
)  # fmt: skip
DEEP: Final = b"[" * 100_000


class Body(Struct, frozen=True):
    """What somebody sends: for which message, under which node's subject."""

    kind: type[msgspec.Struct]
    data: bytes
    node_id: str


class Hostile:
    """The same bodies for the same seed: some valid, most of them nearly so."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def body(self) -> Body:
        """One more."""
        chance = self._random
        kind = chance.choice(KINDS)
        draw = chance.random()
        if draw < 0.0005:
            data = DEEP
        elif draw < 0.05:
            data = chance.randbytes(chance.randrange(40))
        else:
            data = self._object(kind)
            if draw < 0.15:
                data = self._damaged(data)
        return Body(kind, data, chance.choice(("n1", "n2", "n3")))

    def _object(self, kind: type[msgspec.Struct]) -> bytes:
        fields = {field.encode_name: self._value(field.encode_name) for field in _fields(kind)}
        for name, needed in [(field.encode_name, field.required) for field in _fields(kind)]:
            if self._random.random() < (0.03 if needed else 0.7):
                del fields[name]
        if self._random.random() < 0.1:
            fields[self._random.choice(("slot", "jobid", "unknown", "", "x" * 500))] = b"1"
        if fields and self._random.random() < 0.3:
            fields[self._random.choice(list(fields))] = self._random.choice(RAW)
        return (
            b"{" + b",".join(encode_text(name) + b":" + raw for name, raw in fields.items()) + b"}"
        )

    def _value(self, name: str) -> bytes:
        chance = self._random
        if name.endswith("_id") and name != "run_id":
            return encode_text(chance.choice(IDS[:5] if chance.random() < 0.9 else IDS))
        if name in ("run_id", "slots", "seq", "epoch", "limit", "exit_code", "signal", "pid"):
            return str(chance.choice((1, 1, 2, 3, 0, 10**6, 2**63 - 1))).encode()
        known: dict[str, tuple[bytes, ...]] = {
            "task_slots": (b"4", b"0", b"1000000", b"8"),
            "incarnation": (b'"i1"', b'"i2"'),
            "wait_s": (b"0",),
            "grace_s": (b"0", b"1"),
            "force": (b"true", b"false"),
            "all": (b"true", b"false"),
            "workers": (b"[]", b"null", STRANGER),
            "state": (b'"finished"', b'"failed"', b'"lost"', b'"nothing"'),
            "env_vars": (b'{"A":"1"}', b"{}"),
            "labels": (b'{"zone":"a"}',),
            "scheduler_config": (b"{}", b'{"spread":"even"}', b'{"sprad":1}', b'{"command":"x"}'),
        }
        return chance.choice(known.get(name, (b'"text"', b"{}", b"1")))

    def _damaged(self, data: bytes) -> bytes:
        chance = self._random
        at = chance.randrange(len(data) + 1)
        match chance.randrange(3):
            case 0:
                return data[:at]
            case 1:
                return data[:at] + chance.randbytes(chance.randrange(1, 4)) + data[at:]
            case _:
                return data + data


STRANGER: Final = (
    b'[{"worker_id":"w-9","job_id":"a","run_id":1,"slots":1,"state":"running","pid":1%s}]'
    % (b"0" * 30)
)


def _fields(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    return msgspec.structs.fields(kind)


def encode_text(text: str) -> bytes:
    return msgspec.json.encode(text)


class Yielding:
    """A launcher for which everything works and nothing runs."""

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        return LaunchAck(pid=1)

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        return AgentStopReply(state="unknown")

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        return InventoryReply(incarnation=incarnation, seq=0, epoch=epoch, workers=[])

    async def reports(self) -> AsyncIterator[Report]:
        await asyncio.Event().wait()
        yield InventoryReply(incarnation="", seq=0, epoch=0, workers=[])  # never reached

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


class Range:
    """An engine under fire. ``outcomes``: answers by kind of message and code."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.violations: list[str] = []
        self.log = MemoryLog()
        self.engine = Engine(
            Backend(name="none", launcher=Yielding()),
            self.log,
            EngineSettings(rules=Rules(remembered_commands=1_000, remembered_jobs=100)),
        )
        self._auditor = Auditor(snapshot_every=AUDIT_EVERY)
        self._open = 0
        self._room = asyncio.Event()

    async def fire(self, count: int, seed: int) -> None:
        """Sends ``count`` bodies, and waits until each is answered."""
        hostile = Hostile(seed)
        self.engine.observe(self._observe)
        async with self.engine:
            for _ in range(count):
                self.send(hostile.body())
                if self._open >= IN_FLIGHT:
                    await self._until(IN_FLIGHT // 2)
            await self._until(0)
            await self.engine.dispatcher.until_idle(ANSWERED_S)
        await self._check()

    def send(self, body: Body) -> None:
        """As the inbox does with what arrives."""
        name = body.kind.__name__
        self._open += 1
        answer = partial(self._answered, name)
        try:
            self.engine.offer(_read(body), answer)
        except SlotbusError as error:
            answer(error)

    def _answered(self, name: str, outcome: Reply | SlotbusError) -> None:
        self._open -= 1
        self._room.set()
        if isinstance(outcome, SlotbusError):
            assert outcome.code in CODES, outcome
            encode(outcome.body())
            self.outcomes[name, outcome.code] += 1
        else:
            encode(outcome)
            self.outcomes[name, "ok"] += 1

    async def _until(self, most: int) -> None:
        async with asyncio.timeout(ANSWERED_S):
            while self._open > most:
                self._room.clear()
                await self._room.wait()

    def _observe(self, position: Position, record: Record) -> None:
        self.violations += [v.sentence for v in self._auditor.observe(position, record)]

    async def _check(self) -> None:
        self.violations += [v.sentence for v in self._auditor.finish()]
        again = Ledger()
        async for batch in self.log.read():
            for record in batch:
                again.apply(record)
        if again.snapshot() != self.engine.ledger.snapshot():
            self.violations.append("the ledger is not what the log says")
        if self.engine.stats.loop_errors:
            self.violations.append(f"{self.engine.stats.loop_errors} faults in the loop")
        if self._open:
            self.violations.append(f"{self._open} bodies were not answered")


def _read(body: Body) -> Inbound:
    if body.kind in NODE_KINDS:
        return decode_with(body.data, body.kind, node_id=body.node_id)  # type: ignore[return-value]
    return read_request(body.kind, body.data, None, [])  # type: ignore[type-var, return-value]


def main() -> int:
    """Prints the counts; 1 where anything was wrong."""
    count, seed = (
        int(word) for word in (sys.argv[1:] + [str(COUNT), str(SEED)][len(sys.argv) - 1 :])
    )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    began = time.perf_counter()
    target = asyncio.run(_fired(count, seed))
    took = time.perf_counter() - began
    for (name, code), number in sorted(target.outcomes.items()):
        sys.stdout.write(f"{name:<20} {code:<18} {number:>9,}\n")
    position = target.engine.ledger.position
    sys.stdout.write(f"{count:,} bodies, {position:,} records, {took:.0f} s, seed {seed}\n")
    for sentence in target.violations[:20]:
        sys.stdout.write(f"wrong: {sentence}\n")
    return 1 if target.violations else 0


async def _fired(count: int, seed: int) -> Range:
    target = Range()
    await target.fire(count, seed)
    return target


if __name__ == "__main__":
    sys.exit(main())
