"""Which snapshots stay, and behind which the log is purged."""

from __future__ import annotations

import pytest

from controller.retention import SPREAD, Keeping, cut, superfluous
from events.jetstream import Extent

MIB = 1024 * 1024


def test_few_snapshots_all_stay() -> None:
    positions = [10 * n for n in range(1, SPREAD + 4)]
    assert superfluous(positions, kept=3, needs_oldest=True) == []
    assert superfluous([], kept=3, needs_oldest=False) == []


@pytest.mark.parametrize("needs_oldest", [True, False])
def test_many_are_thinned_to_an_even_spread_and_the_newest_stay(needs_oldest: bool) -> None:
    left: list[int] = []
    for position in range(10_000, 1_010_000, 10_000):
        left.append(position)
        dropped = superfluous(left, kept=3, needs_oldest=needs_oldest)
        left = [p for p in left if p not in dropped]
        assert left[-1] == position
    assert len(left) == SPREAD + 3
    assert left[-3:] == [980_000, 990_000, 1_000_000]
    gaps = [b - a for a, b in zip([0, *left], left, strict=False)]
    assert max(gaps) <= 4 * 1_000_000 / SPREAD
    if needs_oldest:
        assert left[0] == 10_000


def test_a_log_below_its_limit_is_left_alone() -> None:
    keeping = Keeping(kept=2, log_bytes=10 * MIB)
    assert cut([100, 200, 300], Extent(1, 400, 10 * MIB), keeping) == 0


def test_it_is_cut_as_little_as_leaves_some_room() -> None:
    keeping = Keeping(kept=2, log_bytes=10 * MIB)
    positions = [100, 200, 300, 400, 500, 600]
    assert cut(positions, Extent(1, 700, 10 * MIB + 1), keeping) == 200
    assert cut(positions, Extent(1, 700, 14 * MIB), keeping) == 400


def test_never_beyond_the_oldest_of_the_newest() -> None:
    keeping = Keeping(kept=3, log_bytes=MIB)
    assert cut([100, 200, 300, 400], Extent(1, 500, 100 * MIB), keeping) == 200
    assert cut([200, 300, 400], Extent(1, 500, 100 * MIB), keeping) == 200
    assert cut([300, 400], Extent(1, 500, 100 * MIB), keeping) == 0
    assert cut([200, 300, 400], Extent(200, 500, 100 * MIB), keeping) == 0
