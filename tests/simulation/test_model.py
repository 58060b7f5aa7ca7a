"""The model itself: frozen and dead processes, and how a failing story is made short."""

from __future__ import annotations

import asyncio

from tests.simulation.drawing import draw
from tests.simulation.faults import FAULTS
from tests.simulation.loop import BEGIN_S, Proc, SimLoop
from tests.simulation.shrinking import kind_of, shrink
from tests.simulation.story import Action, Story
from tests.simulation.streams import MSG_ID, WRONG_LAST, Stream
from tests.simulation.world import tell


def test_a_frozen_process_gets_no_turn_and_goes_on_where_it_stood() -> None:
    loop = SimLoop()
    heard: list[tuple[str, float]] = []
    proc, other = Proc(loop, "a", "a"), Proc(loop, "b", "b")

    async def beat() -> None:
        for number in range(4):
            await asyncio.sleep(1.0)
            heard.append((f"beat {number}", loop.time() - BEGIN_S))

    async def story() -> None:
        beating = proc.spawn(beat())
        await asyncio.sleep(1.5)
        proc.freeze()
        proc.post_at(BEGIN_S + 3.0, heard.append, ("letter", 3.0))
        await asyncio.sleep(5.0)
        proc.thaw()
        await beating

    loop.run_until_complete(other.spawn(story()))
    loop.close()
    assert heard == [
        ("beat 0", 1.0),
        ("letter", 3.0),
        ("beat 1", 6.5),
        ("beat 2", 7.5),
        ("beat 3", 8.5),
    ]


def test_a_dead_process_does_nothing_more() -> None:
    loop = SimLoop()
    tidied: list[str] = []
    proc, other = Proc(loop, "a", "a"), Proc(loop, "b", "b")

    async def work() -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            tidied.append("tidied")

    async def story() -> None:
        working = proc.spawn(work())
        await asyncio.sleep(0.5)
        proc.kill()
        await asyncio.sleep(5.0)
        assert not working.done()

    loop.run_until_complete(other.spawn(story()))
    assert tidied == []
    for task in loop.tasks.values():
        task.get_coro().close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


def test_a_stream_looks_at_expectations_first_and_knows_duplicates_for_a_while() -> None:
    stream = Stream("S", {"subjects": ["s.>"]}, "now")
    expecting = {MSG_ID: "a", "Nats-Expected-Last-Sequence": "0"}
    assert stream.take("s.1", b"", expecting, 0.0).seq == 1
    assert stream.take("s.1", b"", expecting, 1.0).err_code == WRONG_LAST
    again = stream.take("s.1", b"", {MSG_ID: "a"}, 1.0)
    assert (again.seq, again.duplicate) == (1, True)
    assert stream.take("s.1", b"", {MSG_ID: "a"}, 500.0).seq == 2
    assert stream.lose_tail(1) == 1
    assert stream.lose_tail(1) == 1
    assert stream.take("s.1", b"", expecting, 501.0).seq == 1


def test_a_key_with_a_ttl_vanishes_and_is_free_again() -> None:
    stream = Stream("KV", {"subjects": ["k.>"], "allow_msg_ttl": True}, "now")
    expecting = {"Nats-TTL": "4", "Nats-Expected-Last-Subject-Sequence": "0"}
    assert stream.take("k.leader", b"a", expecting, 0.0).seq == 1
    assert stream.take("k.leader", b"b", expecting, 3.9).err_code == WRONG_LAST
    assert stream.last("k.leader", 4.0) is None
    assert stream.take("k.leader", b"b", expecting, 4.0).seq == 2


def test_a_failing_story_is_made_short_and_still_breaks_the_same_law() -> None:
    story = draw(1)
    with FAULTS["stopping_taken_for_gone"]():
        told = tell(story)
        shrunk = shrink(story, told, tell, 8.0)
        assert told.broken
        assert kind_of(shrunk.told.broken) == kind_of(told.broken)
        assert len(shrunk.story.actions) < len(story.actions) / 3
        assert tell(shrunk.story).digest == shrunk.told.digest
    assert not tell(shrunk.story).broken


def test_sentences_of_one_kind_differ_only_in_names_and_numbers() -> None:
    one = kind_of("law 2: w-83e9a421f378-1 lives on n2, and its end is in the log")
    other = kind_of("law 2: w-0e8e4ccbbb9e-7 lives on n1, and its end is in the log")
    assert one == other
    assert one != kind_of("law 2: n1 sends signal 15 to somebody else's process")


def test_a_quiet_story_is_told_to_its_end() -> None:
    story = Story(
        seed=1,
        length_s=10.0,
        actions=[
            Action(at=3.0, kind="start", job="a", n=5, s=5.0),
            Action(at=8.0, kind="stop", job="a", s=2.0),
        ],
    )
    told = tell(story)
    assert (told.broken, told.trouble) == ("", {})
    assert told.records >= 8
