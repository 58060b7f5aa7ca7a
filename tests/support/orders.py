"""Orders of the model fleet: effects on their way to a node, and what its answers mean.

What lives here: what the dispatcher and a launcher do with an effect, as pure functions. What
may not: what happens when (``tests.support.fleet``).
"""

from __future__ import annotations

from msgspec import Struct

from events.traffic import AgentStopReply, InventoryReply
from schedulers.decide.messages import (
    Effect,
    Inbound,
    InventoryFailed,
    InventoryTaken,
    Launch,
    Launched,
    LaunchFailed,
    Stop,
    StopAnswered,
    TakeInventory,
)
from schedulers.launcher import LaunchAck
from tests.support.machines import Machine, Refused, Reply


class Order(Struct, frozen=True):
    """One try of an effect, on its way to a node."""

    epoch: int
    effect: Effect


class Answer(Struct, frozen=True):
    """What a node said to an order, on its way back."""

    order: Order
    reply: Reply


def carried_out(machine: Machine, effect: Effect) -> Reply:
    match effect:
        case Launch(assignment=assignment):
            return machine.launch(assignment)
        case Stop(order=order):
            return machine.stop(order)
        case TakeInventory(incarnation=incarnation, epoch=epoch):
            return machine.inventory(incarnation, epoch)
        case _:
            raise AssertionError(effect)


def outcome_of(effect: Effect, reply: Reply) -> Inbound | None:
    """As the dispatcher understands an answer."""
    match effect, reply:
        case Launch(assignment=what), LaunchAck(seq=seq):
            return Launched(what.worker_id, what.incarnation, seq=seq)
        case Launch(assignment=what), Refused(reason=reason):
            return LaunchFailed(what.worker_id, reason)
        case Stop(order=order), AgentStopReply(state=state):
            return StopAnswered(order.worker_id, state, order.node_id)
        case TakeInventory(node_id=node_id), InventoryReply():
            return InventoryTaken(node_id, reply)
        case TakeInventory(node_id=node_id), _:
            return InventoryFailed(node_id, "fenced")
        case _:
            return None


def node_of(effect: Effect) -> str:
    match effect:
        case Launch(assignment=assignment):
            return assignment.node_id
        case Stop(order=order):
            return order.node_id
        case _:
            return effect.node_id


def key_of(effect: Effect) -> str:
    match effect:
        case Launch(assignment=assignment):
            return f"w:{assignment.worker_id}"
        case Stop(order=order):
            return f"w:{order.worker_id}"
        case _:
            return f"n:{effect.node_id}"


def replaces(new: Effect, old: Effect) -> bool:
    """As in the dispatcher."""
    match new, old:
        case Stop(), Launch():
            return True
        case Stop(order=ours), Stop(order=theirs):
            return (ours.force, ours.incarnation) != (theirs.force, theirs.incarnation)
        case Launch(assignment=ours_), Launch(assignment=theirs_):
            return ours_.incarnation != theirs_.incarnation
        case TakeInventory(), _:
            return new != old
        case _:
            return False
