"""The pulse: who was heard when, and who is expired by now."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from events.pulse import Pulse, live_digest

DAWN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return DAWN + timedelta(seconds=seconds)


def pulse() -> Pulse:
    return Pulse(timedelta(seconds=30))


def test_exactly_the_expiry_is_alive_and_a_microsecond_more_is_not() -> None:
    one = pulse()
    one.heard("n1", at(0))
    assert one.expired(at(30)) == []
    assert one.expired(at(30) + timedelta(microseconds=1)) == ["n1"]


def test_those_that_expired_are_named_in_order_until_they_are_forgotten() -> None:
    one = pulse()
    for node_id in ("n2", "n1", "n3"):
        one.heard(node_id, at(0))
    one.heard("n3", at(20))
    assert one.expired(at(31)) == ["n1", "n2"]
    one.forget("n1")
    one.forget("n2")
    assert one.expired(at(31)) == []
    assert one.expired(at(50.1)) == ["n3"]


def test_nobody_is_expected_of_whom_nothing_was_heard() -> None:
    assert pulse().expired(at(1_000)) == []
    assert pulse().age("n1", at(0)) is None
    assert pulse().due is None


def test_the_time_of_the_next_look_never_comes_too_late() -> None:
    one = pulse()
    one.heard("n1", at(10))
    one.heard("n2", at(0))
    assert one.due == at(30)
    one.heard("n2", at(25))
    assert one.expired(at(31)) == []
    assert one.due == at(40)


def test_times_epochs_and_numbers_only_grow() -> None:
    one = pulse()
    one.heard("n1", at(10), epoch=7, seq=3)
    beat = one.heard("n1", at(5), epoch=6, seq=2)
    assert (beat.last_seen, beat.epoch, beat.seq) == (at(10), 7, 3)


def test_grace_gives_everybody_a_full_term_and_takes_nothing_away() -> None:
    one = pulse()
    one.heard("n1", at(0))
    one.heard("n2", at(40))
    one.grace(at(35))
    assert one.expired(at(65)) == []
    assert one.expired(at(66)) == ["n1"]
    assert one.age("n2", at(66)) == timedelta(seconds=26)


def test_ages_are_never_negative() -> None:
    one = pulse()
    one.heard("n1", at(10))
    assert one.age("n1", at(5)) == timedelta(0)


def test_the_digest_is_of_the_sorted_ids() -> None:
    expected = hashlib.sha256(b"a\nb").hexdigest()[:16]
    assert live_digest(["b", "a"]) == live_digest(["a", "b"]) == expected
    assert live_digest([]) == hashlib.sha256(b"").hexdigest()[:16]
