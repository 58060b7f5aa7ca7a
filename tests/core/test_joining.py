"""From the pieces on many subjects to records: each fact once, however they come."""

from __future__ import annotations

import json

import msgspec
import pytest

from events.errors import Invalid
from events.following import EventRecord, Joining, Piece


def piece(position: int, *places: int, of: int = 3) -> Piece:
    """Facts of a record of ``of``; without places all of them."""
    chosen = places or tuple(range(of))
    tree: dict[str, object] = {"position": position}
    if len(chosen) < of:
        tree |= {"of": of, "part": list(chosen)}
    facts = [{"type": "run_running", "job_id": "j", "run_id": place + 1} for place in chosen]
    tree |= {"v": 1, "at": "2026-01-01T00:00:00Z", "epoch": 1, "cause": "x", "events": facts}
    return Piece(msgspec.json.encode(tree))


def shown(joining: Joining, *pieces: Piece) -> list[tuple[int, list[int]]]:
    """Positions and places, in the order of showing."""
    ready = [each for one in pieces for each in joining.add(one)]
    return [_told(each.record()) for each in ready]


def _told(record: EventRecord) -> tuple[int, list[int]]:
    facts = json.loads(record.body)["events"]
    return record.position, [fact["run_id"] - 1 for fact in facts]


def test_a_record_is_shown_when_its_last_piece_is_there() -> None:
    joining = Joining(whole=True)
    assert shown(joining, piece(1, 0, 2)) == []
    assert shown(joining, piece(1, 2)) == []
    assert shown(joining, piece(1, 1, 2)) == [(1, [0, 1, 2])]
    assert shown(joining, piece(1, 1), piece(2)) == [(2, [0, 1, 2])]


def test_a_record_that_stays_incomplete_is_shown_before_the_next() -> None:
    joining = Joining(whole=True)
    assert shown(joining, piece(1, 1), piece(2, 0)) == [(1, [1])]
    assert [_told(each.record()) for each in joining.rest()] == [(2, [0])]
    assert joining.rest() == []


def test_what_a_new_leader_repeats_is_shown_only_where_it_was_missing() -> None:
    joining = Joining(whole=True)
    first = shown(joining, piece(1), piece(2, 0))
    again = shown(joining, piece(1), piece(2, 0, 1), piece(2, 2), piece(3))
    assert first + again == [(1, [0, 1, 2]), (2, [0, 1, 2]), (3, [0, 1, 2])]


def test_one_subject_alone_shows_what_it_has_at_once() -> None:
    joining = Joining(whole=False, after=1)
    assert shown(joining, piece(1, 0), piece(2, 1), piece(2, 1), piece(3)) == [
        (2, [1]),
        (3, [0, 1, 2]),
    ]


def test_an_incomplete_record_says_so_in_its_body() -> None:
    body = json.loads(piece(4, 0, 2).record().body)
    assert (body["of"], body["part"]) == (3, [0, 2])
    joined = piece(4, 0)
    joined.take(piece(4, 2))
    assert json.loads(joined.record().body) == body
    joined.take(piece(4, 1))
    assert "part" not in json.loads(joined.record().body)


def test_positions_are_forgotten_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("events.following.REMEMBERED", 2)
    joining = Joining(after=1, whole=False)
    told = [bool(joining.add(piece(position))) for position in (1, 2, 4, 3, 4, 5, 2, 6)]
    assert told == [False, True, True, True, False, True, False, True]


def test_a_piece_whose_facts_are_not_those_it_names_is_refused() -> None:
    body = json.loads(piece(1, 0, 2).record().body) | {"part": [0]}
    with pytest.raises(Invalid, match="not those it names"):
        Piece(msgspec.json.encode(body))
