"""Heartbeats on the short way: taken only where the long one decides nothing, to the same end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from events.ledger import live_digest
from events.messages import CordonReq
from events.traffic import HeartbeatNodeReq, HeartbeatReply
from schedulers.decide import only_beats
from tests.support.story import (
    FIRST_EPOCH,
    Story,
    acknowledged,
    beat,
    launches,
    register,
    start,
    tick,
)

Turn = Callable[[Story], object]


def told(*turns: Turn) -> Story:
    """A node with one worker, and what happened to it since."""
    story = Story()
    story.tell(register("n1", 4))
    (launch,) = launches(story.tell(start("j")))
    story.tell(acknowledged(launch))
    for turn in turns:
        turn(story)
    return story


def said(story: Story, **fields: object) -> HeartbeatNodeReq:
    """What n1 says while nothing happens."""
    digest = live_digest(list(story.ledger.workers))
    given: dict[str, object] = {"node_id": "n1", "digest": digest, "seq": 7}
    return beat(**(given | fields))  # type: ignore[arg-type]


QUIET: dict[str, tuple[list[Turn], dict[str, object]]] = {
    "as always": ([], {}),
    "without a digest": ([], {"digest": ""}),
    "an older number": ([lambda s: s.tell(said(s, seq=9))], {}),
    "of a cordoned node": ([lambda s: s.tell(CordonReq(node_id="n1"))], {}),
}
DECIDED: dict[str, tuple[list[Turn], dict[str, object]]] = {
    "a higher epoch": ([], {"epoch": FIRST_EPOCH + 5}),
    "other workers": ([], {"digest": live_digest(["w-other"])}),
    "another incarnation": ([], {"incarnation": "n1-b"}),
    "an unknown node": ([], {"node_id": "n2"}),
    "an expired node": ([lambda s: s.tell(tick(), after=31)], {}),
    "an inventory that is owed": ([lambda s: s.lead()], {"epoch": FIRST_EPOCH + 1}),
}


@pytest.mark.parametrize(("turns", "fields"), QUIET.values(), ids=QUIET)
def test_what_changes_nothing_is_taken_and_comes_to_the_same(
    turns: list[Turn], fields: dict[str, object]
) -> None:
    short, long = told(*turns), told(*turns)
    draft = long.tell(said(long, **fields), after=5)
    short.now = long.now
    assert only_beats(short.ledger, short.pulse, said(short, **fields), short.now)
    assert (draft.record, draft.effects) == (None, [])
    assert draft.answer == HeartbeatReply(epoch=long.epoch)
    assert short.pulse.beats == long.pulse.beats
    assert short.pulse.due == long.pulse.due
    for epoch in (FIRST_EPOCH, FIRST_EPOCH + 5):
        assert short.pulse.heard_under(epoch) == long.pulse.heard_under(epoch)


@pytest.mark.parametrize(("turns", "fields"), DECIDED.values(), ids=DECIDED)
def test_what_needs_a_decision_is_left_alone(turns: list[Turn], fields: dict[str, object]) -> None:
    story, untouched = told(*turns), told(*turns)
    assert not only_beats(story.ledger, story.pulse, said(story, **fields), story.now)
    assert story.pulse.beats == untouched.pulse.beats


def test_a_node_that_was_silent_for_too_long_takes_the_long_way() -> None:
    story = told(lambda s: s.tell(register("n2", 1), after=20))
    story.tell(said(story), after=1)
    seen = story.pulse.beats["n1"].last_seen
    late = seen + story.pulse.expiry
    assert story.pulse.overdue(late)  # n2 may have expired, which is nothing to n1
    assert not only_beats(story.ledger, story.pulse, said(story), late + timedelta(seconds=1))
    assert story.pulse.beats["n1"].last_seen == seen
    assert only_beats(story.ledger, story.pulse, said(story), late)
