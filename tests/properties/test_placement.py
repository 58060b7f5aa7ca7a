"""Placement: what holds for any nodes and any wish."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from schedulers.placement import NAMED_NODES, NOT_NEEDED, Candidate, Plan, Wish
from schedulers.placement import place as place_in
from tests.support.placing import Walk, amounts_by_hand, eligible, fleet_of, place

ids = st.text("abn", min_size=1, max_size=3)
labels = st.dictionaries(st.sampled_from(["zone", "gpu"]), st.sampled_from(["a", "b"]))
nodes = st.builds(
    Candidate,
    ids,
    st.integers(0, 9),
    labels,
    st.sampled_from(["", "", "", "cordoned", "expired"]),
)
fleets = st.lists(nodes, max_size=12, unique_by=lambda candidate: candidate.node_id)
wishes = st.builds(
    Wish,
    slots=st.integers(1, 60),
    selector=labels,
    spread=st.sampled_from(["pack", "even"]),
    per_worker=st.none() | st.integers(1, 5),
    excluded=st.dictionaries(ids, st.just("it failed"), max_size=2),
)


def amounts(plan: Plan) -> Counter[str]:
    counted: Counter[str] = Counter()
    for share in plan.shares:
        counted[share.node_id] += share.slots
    return counted


@given(fleets, wishes)
def test_never_more_than_is_free_nor_on_a_node_that_may_not_be_taken(
    fleet: list[Candidate], wish: Wish
) -> None:
    free = eligible(fleet, wish)
    for node_id, slots in amounts(place(fleet, wish)).items():
        assert 0 < slots <= free[node_id]


@given(fleets, wishes)
def test_exactly_what_was_asked_for_or_it_says_how_much_is_missing(
    fleet: list[Candidate], wish: Wish
) -> None:
    plan = place(fleet, wish)
    total = sum(eligible(fleet, wish).values())
    # Nodes that were not needed are not looked at, so only a shortage is told exactly.
    assert plan.free == total if plan.missing else plan.free >= total
    assert plan.missing == max(0, wish.slots - total)
    assert sum(share.slots for share in plan.shares) == wish.slots - plan.missing


@given(fleets, wishes, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(
    fleet: list[Candidate], wish: Wish, random: object
) -> None:
    shuffled = list(fleet)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert place(shuffled, wish) == place(fleet, wish)


@given(fleets, wishes)
def test_packing_fills_the_most_free_node_before_it_touches_the_next(
    fleet: list[Candidate], wish: Wish
) -> None:
    if wish.spread != "pack":
        return
    free = eligible(fleet, wish)
    ranked = sorted(free, key=lambda node_id: (-free[node_id], node_id))
    taken = amounts(place(fleet, wish))
    assert list(taken) == ranked[: len(taken)]
    assert all(taken[node_id] == free[node_id] for node_id in list(taken)[:-1])


@given(fleets, wishes)
def test_even_leaves_the_nodes_it_took_as_equal_as_can_be(
    fleet: list[Candidate], wish: Wish
) -> None:
    if wish.spread != "even":
        return
    free = eligible(fleet, wish)
    taken = amounts(place(fleet, wish))
    left = {node_id: free[node_id] - taken[node_id] for node_id in free}
    for node_id in taken:
        # It had the most when it was dealt its last one.
        assert left[node_id] + 1 >= max(left.values())


@given(fleets, wishes)
def test_no_worker_is_larger_than_it_may_be_and_no_more_are_made_than_needed(
    fleet: list[Candidate], wish: Wish
) -> None:
    plan = place(fleet, wish)
    most = wish.per_worker or max((share.slots for share in plan.shares), default=1)
    workers = Counter(share.node_id for share in plan.shares)
    assert all(share.slots <= most for share in plan.shares)
    for node_id, slots in amounts(plan).items():
        assert workers[node_id] == -(-slots // most)


@given(fleets, wishes)
def test_every_node_was_taken_or_is_counted_once_and_the_first_are_named(
    fleet: list[Candidate], wish: Wish
) -> None:
    plan = place(fleet, wish)
    named = [node_id for why in plan.passed_over for node_id in why.nodes]
    taken = list(amounts(plan))
    counted = sum(why.count for why in plan.passed_over)
    assert counted + len(taken) == len(fleet)
    assert len({*named, *taken}) == len(named) + len(taken)
    assert {*named, *taken} <= {one.node_id for one in fleet}
    assert len({why.reason for why in plan.passed_over}) == len(plan.passed_over)
    for why in plan.passed_over:
        assert len(why.nodes) == min(why.count, NAMED_NODES)


@given(fleets, wishes)
def test_slot_by_slot_over_all_nodes_it_comes_to_the_same(
    fleet: list[Candidate], wish: Wish
) -> None:
    plan = place(fleet, wish)
    assert list(amounts(plan).items()) == list(amounts_by_hand(fleet, wish).items())


@given(fleets, wishes)
def test_it_looks_no_further_than_it_must_and_calls_only_those_behind_not_needed(
    fleet: list[Candidate], wish: Wish
) -> None:
    known = fleet_of(fleet)
    assert isinstance(known.ranked, Walk)
    plan = place_in(known, wish)
    unneeded = {n for why in plan.passed_over if why.reason == NOT_NEEDED for n in why.nodes}
    if plan.missing:
        assert not unneeded
        assert known.ranked.looked_at == known.count
    ranked = [c.node_id for c in fleet_of(fleet).ranked]
    unnamed = set(ranked) - unneeded - set(amounts(plan))
    behind = sum(why.count for why in plan.passed_over if why.reason == NOT_NEEDED)
    # A few are named; whoever could have been used is counted all the same.
    assert len(unnamed & eligible(fleet, wish).keys()) <= behind - len(unneeded)
