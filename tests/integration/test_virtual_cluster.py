"""The plugin's cluster itself: everything that can happen to it, in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from events.errors import StartFailed, UnknownNode
from slotbus_pytest.cluster import Cluster
from slotbus_pytest.virtual import Stuck, VirtualLoop

EXPIRY_TEST_S = 0.05
"""What a test of a 30 s expiry may take of real time."""


@pytest.fixture
def made() -> Iterator[Cluster]:
    cluster = Cluster()
    cluster.open()
    try:
        yield cluster
        cluster.check()
    finally:
        cluster.close()


def test_an_expiry_costs_next_to_no_real_time() -> None:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        cluster = Cluster()
        cluster.open()

        async def story(cluster: Cluster = cluster) -> None:
            await cluster.start("j", 2)
            await cluster.kill("n1")
            await cluster.advance(30.1)
            cluster.expect("n1", "expired")

        cluster.run(story())
        cluster.check()
        cluster.close()
        took.append(time.perf_counter() - began)
    assert min(took) < EXPIRY_TEST_S, took


def test_frozen_machines_do_nothing_until_they_thaw(made: Cluster) -> None:
    async def story() -> None:
        (worker,) = (await made.start("j", 1)).workers
        await made.freeze("n1")
        await made.worker_exits(worker.worker_id, 3)
        await made.advance(40)
        made.expect(worker.worker_id, "lost")
        assert made.processes("n1") == [worker.worker_id]
        await made.thaw("n1")
        await made.advance(5)
        made.expect(worker.worker_id, "failed")
        assert made.processes() == []
        assert made.ledger.workers[worker.worker_id].exit_code == 3

    made.run(story())


def test_partitioned_machines_go_on_and_report_when_they_are_back(made: Cluster) -> None:
    async def story() -> None:
        (worker,) = (await made.start("j", 1)).workers
        await made.partition("n1", "n2")
        await made.worker_exits(worker.worker_id, 137)
        assert made.processes() == []
        await made.advance(31)
        assert [made.state(node) for node in ("n1", "n2", "n3")] == ["expired", "expired", "ready"]
        await made.heal("n1", "n2")
        made.expect(worker.worker_id, "failed")
        assert made.ledger.workers[worker.worker_id].signal == 9
        made.expect("n2", "ready")

    made.run(story())


def test_a_machine_that_reboots_has_lost_its_workers(made: Cluster) -> None:
    async def story() -> None:
        (worker,) = (await made.start("j", 4)).workers
        await made.reboot("n1")
        made.expect(worker.worker_id, "lost")
        assert made.ledger.workers[worker.worker_id].gone
        assert made.free_slots("n1") == 4

    made.run(story())


def test_an_agent_that_restarts_keeps_its_workers(made: Cluster) -> None:
    async def story() -> None:
        (worker,) = (await made.start("j", 4)).workers
        await made.restart_agent("n1")
        made.expect(worker.worker_id, "running")
        assert made.ledger.nodes["n1"].incarnation == "n1-2"

    made.run(story())


def test_launches_that_are_refused_go_elsewhere(made: Cluster) -> None:
    async def story() -> None:
        made.refuse_launches("n1")
        (worker,) = (await made.start("j", 3)).workers
        assert worker.node_id == "n2"
        made.allow_launches("n1")
        await made.start("k", 4)
        assert [w.node_id for w in made.workers("k")] == ["n1"]

    made.run(story())


def test_programs_do_as_they_are_told(made: Cluster) -> None:
    async def story() -> None:
        made.program("short", exits=0)
        await made.start("short", 1)
        await made.settle()
        made.expect("short", "finished")
        made.program("gone", missing=True)
        with pytest.raises(StartFailed):
            await made.start("gone", 1, scheduler_config={"command": ["nothing"]})
        made.program("deaf", deaf=True)
        await made.start("deaf", 1)
        before = made.now
        await made.stop("deaf", grace_s=7)
        assert (made.now - before).total_seconds() == pytest.approx(7, abs=0.5)
        assert made.workers(ended=True)[-1].signal == 9

    made.run(story())


def test_nodes_come_and_are_cordoned(made: Cluster) -> None:
    async def story() -> None:
        await made.add_node("big", 32, zone="a")
        await made.cordon("big")
        assert made.free_slots("big") == 32
        await made.start("j", 1)
        assert made.workers("j")[0].node_id == "n1"
        await made.uncordon("big")
        (worker,) = (await made.start("k", 9, scheduler_config={"selector": {"zone": "a"}})).workers
        assert worker.node_id == "big"
        with pytest.raises(UnknownNode):
            await made.cordon("nobody")

    made.run(story())


def test_stories_are_about_jobs_and_nodes(made: Cluster) -> None:
    async def story() -> None:
        await made.start("j", 1)
        await made.start("k", 6)

    made.run(story())
    assert " k/1" in made.story("k")
    assert " j/1" not in made.story("k")
    assert "node_registered n3" in made.story(node_id="n3")
    assert len(made.story().splitlines()) > len(made.story("k").splitlines())
    with pytest.raises(AssertionError, match="k is running, not failed"):
        made.expect("k", "failed")


def test_the_same_test_gives_the_same_bytes() -> None:
    def lines() -> bytes:
        cluster = Cluster(nodes=4)
        cluster.open()

        async def story() -> None:
            await cluster.start("j", 9)
            await cluster.kill("n2")
            await cluster.advance(60)
            await cluster.new_leader()
            await cluster.stop("j")

        cluster.run(story())
        cluster.close()
        return cluster.log_lines()

    assert lines() == lines()


def test_misspelt_names_are_answered_with_those_there_are(made: Cluster) -> None:
    with pytest.raises(KeyError, match="no node n9; there are n1, n2, n3"):
        made.run(made.kill("n9"))
    with pytest.raises(KeyError, match="no process of worker w"):
        made.run(made.worker_exits("w"))


def test_what_never_happens_is_said_instead_of_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slotbus_pytest.virtual.LONGEST_WAIT_S", 0.01)
    loop = VirtualLoop()
    try:
        with pytest.raises(Stuck):
            loop.run_until_complete(asyncio.Event().wait())
        loop.run_until_complete(asyncio.to_thread(lambda: None))
        assert loop.time() == 0
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_a_lease_ends_the_worker_and_then_its_run_begins_elsewhere(made: Cluster) -> None:
    async def story() -> None:
        how = {"on_lost": "restart", "scheduler_config": {"stop_after_s": 60}}
        (worker,) = (await made.start("j", 1, **how)).workers
        await made.partition(worker.node_id)
        await made.advance(55)
        assert made.processes(worker.node_id) == [worker.worker_id]
        await made.advance(15)
        assert made.processes() == [], "its own machine has ended it by then"
        await made.advance(25)
        (successor,) = made.processes()
        assert successor != worker.worker_id
        await made.heal(worker.node_id)
        await made.advance(10)
        assert made.processes() == [successor]
        assert made.ledger.jobs["j"].current.restart_of == 1

    made.run(story())


def test_a_node_is_drained_and_another_is_dead(made: Cluster) -> None:
    async def story() -> None:
        (worker,) = (await made.start("j", 1, on_drain="move", on_lost="restart")).workers
        reply = await made.drain(worker.node_id)
        assert reply.complete
        assert [(run.job_id, run.to_run) for run in reply.moved] == [("j", 2)]
        (moved,) = made.workers("j")
        assert moved.node_id != worker.node_id
        await made.kill(moved.node_id)
        await made.advance(40)
        assert (await made.confirm_dead(moved.node_id)).workers == [moved.worker_id]
        await made.advance(5)
        (last,) = made.workers("j")
        assert last.node_id not in (worker.node_id, moved.node_id)

    made.run(story())
