"""What becomes of our jobs when machines fail."""

import pytest

from schedulers import NotEnoughSlots
from slotbus_pytest import Cluster, Golden


async def test_a_dead_node_is_expired_after_thirty_seconds(cluster: Cluster) -> None:
    reply = await cluster.start("wordcount", slots=6)
    assert [worker.node_id for worker in reply.workers] == ["n1", "n2"]
    await cluster.kill("n1")
    await cluster.advance(20)
    cluster.expect("n1", "ready")
    await cluster.advance(15)
    cluster.expect("n1", "expired")
    cluster.expect(reply.workers[0].worker_id, "lost")
    assert cluster.free_slots() == 6


async def test_a_worker_out_of_memory_fails_its_run(cluster: Cluster) -> None:
    reply = await cluster.start("wordcount", slots=2)
    await cluster.worker_exits(reply.workers[0].worker_id, 137)
    cluster.expect("wordcount", "failed")
    assert cluster.free_slots() == 12


async def test_a_job_that_is_too_large_is_refused_as_a_whole(cluster: Cluster) -> None:
    with pytest.raises(NotEnoughSlots) as refusal:
        await cluster.start("wordcount", slots=13)
    assert refusal.value.slots_needed == 1
    assert cluster.processes() == []


@pytest.mark.slotbus(nodes=2, slots=4, expiry_s=10, heartbeat_s=2)
async def test_a_partition_that_heals(cluster: Cluster, golden: Golden) -> None:
    reply = await cluster.start("wordcount", slots=4)
    (worker,) = reply.workers
    await cluster.partition("n1")
    await cluster.advance(15)
    cluster.expect(worker.worker_id, "lost")
    await cluster.heal("n1")
    cluster.expect(worker.worker_id, "running")
    golden.check("a_partition_that_heals.txt", cluster.story())


async def test_a_new_leader_knows_what_the_last_one_knew(cluster: Cluster) -> None:
    await cluster.start("wordcount", slots=3)
    before = cluster.workers()
    await cluster.new_leader()
    assert [worker.worker_id for worker in cluster.workers()] == [
        worker.worker_id for worker in before
    ]
    await cluster.stop("wordcount")
    assert cluster.processes() == []
