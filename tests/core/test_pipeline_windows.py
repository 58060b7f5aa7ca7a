"""The arithmetic of the example pipeline: readings in, parts of windows out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.demo.windows import (
    Part,
    Reading,
    TumblingWindows,
    WindowKey,
    merge,
    merge_all,
)

SECOND = 1_000


def at(seq: int, at_ms: int, celsius: float = 1.0, sensor: str = "barn") -> Reading:
    return Reading(seq=seq, sensor=sensor, at_ms=at_ms, celsius=celsius)


def test_a_window_closes_when_a_reading_passes_its_end() -> None:
    windows = TumblingWindows(SECOND)
    assert windows.add(at(1, 5_000, 4.0)) == []
    assert windows.add(at(2, 5_999, 6.0)) == []
    (part,) = windows.add(at(3, 6_000, 9.0))
    assert part == Part(
        sensor="barn",
        start_ms=5_000,
        end_ms=6_000,
        count=2,
        total=10.0,
        low=4.0,
        high=6.0,
        first_seq=1,
        last_seq=2,
    )
    assert part.mean == 5.0
    assert windows.open_parts == 1


def test_a_window_stays_open_for_the_allowed_lateness() -> None:
    windows = TumblingWindows(SECOND, lateness_ms=500)
    windows.add(at(1, 5_000))
    assert windows.add(at(2, 6_499)) == []
    assert windows.add(at(3, 5_100)) == []
    (part,) = windows.add(at(4, 6_500))
    assert (part.start_ms, part.count, part.last_seq) == (5_000, 2, 3)


def test_a_reading_that_is_too_late_makes_a_further_part() -> None:
    windows = TumblingWindows(SECOND)
    windows.add(at(1, 5_000, 4.0))
    (first,) = windows.add(at(2, 7_000))
    (second,) = windows.add(at(3, 5_500, 8.0))
    assert first.key == second.key == WindowKey(5_000, "barn")
    whole = merge(first, second)
    assert (whole.count, whole.mean, whole.low, whole.high) == (2, 6.0, 4.0, 8.0)


def test_each_sensor_has_windows_of_its_own_and_they_close_in_order() -> None:
    windows = TumblingWindows(SECOND)
    windows.add(at(1, 1_000, sensor="yard"))
    windows.add(at(2, 1_000, sensor="barn"))
    closed = windows.add(at(3, 2_000, sensor="barn"))
    assert [part.sensor for part in closed] == ["barn", "yard"]


def test_flush_closes_all_oldest_first_and_leaves_nothing() -> None:
    windows = TumblingWindows(SECOND, lateness_ms=10 * SECOND)
    for seq, at_ms in enumerate((3_000, 1_000, 2_000), start=1):
        windows.add(at(seq, at_ms))
    assert [part.start_ms for part in windows.flush()] == [1_000, 2_000, 3_000]
    assert windows.open_parts == 0
    assert windows.flush() == []


def test_times_before_1970_fall_into_windows_too() -> None:
    windows = TumblingWindows(SECOND)
    windows.add(at(1, -1))
    (part,) = windows.flush()
    assert (part.start_ms, part.end_ms) == (-1_000, 0)


def test_open_parts_are_bounded_and_none_is_dropped() -> None:
    windows = TumblingWindows(SECOND, max_open=10)
    parts: list[Part] = []
    for seq in range(1, 101):
        parts += windows.add(at(seq, 0, sensor=f"wild-{seq}"))
        assert windows.open_parts <= 10
    assert sum(part.count for part in parts + windows.flush()) == 100


def test_parts_of_different_windows_do_not_add_up() -> None:
    windows = TumblingWindows(SECOND)
    windows.add(at(1, 0))
    windows.add(at(2, 0, sensor="yard"))
    barn, yard = windows.flush()
    with pytest.raises(ValueError, match="not parts of one window"):
        merge(barn, yard)


@pytest.mark.parametrize(("size", "lateness"), [(0, 0), (-1, 0), (1, -1)])
def test_windows_that_make_no_sense_are_refused(size: int, lateness: int) -> None:
    with pytest.raises(ValueError, match="a window lasts"):
        TumblingWindows(size, lateness)


readings = st.lists(
    st.tuples(
        st.integers(0, 20_000),
        st.sampled_from(["barn", "yard", "tank"]),
        st.integers(-500, 500),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(data=readings, lateness=st.integers(0, 3_000), max_open=st.integers(1, 8))
def test_however_they_are_spread_the_parts_add_up_to_the_same_windows(
    data: list[tuple[int, str, int, int]], lateness: int, max_open: int
) -> None:
    """Any order, any lateness, any share of readings per slot: nothing lost, nothing twice."""
    slots = [TumblingWindows(SECOND, lateness, max_open) for _ in range(4)]
    alone = TumblingWindows(SECOND, lateness_ms=10**9)
    parts: list[Part] = []
    for seq, (at_ms, sensor, celsius, slot) in enumerate(data, start=1):
        reading = at(seq, at_ms, float(celsius), sensor)
        parts += slots[slot].add(reading)
        assert alone.add(reading) == []
    for windows in slots:
        parts += windows.flush()
    whole = merge_all(parts)
    assert whole == merge_all(alone.flush())
    assert sum(part.count for part in whole.values()) == len(data)


def test_mean_lies_between_low_and_high() -> None:
    windows = TumblingWindows(SECOND)
    for seq in range(1, 8):
        windows.add(at(seq, 0, seq / 10))
    (part,) = windows.flush()
    assert part.low <= part.mean <= part.high
    assert math.isclose(part.mean, 0.4)
