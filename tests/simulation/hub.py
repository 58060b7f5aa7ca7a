"""The NATS server: who listens to what, and what becomes of a message.

What lives here: connections, subjects, queue groups, no responders, restarts. What may not:
streams (``streams``, ``jsapi``), and what the messages say.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Final, Protocol, TypeAlias

from tests.simulation.jsapi import JetStream
from tests.simulation.loop import Proc, SimLoop
from tests.simulation.matching import matches
from tests.simulation.streams import Stored
from tests.simulation.weather import CALM_S, Weather
from tests.simulation.wire import (
    DIAL_TIMEOUT_S,
    Frame,
    Line,
    Ping,
    Pub,
    Refused,
    SimClient,
    Sub,
    Unsub,
)

NO_RESPONDERS: Final = {"Status": "503"}
AGAIN_S: Final = 0.05
"""By how much the second copy of a message is later, at the most."""


Index: TypeAlias = dict[str, dict[tuple[int, int], tuple[Line, Sub]]]


class Watch(Protocol):
    """Who looks on: the laws, and the trace."""

    def sent(self, proc: Proc, subject: str, data: bytes) -> None:
        """A process wrote a message to its connection."""

    def heard(self, proc: Proc, subject: str, data: bytes) -> None:
        """A message arrived at a process."""

    def passed(self, pub: Pub, count: int) -> None:
        """The server handed a message on to so many."""

    def stored(self, stream: str, stored: Stored) -> None:
        """A stream has a new message."""


class Hub:
    """One server. ``down``: it takes no connections; ``cut``: names of processes that can't
    reach it, and whether they are told so."""

    def __init__(self, loop: SimLoop, seed: str, watch: Watch) -> None:
        self.loop = loop
        self.watch = watch
        self.rng = Random(seed)
        self.proc = Proc(loop, "nats", f"{seed}/proc")
        self.weather = Weather()
        self.counts: Counter[str] = Counter()
        self.down = False
        self.cut: dict[str, bool] = {}
        self.lines: dict[int, Line] = {}
        self.jetstream = JetStream(self)
        self._dialled = 0
        self._dialled_by: Counter[str] = Counter()
        self._seed = seed
        self._named: Index = {}
        self._wild: Index = {}
        """By what stands before the first wildcard, which must be a whole token."""

    def now(self) -> float:
        return self.loop.time()

    def delay(self, line: Line) -> float:
        """Seconds that a message is on its way, one way."""
        rng, weather = line.rng, self.weather
        if weather.slow_s > CALM_S[1] and rng.random() < 0.3:
            return rng.uniform(CALM_S[0], weather.slow_s)
        return rng.uniform(*CALM_S)

    # --- connections --------------------------------------------------------------------

    async def dial(self, client: SimClient) -> Line:
        """A new connection. Raises Refused, TimeoutError."""
        await asyncio.sleep(client.proc.rng.uniform(*CALM_S))
        if self.cut.get(client.proc.name):
            await asyncio.sleep(DIAL_TIMEOUT_S)
            raise TimeoutError("the server can't be reached")
        if self.down or client.proc.name in self.cut:
            raise Refused("connection refused")
        self._dialled += 1
        name = client.proc.name
        self._dialled_by[name] += 1
        line = Line(self, client, self._dialled, f"{self._seed}/{name}/{self._dialled_by[name]}")
        self.lines[line.number] = line
        return line

    def forget(self, line: Line) -> None:
        if self.lines.pop(line.number, None) is not None:
            for sub in line.subs.values():
                self._remove(line, sub)

    def lines_of(self, name: str) -> list[Line]:
        return [line for line in self.lines.values() if line.proc.name == name]

    def cut_off(self, name: str, *, silent: bool, up: bool = True, down: bool = True) -> None:
        """A process can't reach the server any more."""
        self.cut[name] = silent
        for line in self.lines_of(name):
            if silent:
                line.hold(up=up, down=down)
            else:
                line.break_off()

    def mend(self, name: str) -> None:
        if self.cut.pop(name, None) is not None:
            for line in self.lines_of(name):
                line.let_go()

    def stop(self) -> None:
        """The server ends: every connection breaks."""
        self.down = True
        for line in list(self.lines.values()):
            line.break_off()
        self.jetstream.restarted()

    def start(self) -> None:
        self.down = False

    # --- messages -----------------------------------------------------------------------

    def take(self, line: Line, frame: Frame) -> None:
        """What a client sent has arrived."""
        if self.down:
            return
        match frame:
            case Sub():
                self._add(line, frame)
            case Unsub():
                sub = line.subs.pop(frame.sid, None)
                if sub is not None:
                    self._remove(line, sub)
            case Ping():
                line.pong(frame.number)
            case Pub():
                self.route(frame)

    def route(self, pub: Pub) -> None:
        """Hands a message on to all who want it; a stream takes it, or nobody does."""
        count = self._hand_on(pub)
        if self.jetstream.take(pub):
            count += 1
        if not count and pub.reply:
            self._hand_on(Pub(pub.reply, "", b"", NO_RESPONDERS))
        self.watch.passed(pub, count)

    def send(self, to: str, pub: Pub) -> None:
        """Gives those who listen on ``to`` a message that has a subject of its own."""
        for line, sub in self._listeners(to):
            self._give(line, sub, pub)

    def _listeners(self, subject: str) -> list[tuple[Line, Sub]]:
        """Who listens to a subject: those who named it, and those whose wildcards cover it."""
        found = list(self._named.get(subject, {}).values())
        end = subject.find(".")
        tokens = subject.split(".")
        while end > 0:
            for line, sub in self._wild.get(subject[: end + 1], {}).values():
                if matches(sub.subject, tokens):
                    found.append((line, sub))
            end = subject.find(".", end + 1)
        return found

    def _add(self, line: Line, sub: Sub) -> None:
        line.subs[sub.sid] = sub
        index, key = self._place(sub)
        index.setdefault(key, {})[line.number, sub.sid] = (line, sub)

    def _remove(self, line: Line, sub: Sub) -> None:
        index, key = self._place(sub)
        here = index.get(key, {})
        here.pop((line.number, sub.sid), None)
        if not here:
            index.pop(key, None)

    def _place(self, sub: Sub) -> tuple[Index, str]:
        stars = [at for at in (sub.subject.find("*"), sub.subject.find(">")) if at >= 0]
        if not stars:
            return self._named, sub.subject
        return self._wild, sub.subject[: min(stars)]

    def _hand_on(self, pub: Pub) -> int:
        found = self._listeners(pub.subject)
        groups: dict[str, list[tuple[Line, Sub]]] = {}
        count = 0
        for line, sub in found:
            if sub.queue:
                groups.setdefault(sub.queue, []).append((line, sub))
            else:
                self._give(line, sub, pub)
                count += 1
        for members in groups.values():
            line, sub = members[self.rng.randrange(len(members))] if members[1:] else members[0]
            self._give(line, sub, pub)
            count += 1
        return count

    def _give(self, line: Line, sub: Sub, pub: Pub) -> None:
        weather = self.weather
        if weather.loss and line.rng.random() < weather.loss:
            self.counts["message lost"] += 1
            return
        line.deliver(sub.sid, pub)
        if weather.twice and line.rng.random() < weather.twice:
            self.counts["message doubled"] += 1
            line.deliver(sub.sid, pub, extra_s=line.rng.uniform(0, AGAIN_S))
