"""What people and programs do in a story: the good things, by kind.

What lives here: one function for each kind, and the table of them; a new command needs a line
here and one in ``drawing``. What may not: faults (``troubles``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from events.messages import (
    Command,
    ConfirmDeadReq,
    CordonReq,
    DrainReq,
    StartPipelineReq,
    StopWorkersReq,
    UncordonReq,
)
from tests.simulation.story import Action

if TYPE_CHECKING:
    from tests.simulation.world import World

Do: TypeAlias = "Callable[[World, Action], None]"


RESTART: Final = {"first_s": 1.0, "longest_s": 4.0}
"""So that a story sees some restarts."""


def _id(world: World) -> str:
    return f"k{len(world.people.asked) + 1}"


def start(world: World, action: Action) -> None:
    """``n`` slots of ``job``; ``s``: its wait; ``on``: spread evenly; ``more``: its policies,
    ``stop_after_s``, ``not_after_s`` from now, and ``queued``: it is left in the queue."""
    more = dict(action.more)
    config: dict[str, object] = {"spread": "even" if action.on else "pack"}
    if "stop_after_s" in more:
        config["stop_after_s"] = more.pop("stop_after_s")
    queued = more.pop("queued", "")
    not_after_s = more.pop("not_after_s", None)
    fields: dict[str, object] = {
        "job_id": action.job,
        "slots": action.n,
        "wait_s": action.s,
        "scheduler_config": config,
        "restart": RESTART,
        "command_id": _id(world),
        **more,
    }
    if not_after_s is not None:
        fields["not_after"] = (world.date() + timedelta(seconds=float(not_after_s))).isoformat()
    _give(world, msgspec.convert(fields, StartPipelineReq), queued=bool(queued))


def stop(world: World, action: Action) -> None:
    """All of ``job``; ``on``: by force; ``s``: its grace; ``more``: ``queued``."""
    command = StopWorkersReq(
        job_id=action.job,
        force=action.on,
        grace_s=action.s,
        wait_s=8.0,
        command_id=_id(world),
    )
    _give(world, command, queued="queued" in action.more)


def _give(world: World, command: Command, *, queued: bool) -> None:
    if queued:
        world.people.leave(command)
    else:
        world.people.command(command)


def drain(world: World, action: Action) -> None:
    """``who`` is emptied within ``s`` seconds; ``on``: by force."""
    world.people.command(
        DrainReq(node_id=action.who, deadline_s=action.s, force=action.on, command_id=_id(world))
    )


def confirm_dead(world: World, action: Action) -> None:
    """Somebody looks at ``who``, and says that nothing runs there: where that is so, and its
    agent is not there either."""
    agent = world.agents.get(action.who)
    if agent is not None and not agent.there and not agent.node.alive():
        world.people.command(ConfirmDeadReq(node_id=action.who, command_id=_id(world)))


def cordon(world: World, action: Action) -> None:
    """``who``; ``on``: else uncordon."""
    kind = CordonReq if action.on else UncordonReq
    world.people.command(kind(node_id=action.who, command_id=_id(world)))


def repeat(world: World, action: Action) -> None:
    """The ``n``-th last command, once more under its id."""
    asked = [one for one in world.people.asked.values() if not one.queued]
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
    "drain": drain,
    "confirm_dead": confirm_dead,
    "repeat": repeat,
    "exits": exits,
    "join": join,
}
