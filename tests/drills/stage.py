"""What faults are played on: the cluster, chance, and who leads at the moment.

What lives here: the means that faults and points share. What may not: faults.
"""

from __future__ import annotations

import asyncio
import signal
from random import Random
from typing import Final

from events.subjects import Subjects
from schedulers.supervisor.process_tree import ProcessId, send_signal
from tests.drills.cluster import CONTROLLERS, NODES, Cluster
from tests.drills.frames import Frame, Way
from tests.drills.laws import AgentWitness, Laws
from tests.drills.story import Story

BACK_S: Final = (0.0, 1.5)
"""After a death: whoever watches over programs starts them again."""


class Stage:
    """Made once a drill, when the cluster's lines are there. ``random`` decides everything
    that a fault leaves open."""

    def __init__(self, cluster: Cluster, laws: Laws, story: Story, random: Random) -> None:
        self.cluster = cluster
        self.laws = laws
        self.story = story
        self.random = random
        self.leader = CONTROLLERS[0]
        self.witnesses = {node: AgentWitness(node, story) for node in NODES}
        eventlog = Subjects().eventlog
        for name in CONTROLLERS:

            def wrote(way: Way, frame: Frame, name: str = name) -> None:
                if way is Way.UP and frame.subject == eventlog:
                    self.leader = name

            cluster.lines[name].witnesses.append(wrote)
        for node, witness in self.witnesses.items():
            cluster.lines[node].witnesses.append(witness)

    @property
    def standby(self) -> str:
        return next(name for name in CONTROLLERS if name != self.leader)

    def a_node(self) -> str:
        return self.random.choice(NODES)

    def a_program(self) -> str:
        """The leader half of the time."""
        return self.leader if self.random.random() < 0.5 else self.a_node()

    async def a_worker(self) -> ProcessId | None:
        """The first process of some worker; None where none runs."""
        workers = (await self.cluster.look()).workers()
        mains = [m.id for members in workers.values() for m in members if m.leads]
        return self.random.choice(sorted(mains)) if mains else None

    async def kill(self, name: str) -> None:
        """SIGKILL to a program, which comes back a little later."""
        self.cluster.signal(name, signal.SIGKILL)
        await self.come_back(name)

    async def come_back(self, name: str) -> None:
        """It is started again a little later."""
        await asyncio.sleep(self.random.uniform(*BACK_S))
        await self.cluster.start(name)

    async def freeze(self, process: ProcessId, for_s: float) -> None:
        """SIGSTOP, and SIGCONT so many seconds later."""
        send_signal(process, signal.SIGSTOP)
        try:
            await asyncio.sleep(for_s)
        finally:
            send_signal(process, signal.SIGCONT)
