"""The queue's cursor: each message once, in order, whoever leads."""

from __future__ import annotations

import pytest
from msgspec import Raw

from events.entities import QueueCursor
from events.errors import Invalid, Overloaded, RunActive, TooLate
from events.facts import QueueSetAside, QueueTaken
from events.states import RunState
from schedulers.decide import Draft
from schedulers.decide.messages import Queued, QueueMoved
from tests.support.story import Story, fact, kinds, launches


def queued(
    sequence: int,
    body: str = "",
    *,
    previous: int | None = None,
    stream: str = "s1",
    verb: str = "start",
    code: str = "",
) -> Queued:
    job = f'{{"job_id":"j{sequence}","slots":1,"command_id":"q-{sequence}"}}'
    return Queued(
        stream=stream,
        sequence=sequence,
        previous=sequence - 1 if previous is None else previous,
        verb=verb,
        body=Raw((body or job).encode()),
        code=code,
        reason="because" if code else "",
    )


def cursor(story: Story) -> int:
    place = story.ledger.state.queue
    return place.sequence if place else 0


def moved(draft: Draft) -> int:
    assert isinstance(draft.answer, QueueMoved), draft.answer
    return draft.answer.sequence


def test_a_message_is_taken_in_the_record_that_moves_the_cursor(story: Story) -> None:
    story.nodes(n1=4)
    draft = story.tell(queued(1))
    assert kinds(draft)[0] == "command_taken"
    assert fact(draft, QueueTaken) == QueueTaken(stream="s1", sequence=1, command_id="q-1")
    assert draft.record is not None
    assert draft.record.cause == "queue 1"
    assert (moved(draft), draft.joined) == (1, None)
    assert [order.job_id for order in launches(draft)] == ["j1"]
    story.check()


def test_a_repeated_one_does_nothing(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(queued(1))
    for _ in range(2):
        draft = story.tell(queued(1))
        assert (draft.events, moved(draft)) == ([], 1)
    story.lead()
    draft = story.tell(queued(1))
    assert (draft.events, moved(draft)) == ([], 1)


def test_one_out_of_turn_is_not_taken(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(queued(1))
    draft = story.tell(queued(3))
    assert isinstance(draft.answer, Overloaded)
    assert (draft.events, cursor(story)) == ([], 1)
    assert moved(story.tell(queued(3, previous=1))) == 3


def test_another_stream_of_the_name_begins_anew(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(queued(7, previous=0))
    draft = story.tell(queued(2, previous=0, stream="s2"))
    assert moved(draft) == 2
    assert story.ledger.state.queue == QueueCursor(stream="s2", sequence=2)


def test_a_refusal_is_an_outcome_and_moves_the_cursor(story: Story) -> None:
    story.nodes(n1=4)
    story.running("j1")
    draft = story.tell(queued(1))
    assert isinstance(story.refusal("q-1"), RunActive)
    assert moved(draft) == 1
    late = '{"job_id":"k","slots":1,"command_id":"c","not_after":"2020-01-01T00:00:00Z"}'
    story.tell(queued(2, late))
    assert isinstance(story.refusal("c"), TooLate)
    assert cursor(story) == 2


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("start", '{"job_id":"j"}'),
        ("start", "[]"),
        ("start", '{"job_id":"a.b","slots":1,"command_id":"c"}'),
        ("start", '{"job_id":"j","slots":1}'),
        ("query", "{}"),
    ],
)
def test_what_is_no_command_moves_nothing_until_it_is_put_aside(
    story: Story, verb: str, body: str
) -> None:
    draft = story.tell(queued(1, body, verb=verb))
    assert isinstance(draft.answer, Invalid)
    assert (draft.events, cursor(story)) == ([], 0)
    draft = story.tell(queued(1, verb=verb, code="invalid"))
    assert fact(draft, QueueSetAside) == QueueSetAside(
        stream="s1", sequence=1, verb=verb, code="invalid", reason="because"
    )
    assert moved(draft) == 1


def test_an_id_used_for_something_else_can_not_be_taken(story: Story) -> None:
    story.nodes(n1=4)
    story.tell(queued(1))
    other = '{"job_id":"other","slots":1,"command_id":"q-1"}'
    draft = story.tell(queued(2, other))
    assert isinstance(draft.answer, Invalid)
    assert cursor(story) == 1


def test_the_same_command_sent_twice_is_done_once(story: Story) -> None:
    story.nodes(n1=4)
    body = '{"job_id":"j","slots":1,"command_id":"c"}'
    story.tell(queued(1, body))
    draft = story.tell(queued(2, body))
    assert kinds(draft) == ["queue_taken"]
    assert moved(draft) == 2
    assert len(story.ledger.jobs["j"].runs) == 1


def test_the_other_commands_can_be_queued(story: Story) -> None:
    story.nodes(n1=4)
    story.running("j")
    stop = '{"job_id":"j","command_id":"s"}'
    assert moved(story.tell(queued(1, stop, verb="stop"))) == 1
    assert story.ledger.jobs["j"].current.state is RunState.STOPPING
    cordon = '{"node_id":"n1","command_id":"%s"}'
    story.tell(queued(2, cordon % "a", verb="cordon"))
    assert story.ledger.nodes["n1"].state == "cordoned"
    story.tell(queued(3, cordon % "b", verb="uncordon"))
    assert story.ledger.nodes["n1"].state == "ready"
