"""What people and programs do in a story: the good things, by kind.

What lives here: one function for each kind, and the table of them; a new command needs a line
here and one in ``drawing``. What may not: faults (``troubles``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from events.messages import (
    CordonReq,
    SchedulerConfig,
    StartPipelineReq,
    StopWorkersReq,
    UncordonReq,
)
from tests.simulation.story import Action

if TYPE_CHECKING:
    from tests.simulation.world import World

Do: TypeAlias = "Callable[[World, Action], None]"


def _id(world: World) -> str:
    return f"k{len(world.people.asked) + 1}"


def start(world: World, action: Action) -> None:
    """``n`` slots of ``job``; ``s``: its wait; ``on``: spread evenly."""
    config = SchedulerConfig(spread="even" if action.on else "pack")
    world.people.command(
        StartPipelineReq(
            job_id=action.job,
            slots=action.n,
            wait_s=action.s,
            scheduler_config=config,
            command_id=_id(world),
        )
    )


def stop(world: World, action: Action) -> None:
    """All of ``job``; ``on``: by force; ``s``: its grace."""
    world.people.command(
        StopWorkersReq(
            job_id=action.job,
            force=action.on,
            grace_s=action.s,
            wait_s=8.0,
            command_id=_id(world),
        )
    )


def cordon(world: World, action: Action) -> None:
    """``who``; ``on``: else uncordon."""
    kind = CordonReq if action.on else UncordonReq
    world.people.command(kind(node_id=action.who, command_id=_id(world)))


def repeat(world: World, action: Action) -> None:
    """The ``n``-th last command, once more under its id."""
    asked = list(world.people.asked.values())
    if asked:
        world.people.command(asked[-1 - action.n % len(asked)].command)


def exits(world: World, action: Action) -> None:
    """The ``n``-th living worker ends by itself; ``on``: with an error."""
    alive = list(world.laws.processes())
    if alive:
        machine, process = alive[action.n % len(alive)]
        machine.exit(process, 1 if action.on else 0)


def join(world: World, action: Action) -> None:
    """A new machine ``who`` with ``n`` slots."""
    if action.who not in world.agents:
        world.add_node(action.who, action.n).start()


KINDS: Final[dict[str, Do]] = {
    "start": start,
    "stop": stop,
    "cordon": cordon,
    "repeat": repeat,
    "exits": exits,
    "join": join,
}
