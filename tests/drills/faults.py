"""What happens at random: deaths, frozen processes, servers that restart, bad lines.

What lives here: one function for each kind, which does it and undoes what does not undo
itself. What may not: when each is done (``drill``); chosen moments (``points``).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from msgspec import Struct

from events.subjects import Subjects
from schedulers.supervisor.process_tree import send_signal
from tests.drills.cluster import EXPIRY_S, LEASE_S
from tests.drills.frames import Frame, Way
from tests.drills.stage import Stage

FREEZE_LEADER_S: Final = (0.3, 1.0, LEASE_S + 1.5)
FREEZE_NODE_S: Final = (0.5, 1.5, EXPIRY_S + 1.5)
FREEZE_SERVER_S: Final = (0.3, 1.0, LEASE_S + 1.0)
LINE_S: Final = (0.3, 1.0, EXPIRY_S + 1.0)
DELAYS_S: Final = (0.02, 0.1, 0.4)

Play: TypeAlias = Callable[[Stage], Awaitable[str | None]]
"""Does it; says what it was, or None where there was nothing to do it to."""


class Fault(Struct, frozen=True):
    """``weight``: how often, compared with the others. ``kills``: it is a SIGKILL."""

    kind: str
    play: Play
    weight: float = 1.0
    kills: bool = False


async def kill_leader(stage: Stage) -> str | None:
    name = stage.leader
    await stage.kill(name)
    return name


async def kill_standby(stage: Stage) -> str | None:
    name = stage.standby
    await stage.kill(name)
    return name


async def kill_agent(stage: Stage) -> str | None:
    node = stage.a_node()
    await stage.kill(node)
    return node


async def kill_supervisor(stage: Stage) -> str | None:
    node = stage.a_node()
    process = await stage.cluster.supervisor(node)
    return node if process is not None and send_signal(process, signal.SIGKILL) else None


async def kill_worker(stage: Stage) -> str | None:
    process = await stage.a_worker()
    return str(process) if process is not None and send_signal(process, signal.SIGKILL) else None


async def kill_server(stage: Stage) -> str | None:
    away_s = stage.random.choice([0.0, 0.5, LEASE_S + 0.5])
    await stage.cluster.restart_server(kill=True, away_s=away_s)
    return f"away for {away_s:g} s"


async def restart_server(stage: Stage) -> str | None:
    await stage.cluster.restart_server(kill=False, away_s=0.0)
    return "in order"


async def cut_power(stage: Stage) -> str | None:
    node = stage.a_node()
    count = await stage.cluster.kill_node(node)
    await stage.come_back(node)
    return f"{node}, {count} processes"


async def hand_over(stage: Stage) -> str | None:
    name = stage.leader
    code = await stage.cluster.end(name)
    if code is None:
        return None  # it was killed in between
    await stage.come_back(name)
    return f"{name} ended with {code}"


async def leave(stage: Stage) -> str | None:
    node = stage.a_node()
    code = await stage.cluster.end(node)
    await stage.come_back(node)
    return f"{node} ended with {code}"


async def freeze_leader(stage: Stage) -> str | None:
    return await _freeze_program(stage, stage.leader, stage.random.choice(FREEZE_LEADER_S))


async def freeze_agent(stage: Stage) -> str | None:
    return await _freeze_program(stage, stage.a_node(), stage.random.choice(FREEZE_NODE_S))


async def _freeze_program(stage: Stage, name: str, for_s: float) -> str | None:
    process = stage.cluster.pid(name)
    if process is None:
        return None
    await stage.freeze(process, for_s)
    return f"{name} for {for_s:g} s"


async def freeze_supervisor(stage: Stage) -> str | None:
    node, for_s = stage.a_node(), stage.random.choice(FREEZE_NODE_S)
    process = await stage.cluster.supervisor(node)
    if process is None:
        return None
    await stage.freeze(process, for_s)
    return f"of {node} for {for_s:g} s"


async def freeze_worker(stage: Stage) -> str | None:
    process = await stage.a_worker()
    if process is None:
        return None
    await stage.freeze(process, 1.5)
    return str(process)


async def freeze_server(stage: Stage) -> str | None:
    for_s, pid = stage.random.choice(FREEZE_SERVER_S), stage.cluster.server.pid
    if pid is None:
        return None
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(for_s)
    if stage.cluster.server.pid == pid:
        os.kill(pid, signal.SIGCONT)
    return f"for {for_s:g} s"


async def cut(stage: Stage) -> str | None:
    """Connections break, and none can be made."""
    name, for_s = stage.a_program(), stage.random.choice(LINE_S)
    line = stage.cluster.lines[name]
    line.refusing = True
    line.drop()
    await asyncio.sleep(for_s)
    line.refusing = False
    return f"{name} for {for_s:g} s"


async def delay(stage: Stage) -> str | None:
    name, by_s = stage.a_program(), stage.random.choice(DELAYS_S)
    line = stage.cluster.lines[name]
    line.delay_s = by_s
    await asyncio.sleep(2.0)
    line.delay_s = 0.0
    return f"{name} by {by_s:g} s"


async def stall(stage: Stage) -> str | None:
    """Nothing gets through; then all of it does, late."""
    name, for_s = stage.a_program(), stage.random.choice(LINE_S)
    line = stage.cluster.lines[name]
    line.stalled = True
    await asyncio.sleep(for_s)
    line.stalled = False
    return f"{name} for {for_s:g} s"


async def half_open(stage: Stage) -> str | None:
    """One way loses everything, and nobody is told."""
    name, for_s = stage.a_program(), stage.random.choice(LINE_S)
    way = stage.random.choice(list(Way))
    line = stage.cluster.lines[name]
    line.muted.add(way)
    await asyncio.sleep(for_s)
    line.muted.discard(way)
    line.drop()
    return f"{name} {way} for {for_s:g} s"


async def block_renewals(stage: Stage) -> str | None:
    """All the leader says arrives, but that it wants to go on leading."""
    name = stage.leader
    bucket = f"$KV.{Subjects().lease_bucket}."
    line = stage.cluster.lines[name]

    def renews(frame: Frame) -> bool:
        return frame.subject.startswith(bucket)

    line.lost.append(renews)
    await asyncio.sleep(LEASE_S + 1.5)
    if renews in line.lost:
        line.lost.remove(renews)
    return name


FAULTS: Final = (
    Fault("kill leader", kill_leader, 3, kills=True),
    Fault("kill standby", kill_standby, 1, kills=True),
    Fault("kill agent", kill_agent, 3, kills=True),
    Fault("kill supervisor", kill_supervisor, 3, kills=True),
    Fault("kill worker", kill_worker, 3, kills=True),
    Fault("kill server", kill_server, 1.5, kills=True),
    Fault("power cut", cut_power, 1, kills=True),
    Fault("restart server", restart_server, 0.7),
    Fault("hand over", hand_over, 1),
    Fault("agent leaves", leave, 1),
    Fault("freeze leader", freeze_leader, 2.5),
    Fault("freeze agent", freeze_agent, 2),
    Fault("freeze supervisor", freeze_supervisor, 2),
    Fault("freeze worker", freeze_worker, 1),
    Fault("freeze server", freeze_server, 1),
    Fault("cut", cut, 2),
    Fault("delay", delay, 1.5),
    Fault("stall", stall, 1.5),
    Fault("half open", half_open, 2),
    Fault("block renewals", block_renewals, 1),
)
