"""Placement by example: the reference cases, and the words it gives."""

from __future__ import annotations

from schedulers.placement import (
    NAMED_NODES,
    NO_ROOM,
    NOT_NEEDED,
    Candidate,
    Plan,
    Share,
    Wish,
    too_many_workers,
)
from schedulers.placement import place as place_in
from tests.support.placing import Walk, fleet_of, place


def nodes(**free: int) -> list[Candidate]:
    return [Candidate(node_id, slots, {}) for node_id, slots in free.items()]


def shares(plan: Plan) -> list[tuple[str, int]]:
    return [(share.node_id, share.slots) for share in plan.shares]


def test_the_most_free_node_first_then_the_next_ties_by_id() -> None:
    plan = place(nodes(c=4, b=4, a=2, d=6), Wish(slots=11))
    assert shares(plan) == [("d", 6), ("b", 4), ("c", 1)]
    assert (plan.missing, plan.free) == (0, 16)


def test_a_shortage_says_how_much_is_missing() -> None:
    plan = place(nodes(a=2, b=1), Wish(slots=5))
    assert (plan.missing, plan.free) == (2, 3)


def test_no_candidates_at_all() -> None:
    assert place([], Wish(slots=5)) == Plan([], 5, 0, [])


def test_even_deals_one_by_one_to_whoever_has_the_most_left() -> None:
    plan = place(nodes(a=5, b=4, c=1), Wish(slots=5, spread="even"))
    assert shares(plan) == [("a", 3), ("b", 2)]


def test_slots_of_a_node_are_cut_into_workers() -> None:
    plan = place(nodes(a=7), Wish(slots=7, per_worker=3))
    assert shares(plan) == [("a", 3), ("a", 3), ("a", 1)]
    assert shares(place(nodes(a=6), Wish(slots=6, per_worker=3))) == [("a", 3), ("a", 3)]


def test_reasons_name_every_node_that_was_not_taken() -> None:
    candidates = [
        Candidate("full", 0, {"zone": "a"}),
        Candidate("away", 9, {"zone": "b"}),
        Candidate("shut", 9, {"zone": "a"}, blocked="cordoned"),
        Candidate("bad", 9, {"zone": "a"}),
        Candidate("taken", 2, {"zone": "a"}),
        Candidate("spare", 1, {"zone": "a"}),
    ]
    wish = Wish(slots=2, selector={"zone": "a"}, excluded={"bad": "disk full"})
    plan = place(candidates, wish)
    assert shares(plan) == [("taken", 2)]
    assert {(p.reason, *p.nodes) for p in plan.passed_over} == {
        (NO_ROOM, "full"),
        ("label zone is not a", "away"),
        ("cordoned", "shut"),
        ("failed in this start: disk full", "bad"),
        (NOT_NEEDED, "spare"),
    }


def test_a_reason_names_some_nodes_and_counts_them_all() -> None:
    many = [Candidate(f"n{index:03}", 0, {}) for index in range(50)]
    (why,) = place(many, Wish(slots=1)).passed_over
    assert (why.count, len(why.nodes), why.nodes[0]) == (50, NAMED_NODES, "n000")


def test_too_many_workers_counts_those_that_are_there_already() -> None:
    plan = Plan([Share("a", 1)] * 1_000, 0, 0, [])
    assert not too_many_workers(plan)
    assert too_many_workers(plan, beside=1)


def test_of_many_nodes_only_those_that_are_needed_are_looked_at() -> None:
    many = fleet_of([Candidate(f"n{index:04}", 8, {}) for index in range(5_000)])
    assert isinstance(many.ranked, Walk)
    plan = place_in(many, Wish(slots=20))
    assert shares(plan) == [("n0000", 8), ("n0001", 8), ("n0002", 4)]
    (why,) = plan.passed_over
    assert (why.reason, why.count, len(why.nodes)) == (NOT_NEEDED, 4_997, NAMED_NODES)
    assert many.ranked.looked_at <= 3


def test_a_million_slots_are_dealt_at_once() -> None:
    plan = place(nodes(a=2_000_000, b=1_000_000, c=1), Wish(slots=1_500_001, spread="even"))
    assert shares(plan) == [("a", 1_250_001), ("b", 250_000)]
