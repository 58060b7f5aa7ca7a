"""What goes wrong in a story, by kind; each ends by itself after ``s`` seconds.

What lives here: one function for each kind of fault, and the mending of all. What may not:
when they happen (``drawing``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.simulation.machine import Program
from tests.simulation.parties import Party
from tests.simulation.story import Action
from tests.simulation.weather import Weather

if TYPE_CHECKING:
    from tests.simulation.world import World

LOG_STREAM: Final = "SLOTBUS_LOG"
Do: TypeAlias = "Callable[[World, Action], None]"


def _party(world: World, name: str) -> Party | None:
    return world.controllers.get(name) or world.agents.get(name)


def kill(world: World, action: Action) -> None:
    """KILL to a controller or an agent; it is started again."""
    party = _party(world, action.who)
    if party is not None:
        party.kill()
        world.later(action.s, party.start)


def terminate(world: World, action: Action) -> None:
    """TERM to a controller or an agent; something starts it again."""
    party = _party(world, action.who)
    if party is not None:
        party.terminate()


def freeze(world: World, action: Action) -> None:
    """STOP, and CONT."""
    party = _party(world, action.who)
    if party is not None and party.proc is not None:
        proc = party.proc
        proc.freeze()
        world.later(action.s, proc.thaw)


def kill_supervisor(world: World, action: Action) -> None:
    agent = world.agents.get(action.who)
    if agent is not None:
        world.laws.unwatched.add(action.who)
        agent.host.kill()


def freeze_supervisor(world: World, action: Action) -> None:
    agent = world.agents.get(action.who)
    if agent is not None and agent.host.proc is not None:
        world.laws.unwatched.add(action.who)
        proc = agent.host.proc
        proc.freeze()
        world.later(action.s, proc.thaw)


def power_off(world: World, action: Action) -> None:
    """A machine loses its power, and gets it back; ``on``: its disk is lost, too."""
    agent = world.agents.get(action.who)
    if agent is None:
        return
    if agent.proc is not None and agent.there:
        agent.proc.kill()
        for line in world.hub.lines_of(agent.name):
            line.hold(up=True, down=True)  # nobody says goodbye
    agent.host.kill()
    agent.node.reboot()
    for worker_id in [w for w in world.laws.exits if world.laws.home(w) == agent.name]:
        del world.laws.exits[worker_id]  # whoever knew is gone
    if action.on:
        shutil.rmtree(agent.state_dir, ignore_errors=True)
        agent.node.epoch = 0
    world.later(action.s, agent.start)


def cut(world: World, action: Action) -> None:
    """``who`` can't reach the server; ``on``: in silence; ``n``: 1 only up, 2 only down."""
    up, down = action.n != 2, action.n != 1
    world.hub.cut_off(action.who, silent=action.on, up=up, down=down)
    world.later(action.s, lambda: world.hub.mend(action.who))


def reconnect(world: World, action: Action) -> None:
    """What ``who`` sends within ``s`` seconds is slow to come; then it connects anew, and the
    slow part arrives ``p`` seconds later."""
    for line in world.hub.lines_of(action.who):
        line.hold(up=True, down=False)
        line.proc.post_at(world.loop.time() + action.s, line.leave_late, action.p)


def server_restart(world: World, action: Action) -> None:
    """The NATS server is away for a while."""
    if not world.hub.down:
        world.hub.stop()
        world.later(action.s, world.hub.start)


def server_crash(world: World, action: Action) -> None:
    """The server's machine loses its power, and the log the ``n`` last messages."""
    hub, stream = world.hub, world.hub.jetstream.streams.get(LOG_STREAM)
    if hub.down or stream is None:
        return
    hub.stop()
    world.later(action.s, hub.start)
    if stream.lose_tail(action.n):
        last = stream.messages.get(stream.last_seq)
        begin = int(last.headers["Slotbus-Position"]) if last is not None else 0
        world.laws.lost(begin + last.data.count(b"\n") if last is not None else 0)


def server_freeze(world: World, action: Action) -> None:
    proc = world.hub.proc
    proc.freeze()
    world.later(action.s, proc.thaw)


def weather(world: World, action: Action) -> None:
    """``who`` says which kind: slow, loss, twice, acks, disk; ``p``: how bad."""
    now = world.hub.weather
    match action.who:
        case "slow":
            now.slow_s = action.p
        case "loss":
            now.loss = action.p
        case "twice":
            now.twice = action.p
        case "acks":
            now.acks_lost = action.p
        case "disk":
            now.disk_s = action.p
    world.later(action.s, lambda: _calm(world, action.who))


def _calm(world: World, kind: str) -> None:
    calm, now = Weather(), world.hub.weather
    match kind:
        case "slow":
            now.slow_s = calm.slow_s
        case "loss":
            now.loss = calm.loss
        case "twice":
            now.twice = calm.twice
        case "acks":
            now.acks_lost = calm.acks_lost
        case "disk":
            now.disk_s = calm.disk_s


def clock_step(world: World, action: Action) -> None:
    """The wall clock of ``who`` jumps by ``p`` seconds, for good."""
    party = _party(world, action.who)
    if party is not None and party.proc is not None:
        party.proc.wall_offset += action.p


def program(world: World, action: Action) -> None:
    """The programs of ``job`` are bad for a while: ``who`` says how."""
    world.programs[action.job] = Program(
        deaf=action.who == "deaf",
        missing=action.who == "missing",
        stuck_s=3.0 if action.who == "stuck" else 0.0,
        brief=action.who == "brief",
    )
    world.later(action.s, lambda: world.programs.pop(action.job, None))


def refuse(world: World, action: Action) -> None:
    """The next ``n`` spawns on ``who`` fail."""
    agent = world.agents.get(action.who)
    if agent is not None:
        agent.node.refusals = action.n


def bystander(world: World, action: Action) -> None:
    """Processes of somebody else take the next ``n`` pids on ``who``."""
    agent = world.agents.get(action.who)
    for _ in range(action.n if agent is not None else 0):
        assert agent is not None
        agent.node.bystander()


KINDS: Final[dict[str, Do]] = {
    "kill": kill,
    "terminate": terminate,
    "freeze": freeze,
    "kill_supervisor": kill_supervisor,
    "freeze_supervisor": freeze_supervisor,
    "power_off": power_off,
    "cut": cut,
    "reconnect": reconnect,
    "server_restart": server_restart,
    "server_crash": server_crash,
    "server_freeze": server_freeze,
    "weather": weather,
    "clock_step": clock_step,
    "program": program,
    "refuse": refuse,
    "bystander": bystander,
}


def mend_all(world: World) -> None:
    """Peace: everything runs, everybody can be reached."""
    world.hub.weather = Weather()
    world.hub.start()
    world.hub.proc.thaw()
    for name in list(world.hub.cut):
        world.hub.mend(name)
    world.programs.clear()
    for agent in world.agents.values():
        agent.node.refusals = 0
        if agent.host.proc is not None:
            agent.host.proc.thaw()
    for party in (*world.controllers.values(), *world.agents.values()):
        party.thaw()
        party.start()
