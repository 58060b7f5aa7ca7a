"""The demo's own arithmetic must not be what makes it succeed: it has to notice what is wrong."""

from __future__ import annotations

import io

import pytest
from nats.aio.client import Client
from rich.console import Console

from controller.demo.accounts import (
    Account,
    agree,
    from_ledger,
    from_metrics,
    from_processes,
    from_queries,
)
from controller.demo.feeder import Feeder
from controller.demo.pipeline import Result
from controller.demo.processes import LiveWorker
from controller.demo.results import Results
from controller.demo.show import Show
from events.ledger import Ledger
from events.queries import NodeRow
from events.states import NodeState

WINDOW_MS = 1_000

GAUGES = """\
# TYPE slotbus_free_slots gauge
slotbus_free_slots 2.0
# TYPE slotbus_registered_slots gauge
slotbus_registered_slots 8.0
# TYPE slotbus_registered_nodes gauge
slotbus_registered_nodes 2.0
# TYPE slotbus_node_free_slots gauge
slotbus_node_free_slots{node_id="n2"} 0.0
slotbus_node_free_slots{node_id="n3"} 2.0
"""


def node(node_id: str, free: int, state: NodeState = NodeState.READY) -> NodeRow:
    return NodeRow(
        node_id=node_id,
        addr="",
        state=state,
        registered_slots=4,
        free_slots=free,
        scheduled_slots=4 - free,
        heartbeat_age_s=0.1,
        labels={},
    )


def test_four_sides_that_say_the_same_agree() -> None:
    queried = from_queries([node("n1", 0, NodeState.EXPIRED), node("n2", 0), node("n3", 2)])
    metrics = from_metrics(GAUGES, ["n2", "n3"])
    workers = [LiveWorker("w-1", "n2", 4, 10), LiveWorker("w-2", "n3", 2, 11)]
    processes = from_processes(workers, {"n2": 4, "n3": 4})
    assert queried.free == metrics.free == processes.free == {"n2": 0, "n3": 2}
    assert agree([queried, metrics, processes]) == ""


def test_a_worker_too_many_in_the_process_table_is_noticed() -> None:
    queried = from_queries([node("n2", 0), node("n3", 2)])
    workers = [LiveWorker(f"w-{n}", "n3", 2, 10 + n) for n in range(2)]
    differ = agree([queried, from_processes([*workers], {"n2": 4, "n3": 4})])
    assert "query.nodes" in differ
    assert "process table" in differ


def test_an_empty_log_has_no_nodes() -> None:
    assert from_ledger(Ledger()) == Account(source="event log", free={}, registered=0, nodes=0)


@pytest.mark.parametrize(
    ("gauges", "said"),
    [
        (GAUGES.replace("slotbus_registered_nodes", "other"), "no slotbus_registered_nodes"),
        (GAUGES.replace("slotbus_free_slots 2.0", "slotbus_free_slots 3.0"), "is 3"),
    ],
)
def test_gauges_that_contradict_themselves_are_refused(gauges: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_metrics(gauges, ["n2", "n3"])


@pytest.fixture
async def feeder() -> Feeder:
    return Feeder(Client(), "readings", rate=100.0)


def results_of(feeder: Feeder, first: int, last: int) -> Results:
    """Results as one slot of run 1 would publish them."""
    results = Results(WINDOW_MS, lambda _line: None)
    for part in feeder.expected(first, last, WINDOW_MS).values():
        results.all.append(
            Result(job_id="dairy", run_id=1, worker_id="w", slot=0, mean=part.mean, part=part)
        )
    return results


async def test_a_run_that_counted_everything_once_covers_the_feed(feeder: Feeder) -> None:
    results = results_of(feeder, 5, 700)
    coverage = results.coverage(1, feeder)
    assert (coverage.first_seq, coverage.last_seq, coverage.missing) == (5, 700, 0)
    assert coverage.wrong == ""


async def test_a_part_that_is_missing_is_noticed(feeder: Feeder) -> None:
    results = results_of(feeder, 1, 700)
    del results.all[len(results.all) // 2]
    coverage = results.coverage(1, feeder)
    assert coverage.missing > 0
    assert coverage.wrong


async def test_a_part_that_was_counted_twice_is_noticed(feeder: Feeder) -> None:
    results = results_of(feeder, 1, 700)
    results.all.append(results.all[3])
    coverage = results.coverage(1, feeder)
    assert coverage.missing < 0
    assert coverage.wrong


async def test_no_results_are_no_success(feeder: Feeder) -> None:
    coverage = Results(WINDOW_MS, lambda _line: None).coverage(1, feeder)
    assert coverage.wrong == "no results"


def show() -> tuple[Show, io.StringIO]:
    text = io.StringIO()
    return Show(Console(file=text, width=100), clock=lambda: 0.0), text


def test_one_broken_promise_breaks_the_demo() -> None:
    voice, text = show()
    voice.check("the sun rises", True)
    voice.check("pigs fly [today]", False, "none did")
    assert not voice.checklist()
    assert "BROKEN  pigs fly [today] (none did)" in text.getvalue()
    assert "promises not held: 1 (2 checked" in text.getvalue()


def test_kept_promises_make_the_demo() -> None:
    voice, text = show()
    voice.check("the sun rises", True)
    assert voice.checklist()
    assert "all promises held (1 checked" in text.getvalue()


def test_nothing_promised_is_no_success() -> None:
    voice, _ = show()
    assert not voice.checklist()
