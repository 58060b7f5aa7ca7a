"""Subjects: built and parsed under any root."""

from __future__ import annotations

import pytest

from events.errors import Invalid
from events.ids import NodeId
from events.subjects import NodeSubject, Subjects


def test_the_tree_under_the_usual_root() -> None:
    tree = Subjects()
    assert tree.cmd("start") == "slotbus.cmd.start"
    assert tree.query("nodes") == "slotbus.query.nodes"
    assert tree.node("n1", "heartbeat") == "slotbus.node.n1.heartbeat"
    assert tree.node("*", "heartbeat") == "slotbus.node.*.heartbeat"
    assert tree.agent("n1", "start") == "slotbus.agent.n1.start"
    assert tree.event_job("j") == "slotbus.event.job.j"
    assert tree.event_node("n1") == "slotbus.event.node.n1"
    assert tree.event_leader == "slotbus.event.leader"
    assert tree.events == "slotbus.event.>"
    assert tree.log("j", "w") == "slotbus.log.j.w"
    assert tree.eventlog == "slotbus.eventlog"


def test_streams_and_buckets_follow_from_the_root() -> None:
    tree = Subjects("team-a.prod")
    assert tree.log_stream == "TEAM-A_PROD_LOG"
    assert tree.event_stream == "TEAM-A_PROD_EVENT"
    assert tree.lease_bucket == "team-a_prod_lease"
    assert tree.cmd("stop") == "team-a.prod.cmd.stop"


def test_the_log_is_not_captured_with_the_events() -> None:
    tree = Subjects()
    assert not tree.eventlog.startswith(tree.events.removesuffix(">"))


@pytest.mark.parametrize("root", ["", ".", "a.", "a..b", "a b", "a.*", "a.>", "ä", "a\n", "." * 9])
def test_a_root_with_wildcards_or_gaps_is_invalid(root: str) -> None:
    with pytest.raises(Invalid, match="subject root"):
        Subjects(root)


def test_a_node_subject_is_read_back() -> None:
    tree = Subjects("a.b")
    assert tree.parse_node(tree.node("n-1", "register")) == NodeSubject(NodeId("n-1"), "register")


@pytest.mark.parametrize(
    "subject",
    [
        "slotbus.node.n1",
        "slotbus.node.n1.beat.more",
        "slotbus.node..register",
        "slotbus.node.n 1.register",
        "other.node.n1.register",
        "slotbus.nodes.n1.register",
        "",
    ],
)
def test_another_subject_is_invalid(subject: str) -> None:
    with pytest.raises(Invalid) as caught:
        Subjects().parse_node(subject)
    assert caught.value.path == "subject"
