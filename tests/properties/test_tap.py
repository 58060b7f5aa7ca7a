"""Lines cut into pieces and joined again, whatever gets lost on the way."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from events.tap import ENVELOPE_BYTES, Cutter, InboxPiece, Joiner, Lost

TEXTS = st.text(alphabet='aä€"\\🚌 {}', max_size=1_500)
BATCHES = st.lists(st.lists(TEXTS, max_size=6), max_size=5)
PAYLOADS = st.sampled_from([ENVELOPE_BYTES + 64, ENVELOPE_BYTES + 700, 1_048_576])


def line(text: str) -> bytes:
    return msgspec.json.encode({"line": "x", "text": text})


def cut(cutter: Cutter, batches: list[list[str]], payload: int) -> list[bytes]:
    return [
        body
        for batch in batches
        for body in cutter.cut([line(text) for text in batch], max_payload=payload)
    ]


def joined(joiner: Joiner, bodies: list[bytes]) -> list[bytes | Lost]:
    return [
        each for body in bodies for each in joiner.take(msgspec.json.decode(body, type=InboxPiece))
    ]


@given(BATCHES, PAYLOADS)
def test_what_is_cut_fits_and_is_joined_to_the_same_lines(
    batches: list[list[str]], payload: int
) -> None:
    bodies = cut(Cutter(7), batches, payload)
    assert all(len(body) <= payload for body in bodies)
    assert joined(Joiner(), bodies) == [line(text) for batch in batches for text in batch]


@given(BATCHES, PAYLOADS, st.data())
def test_what_is_lost_is_counted_and_no_half_line_is_taken_for_a_whole_one(
    batches: list[list[str]], payload: int, data: st.DataObject
) -> None:
    cutter = Cutter(7)
    first = cut(cutter, [["begin"]], payload)
    between = cut(cutter, batches, payload)
    last = cut(cutter, [["the end"]], payload)
    kept = first + [body for body in between if data.draw(st.booleans())] + last
    found = joined(Joiner(), kept)
    sent = [line("begin"), *(line(text) for batch in batches for text in batch), line("the end")]
    heard = [each for each in found if isinstance(each, bytes)]
    missing = sum(each.lines for each in found if isinstance(each, Lost))
    assert all(each in sent for each in heard)
    assert len(heard) + missing == len(sent)
    said = any(isinstance(each, Lost) for each in found)
    assert said == (len(kept) < len(first) + len(between) + len(last))


def test_the_end_of_a_line_alone_is_no_line() -> None:
    cutter = Cutter(7)
    first, *_, end, last = cut(cutter, [["a"], ["b" * 1_500], ["c"]], ENVELOPE_BYTES + 64)
    assert joined(Joiner(), [first, end, last]) == [
        line("a"),
        Lost(0, "messages were lost between the leader and the recorder"),
        Lost(1, "messages were lost between the leader and the recorder"),
        line("c"),
    ]


def test_another_leader_is_a_gap_and_what_the_old_one_still_says_is_left_out() -> None:
    joiner = Joiner()
    old, new = Cutter(7), Cutter(8)
    assert joined(joiner, cut(old, [["a"]], 9_999)) == [line("a")]
    lost, heard = joined(joiner, cut(new, [["b"]], 9_999))
    assert isinstance(lost, Lost)
    assert (lost.lines, lost.reason) == (0, "the leader of epoch 7 was followed by one of 8")
    assert heard == line("b")
    assert joined(joiner, cut(old, [["c"]], 9_999)) == []


def test_an_interruption_is_a_gap_of_unknown_length() -> None:
    joiner, cutter = Joiner(), Cutter(7)
    joined(joiner, cut(cutter, [["a"]], 9_999))
    cutter.interrupt()
    lost, heard = joined(joiner, cut(cutter, [["b"]], 9_999))
    assert lost == Lost(0, "messages were lost between the leader and the recorder")
    assert heard == line("b")
