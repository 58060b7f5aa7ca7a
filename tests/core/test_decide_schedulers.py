"""Another scheduler leads over the same log: its predecessor's nodes are not offered on."""

from __future__ import annotations

from events.errors import Invalid
from events.facts import NodeExpired
from events.messages import StopReply
from events.queries import NodesReply, QueryNodes
from events.states import NodeState, WorkerState
from schedulers.decide import Rules
from tests.support.story import (
    Story,
    beat,
    fact,
    inventory,
    launches,
    placed,
    register,
    row,
    start,
    stop,
)

LOCAL = Rules(local_node="local")


def local(story: Story) -> None:
    story.rules = LOCAL
    story.lead()
    story.tell(register("local", 8, incarnation="here"))


def listed(story: Story) -> dict[str, NodeState]:
    reply = story.tell(QueryNodes()).answer
    assert isinstance(reply, NodesReply)
    return {row.node_id: row.state for row in reply.nodes}


def test_an_empty_local_node_is_forgotten_when_agents_take_over() -> None:
    story = Story()
    local(story)
    story.rules = Rules()
    story.lead()
    assert listed(story) == {}
    story.tell(register("n1", 4))
    assert placed(story.tell(start("j", 4))) == {"n1": [4]}
    story.check()


def test_a_local_node_with_workers_expires_and_returns_with_its_scheduler() -> None:
    story = Story()
    local(story)
    orders = launches(story.tell(start("j", 2)))
    story.tell(inventory("local", row(orders[0]), incarnation="here", epoch=story.epoch))
    worker = orders[0].worker_id
    assert story.state_of(worker) is WorkerState.RUNNING

    story.rules = Rules()
    draft = story.lead()
    assert fact(draft, NodeExpired).node_id == "local"
    assert listed(story) == {"local": NodeState.EXPIRED}
    assert story.state_of(worker) is WorkerState.LOST
    assert not launches(story.tell(start("k", 1)))
    story.tell(stop("j", command_id="s"))
    reply = story.outcome("s")
    assert isinstance(reply, StopReply)
    assert reply.unconfirmed == [worker]

    story.rules = LOCAL
    story.lead()
    draft = story.tell(
        register("local", 8, incarnation="here", epoch=story.epoch, workers=[row(orders[0])])
    )
    assert listed(story) == {"local": NodeState.READY}
    assert story.state_of(worker) is WorkerState.STOPPING
    story.check()


def test_agents_are_not_used_by_a_scheduler_that_has_none() -> None:
    story = Story().nodes(n1=4, n2=4)
    (worker,) = story.running("j", 4)
    home = story.ledger.workers[worker].node_id
    local(story)
    assert listed(story) == {home: NodeState.EXPIRED, "local": NodeState.READY}
    assert story.state_of(worker) is WorkerState.LOST
    assert isinstance(story.tell(beat(home, epoch=story.epoch)).answer, Invalid)
    assert placed(story.tell(start("k", 3))) == {"local": [3]}
    story.check()
