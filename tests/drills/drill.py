"""A drill: unrest and peace in turns, and what came of it.

What lives here: which faults when, what must be true once all is healed, and the figures.
What may not: single faults, single laws.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from msgspec import Struct, field

from controller.embedded import EmbeddedServerError
from events.asking import Patience
from events.client import SlotbusClient
from events.errors import SlotbusError
from events.queries import NodeRow
from events.states import NodeState
from tests.drills.cluster import NODE_SLOTS, NODES, Cluster, Programs
from tests.drills.faults import FAULTS, Fault
from tests.drills.laws import Laws
from tests.drills.points import AT_POINTS
from tests.drills.stage import Stage
from tests.drills.story import Story
from tests.drills.workload import Client, Crowd
from tests.support.nats import connected
from tests.support.waiting import background

CLIENTS: Final = 4
UP_S: Final = 40.0
PEACE_S: Final = 60.0
"""Once all is healed, ledger and process table agree within this; on a busy machine."""

UNREST: Final = (4, 9)
"""Faults between two times of peace."""

PAUSE_S: Final = (0.1, 1.2)
"""Between two faults, which may overlap."""

PATIENCE: Final = Patience(absent_s=5.0, query_s=5.0)
ALL: Final = (*FAULTS, *AT_POINTS)

Wrong: TypeAlias = Callable[[], Awaitable[str]]
"""Says what is wrong; empty: nothing."""


class Plan(Struct, frozen=True, kw_only=True):
    """A drill ends after ``seconds``, after ``faults`` where that is given, or with the first
    violation. Faults are taken at random from ``among``; a ``script`` is played in order."""

    seed: int
    seconds: float = 300.0
    faults: int | None = None
    among: Sequence[Fault] = ALL
    script: Sequence[Fault] = ()
    programs: Programs = field(default_factory=Programs)
    folder: Path | None = None
    """Where a failed drill leaves everything; None: below the system's for temporary files."""


class Report(Struct, kw_only=True):
    """What came of a drill. ``left``: where it can be looked at, where something is wrong."""

    seed: int
    seconds: float
    faults: dict[str, int]
    kills: int
    commands: int
    answers: dict[str, int]
    records: int
    leaders: int
    workers: int
    looks: int
    orders_obeyed: int
    orders_refused: int
    violations: list[str]
    left: Path | None = None


async def drill(plan: Plan) -> Report:
    """Runs one; ends every process that it started. Raises what is no fault of slotbus."""
    folder = Path(tempfile.mkdtemp(prefix=f"slotbus-drill-{plan.seed}-", dir=plan.folder))
    story = Story(folder)
    began = time.monotonic()
    async with _drill(plan, folder, story) as made:
        try:
            await made.play()
        except (SlotbusError, EmbeddedServerError, TimeoutError) as error:
            story.violation("a drill comes to its end", repr(error))
    report = made.report(time.monotonic() - began)
    if report.violations:
        report.left = folder
    else:
        shutil.rmtree(folder)
    return report


@asynccontextmanager
async def _drill(plan: Plan, folder: Path, story: Story) -> AsyncIterator[_Drill]:
    cluster = Cluster(folder, plan.programs)
    try:
        await cluster.open()
        url = cluster.server.url
        async with (
            connected(url) as nc,
            SlotbusClient.connect(url, name="drill", patience=PATIENCE) as bus,
        ):
            laws = Laws(cluster, nc, story)
            random = Random(plan.seed)
            clients = [
                Client(bus, f"client{n}", cluster.mark, random.randrange(2**32), story)
                for n in range(CLIENTS)
            ]
            stage = Stage(cluster, laws, story, random)
            yield _Drill(plan, stage, bus, Crowd(clients))
    finally:
        left = await cluster.close()
        if left:
            story.violation("nothing is left after the end", f"pids {[m.id.pid for m in left]}")


class _Drill:
    def __init__(self, plan: Plan, stage: Stage, bus: SlotbusClient, crowd: Crowd) -> None:
        self._plan = plan
        self._stage = stage
        self._cluster = stage.cluster
        self._laws = stage.laws
        self._story = stage.story
        self._random = stage.random
        self._bus = bus
        self._crowd = crowd
        self._played = 0
        self._kills = 0
        self._deadline = time.monotonic() + plan.seconds

    async def play(self) -> None:
        """All of it, to the empty table at the end."""
        await self._until_up()
        self._crowd.open()
        try:
            async with background(self._laws.watch()) as watching:
                if self._plan.script:
                    await self._round(self._plan.script)
                while not self._plan.script and not self._over():
                    await self._round(None)
                if watching.done():
                    watching.result()
                if not self._story.violations:
                    await self._stop_all()
        finally:
            await self._crowd.close()
        self._laws.finish()

    def _over(self) -> bool:
        wanted = self._plan.faults
        return (
            bool(self._story.violations)
            or time.monotonic() >= self._deadline
            or (wanted is not None and self._played >= wanted)
        )

    # --- unrest -------------------------------------------------------------------------

    async def _round(self, script: Sequence[Fault] | None) -> None:
        self._crowd.act()
        if script is not None:
            for fault in script:
                await asyncio.sleep(self._random.uniform(*PAUSE_S))
                await self._play(fault)
        else:
            async with asyncio.TaskGroup() as group:
                for fault in self._some_faults():
                    await asyncio.sleep(self._random.uniform(*PAUSE_S))
                    group.create_task(self._play(fault), name=fault.kind)
        await self._peace()

    def _some_faults(self) -> list[Fault]:
        kinds = self._plan.among
        count = self._random.randint(*UNREST)
        if self._plan.faults is not None:
            count = min(count, self._plan.faults - self._played)
        return self._random.choices(kinds, [fault.weight for fault in kinds], k=count)

    async def _play(self, fault: Fault) -> None:
        try:
            details = await fault.play(self._stage)
        except EmbeddedServerError as error:  # two faults of the server met
            details = None
            self._story.tell("not played", kind=fault.kind, error=error.message)
        if details is None:
            self._story.tell("nothing to do", kind=fault.kind)
            return
        self._played += 1
        self._kills += fault.kills
        self._story.fault(fault.kind, details)

    # --- peace --------------------------------------------------------------------------

    async def _until_up(self) -> None:
        if not await self._eventually(self._not_up, UP_S):
            self._story.violation("it comes up", await self._not_up())
        self._story.tell("up")

    async def _peace(self) -> None:
        """All is healed: every command gets its outcome, and the books agree with the table."""
        await self._cluster.heal()
        self._story.tell("healed")
        await self._crowd.rest()
        self._story.tell("everybody rests")
        await self._must_agree()
        await self._answers_must_hold()
        self._story.tell("peace", records=self._laws.books.records)

    async def _must_agree(self) -> None:
        """One violation is enough: what follows from it need not be waited for."""
        if not self._story.violations and not await self._eventually(self._disagreement, PEACE_S):
            self._story.violation("at rest all accounts agree", await self._disagreement())

    async def _answers_must_hold(self) -> None:
        if await self._laws.follow():
            asked = {command_id for one in self._crowd.clients for command_id in one.asked}
            self._laws.check_outcomes(self._crowd.outcomes, asked)

    async def _disagreement(self) -> str:
        """Where ledger, process table and nodes differ, in a sentence."""
        if not await self._laws.follow():
            return "the log can't be read"
        undone = self._crowd.queued - set(self._laws.books.outcomes)
        if undone:
            return f"left in the queue and not done: {sorted(undone)}"
        picture = await self._laws.check()
        differ = self._laws.compare(picture)
        if differ:
            return differ
        used = Counter[str]()
        for row in await self._bus.workers():
            if row.state != "running":
                return f"worker {row.worker_id} is {row.state}"
            used[row.node_id] += row.slots
        rows = {row.node_id: row for row in await self._bus.nodes()}
        return next(filter(None, (_wrong(rows.get(n), n, used[n]) for n in NODES)), "")

    async def _not_up(self) -> str:
        rows = await self._bus.nodes()
        return "" if len(rows) == len(NODES) else f"{len(rows)} of {len(NODES)} nodes"

    async def _stop_all(self) -> None:
        """Stops every job: nothing of them is left, neither in the table nor in the books."""
        await self._crowd.stop_all()
        await self._must_agree()
        if self._laws.books.live:
            self._story.violation(
                "nothing is left after stop", f"live workers: {sorted(self._laws.books.live)}"
            )
        picture = await self._cluster.look()
        if picture.workers():
            self._story.violation(
                "nothing is left after stop", f"running: {sorted(picture.workers())}"
            )
        await self._answers_must_hold()

    async def _eventually(self, wrong: Wrong, within_s: float) -> bool:
        """Whether nothing is wrong any more, soon enough."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and not self._story.violations:
            with contextlib.suppress(SlotbusError):
                if not await wrong():
                    return True
            await asyncio.sleep(0.1)
        return False

    # --- the end ------------------------------------------------------------------------

    def report(self, seconds: float) -> Report:
        books, witnesses = self._laws.books, self._stage.witnesses.values()
        outcomes = self._crowd.outcomes.values()
        answers = Counter(said["error"]["code"] if "error" in said else "ok" for said in outcomes)
        return Report(
            seed=self._plan.seed,
            seconds=seconds,
            faults=dict(sorted(self._story.faults.items())),
            kills=self._kills,
            commands=len(self._crowd.outcomes),
            answers=dict(answers),
            records=books.records,
            leaders=books.leaders,
            workers=len(books.assigned),
            looks=self._laws.looks,
            orders_obeyed=sum(witness.obeyed for witness in witnesses),
            orders_refused=sum(witness.refused for witness in witnesses),
            violations=self._story.violations,
        )


def _wrong(row: NodeRow | None, node: str, used: int) -> str:
    if row is None:
        return f"node {node} is unknown"
    if row.state is NodeState.EXPIRED:
        return f"node {node} is expired"
    if row.free_slots != NODE_SLOTS - used:
        return f"node {node} has {row.free_slots} free slots, and {used} are used"
    return ""
