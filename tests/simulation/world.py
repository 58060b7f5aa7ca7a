"""A world in which a story is told: everything that takes part, on one clock.

What lives here: making it, letting time pass, telling what happened. What may not: what the
actions do (``workload``, ``troubles``), what must hold (``laws``, ``quiet``).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import structlog

from controller.identity import Process
from tests.simulation import seams, troubles, workload
from tests.simulation.hub import Hub
from tests.simulation.laws import Laws
from tests.simulation.loop import BEGIN_S, OWNER, Proc, SimLoop, State, current
from tests.simulation.machine import INIT, Machine, Program, Running
from tests.simulation.parties import Agent, Controller
from tests.simulation.people import People
from tests.simulation.quiet import problems
from tests.simulation.story import Action, Story, Told
from tests.simulation.streams import Stored
from tests.simulation.wire import Pub

ROOT: Final = "slotbus"
LOG_STREAM: Final = "SLOTBUS_LOG"
QUIET_S: Final = 150.0
"""Within so many seconds after everything was mended, all must be well."""

LOOK_S: Final = 1.0
LINES_KEPT: Final = 400
CLOSES: Final = 50
"""How often a coroutine may refuse to end."""


class World:
    """One story's. ``verbose``: what the programs would log is kept, too."""

    def __init__(self, story: Story, folder: Path, loop: SimLoop, *, verbose: bool) -> None:
        self.story = story
        self.folder = folder
        self.loop = loop
        self.verbose = verbose
        self.seed = f"{story.seed}"
        self.rng = Random(f"{self.seed}/world")
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.trouble: Counter[str] = Counter()
        self.programs: dict[str, Program] = {}
        self._digest = hashlib.sha256()
        self._procs: list[Proc] = []
        self._known: dict[int, Proc] = {}
        self.main = self.proc("world", None)
        self.laws = Laws(loop.time, ROOT, story.setup.expiry_s)
        self.hub = Hub(loop, f"{self.seed}/hub", self)
        self.controllers: dict[str, Controller] = {}
        self.agents: dict[str, Agent] = {}
        self.people = People(self)

    # --- making -------------------------------------------------------------------------

    def proc(self, name: str, machine: Machine | None, *, life: int = 1) -> Proc:
        """A new process."""
        proc = Proc(self.loop, name, f"{self.seed}/{name}/{life}", machine)
        proc.wall_offset = Random(f"{self.seed}/{name}/clock").uniform(-2.0, 2.0)
        before = [other for other in self._procs if other.name == name]
        if before:
            proc.wall_offset = before[-1].wall_offset
        self._procs.append(proc)
        self._known[seams.process_of(name, life).pid] = proc
        self._life = life
        return proc

    def add_node(self, node_id: str, slots: int) -> Agent:
        """One more machine."""
        kernel = self.proc(f"k-{node_id}", None)
        machine = Machine(kernel, node_id, slots, self)
        machine.programs = lambda job_id: self.programs.get(job_id, Program())
        agent = self.agents[node_id] = Agent(self, machine)
        self.laws.machines = [agent.node for agent in self.agents.values()]
        return agent

    def this_process(self) -> Process:
        proc = current()
        lives = sum(other.name == proc.name for other in self._procs)
        return seams.process_of(proc.name, lives)

    def provably_gone(self, process: Process) -> bool:
        """All controllers are on machines of their own: nobody can tell."""
        return False

    # --- telling ------------------------------------------------------------------------

    async def tell(self) -> None:
        """The whole story, up to the first broken law."""
        setup = self.story.setup
        for number in range(1, setup.controllers + 1):
            self.controllers[f"c{number}"] = Controller(self, f"c{number}")
        for number, slots in enumerate(setup.slots, 1):
            self.add_node(f"n{number}", slots)
        for party in (*self.controllers.values(), *self.agents.values()):
            party.start()
        self.people.begin()
        for action in sorted(self.story.actions, key=lambda action: action.at):
            await self._wait_until(BEGIN_S + action.at)
            if self.laws.broken:
                return
            self._act(action)
        await self._wait_until(BEGIN_S + self.story.length_s)
        if not self.laws.broken:
            await self._settle()

    async def _wait_until(self, at: float) -> None:
        while self.loop.time() < at and not self.laws.broken:  # noqa: ASYNC110  time itself
            await asyncio.sleep(min(LOOK_S, at - self.loop.time()))

    def _act(self, action: Action) -> None:
        self.laws.steps += 1
        self.note(f"* {_words(action)}")
        do = workload.KINDS.get(action.kind)
        if do is None:
            do = troubles.KINDS[action.kind]
            self.trouble[action.kind] += 1
        do(self, action)
        self.laws.check()

    async def _settle(self) -> None:
        self.note("* everything is mended")
        troubles.mend_all(self)
        left = ["nothing was looked at"]
        for _ in range(int(QUIET_S / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            if self.laws.broken:
                return
            left = problems(self)
            if not left:
                break
        else:
            self.laws.say(f"not settled {QUIET_S:.0f} s after peace: " + "; ".join(left))
        for violation in self.laws.auditor.finish():
            self.laws.say(f"law {violation.law} at the end: {violation.sentence}")

    def date(self) -> datetime:
        """The true date and time."""
        return seams.DAWN + timedelta(seconds=self.loop.time())

    def later(self, delay_s: float, happen: Callable[[], object]) -> None:
        """Something of the story itself, some seconds from now."""
        self.main.post_at(self.loop.time() + delay_s, happen)

    # --- watching -----------------------------------------------------------------------

    def note(self, line: str) -> None:
        """For the digest, and for people."""
        self._trace(line.encode())
        self.lines.append(f"{self.loop.time() - BEGIN_S:9.3f} {line}")

    def _trace(self, *parts: bytes) -> None:
        self._digest.update(b"%.6f " % self.loop.time())
        for part in parts:
            self._digest.update(part)

    def log_line(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        """What a program would log."""
        if self.verbose:
            owner = OWNER.get()
            facts = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "level"))
            name = owner.name if owner is not None else "?"
            line = f"{self.loop.time() - BEGIN_S:9.3f}   {name}: {event.get('event')} {facts}"
            self.lines.append(line[:300])
        raise structlog.DropEvent

    def sent(self, proc: Proc, subject: str, data: bytes) -> None:
        self._trace(proc.name.encode(), subject.encode(), data)
        self.laws.sent(proc, subject, data)

    def passed(self, pub: Pub, count: int) -> None:
        self._trace(b"%d " % count, pub.subject.encode(), pub.data)
        self.laws.passed(pub, count)

    def heard(self, proc: Proc, subject: str, data: bytes) -> None:
        self._trace(proc.name.encode(), b"<", subject.encode())
        self.laws.heard(proc, subject, data)

    def stored(self, stream: str, stored: Stored) -> None:
        if stream == LOG_STREAM:
            before = len(self.laws.records)
            self.laws.logged(stored)
            if self.verbose:
                for number, record in enumerate(self.laws.records[before:], before + 1):
                    tags = " ".join(str(f.__struct_config__.tag) for f in record.events)
                    self.note(f"  log {number} e{record.epoch % 100_000} {record.cause}: {tags}")

    def spawned(self, machine: Machine, process: Running) -> None:
        self.note(f"  {machine.node_id} starts {process.worker_id} as {process.pid}")
        self.laws.spawned(machine, process)

    def signalled(self, machine: Machine, process: Running, number: int) -> None:
        self.note(f"  {machine.node_id} sends {number} to {process.worker_id or process.pid}")
        host = self.agents[machine.node_id].host
        known = host.core._state.workers.get(process.worker_id) if host.core else None
        asked = known is None or known.stopping is None or known.stopping.asked
        self.laws.signalled(machine, process, number, asked)

    def ended(self, machine: Machine, process: Running) -> None:
        host = self.agents[machine.node_id].host
        if process.code is not None and host.there and process.parent != INIT:
            self.laws.exits[process.worker_id] = process.code
        self.note(f"  {machine.node_id}: {process.worker_id or process.pid} has ended")
        self.laws.check()

    def answered(self, command_id: str, answer: str) -> None:
        self.note(f"  {command_id} is answered: {answer}")
        self.laws.steps += 1

    def failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody took."""
        self.laws.say(f"nobody took: {context.get('message')}: {context.get('exception')!r}")

    def told(self) -> Told:
        return Told(
            digest=self._digest.hexdigest(),
            broken=self.laws.broken,
            steps=self.laws.steps,
            turns=self.loop.turns,
            records=len(self.laws.records),
            lasted_s=self.loop.time() - BEGIN_S,
            trouble=dict(sorted((self.trouble + self.hub.counts).items())),
            lines=list(self.lines),
        )

    def bury(self) -> None:
        """What is left of all processes is ended without a turn of the loop."""
        for proc in self._procs:
            proc.state = State.DEAD
        for task in list(self.loop.tasks.values()):
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                work = task.get_coro()
                for _ in range(CLOSES):
                    try:
                        work.close()
                        break
                    except KeyboardInterrupt:
                        raise
                    except BaseException:  # noqa: BLE001  its own end ran into something
                        continue
        for agent in self.agents.values():
            if agent.host.core is not None:
                with contextlib.suppress(OSError):
                    agent.host.core._memory.close()


def tell(story: Story, *, verbose: bool = False) -> Told:
    """Tells a story from its beginning to its end, or to the first broken law."""
    with TemporaryDirectory(prefix="story-") as folder, _no_collector():
        return _tell(story, Path(folder), verbose=verbose)


def _tell(story: Story, folder: Path, *, verbose: bool) -> Told:
    loop = SimLoop()
    try:
        world = World(story, folder, loop, verbose=verbose)
        loop.set_exception_handler(world.failed)
        with seams.installed(world):
            try:
                loop.run_until_complete(world.main.spawn(world.tell()))
                return world.told()
            finally:
                world.bury()
    finally:
        loop.set_exception_handler(lambda *_: None)
        loop.tasks.clear()
        loop.ready.clear()
        loop.timers.clear()
        loop.close()


@contextmanager
def _no_collector() -> Iterator[None]:
    """What is thrown away is collected after the story, in silence: programs that were killed
    had no chance to tidy up."""
    collecting, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()
    gc.freeze()  # what was there before need not be gone through
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        sys.unraisablehook = hook
        if collecting:
            gc.enable()


def _words(action: Action) -> str:
    said = [action.kind, action.who, action.job]
    said += [str(action.n)] if action.n else []
    said += [f"{action.s:g} s"] if action.s else []
    said += [f"{action.p:g}"] if action.p else []
    said += ["on"] if action.on else []
    return " ".join(word for word in said if word)
