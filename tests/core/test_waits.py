"""How long a client waits where nobody says: longer than a leader takes by its own rules."""

from __future__ import annotations

from events.ids import DEFAULT_GRACE_S, MAX_WAIT_S
from events.waits import wait_for_drain, wait_for_start, wait_for_stop
from schedulers.decide import Rules


def test_a_start_is_waited_for_until_it_is_rolled_back() -> None:
    assert wait_for_start() > Rules().start_s


def test_a_stop_is_waited_for_until_what_is_left_is_reported() -> None:
    assert wait_for_stop() == wait_for_stop(DEFAULT_GRACE_S)
    for grace_s in (0.0, 10.0, 600.0):
        assert wait_for_stop(grace_s) > grace_s + Rules().stop_timeout_s
        assert wait_for_stop(grace_s, force=True) == wait_for_stop(0.0)


def test_no_wait_is_longer_than_a_message_may_say() -> None:
    assert wait_for_drain(MAX_WAIT_S) == wait_for_stop(MAX_WAIT_S) == MAX_WAIT_S
