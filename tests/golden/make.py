"""Writes the golden log of this schema version: ``python -m tests.golden.make``.

What lives here: a life in which every fact that the cluster in virtual time can bring about
happens. What may not: comparing (``tests.golden.test_old_logs``). A golden log is never
written anew once its version was released: a changed fold is what it is there to show. Until
then whoever means to change what a ledger holds removes both files first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from events.errors import NotEnoughSlots, StartFailed
from events.facts import SCHEMA_VERSION
from schedulers.decide import Rules
from slotbus_pytest.cluster import Cluster

FOLDER = Path(__file__).parent
LOG = FOLDER / f"log_v{SCHEMA_VERSION}.jsonl"
LEDGER = FOLDER / f"log_v{SCHEMA_VERSION}.ledger.json"
RULES = Rules(
    remembered_commands=8,
    remembered_jobs=3,
    remembered_runs=2,
    stop_timeout_s=5.0,
    expiry_s=20.0,
    node_memory_s=300.0,
)


def lived() -> Cluster:
    """A cluster whose life is over; its log and its recording are left."""
    cluster = Cluster(nodes=4, slots=4, rules=RULES)
    cluster.open()
    cluster.run(live(cluster))
    cluster.check()
    cluster.close()
    return cluster


async def live(cluster: Cluster) -> None:
    """Starts that work, are refused, fail and are rolled back; every end that workers,
    nodes and leaders can meet."""
    await cluster.start("wordcount", 6, program={"steps": [1, 2.5, "drei"]}, env_vars={"A": "ä"})
    await _refused(cluster, "too-large", 99)
    cluster.program("gone", missing=True)
    await _refused(cluster, "gone", 1, scheduler_config={"command": ["nothing"]})
    await cluster.cordon("n4")
    await cluster.partition("n1")
    await cluster.advance(25)
    await cluster.start("beside", 2, scheduler_config={"spread": "even"})
    await cluster.heal("n1")
    await cluster.worker_exits(cluster.workers("wordcount")[0].worker_id, 137)
    await cluster.uncordon("n4")
    cluster.refuse_launches("n4", "disk full")
    await cluster.start("elsewhere", 3)
    await cluster.new_leader()
    await cluster.kill("n2")
    await cluster.advance(30)
    await cluster.stop("wordcount", force=True)
    await cluster.reboot("n2")
    for _ in range(4):
        cluster.program("short", exits=0)
        await cluster.start("short", 1)
        await cluster.settle()
    await cluster.partition("n3")
    await cluster.advance(25)
    await cluster.stop("elsewhere", grace_s=1)
    await cluster.heal("n3")
    await cluster.kill("n4")
    await cluster.advance(400)


async def _refused(cluster: Cluster, job_id: str, slots: int, **fields: object) -> None:
    try:
        await cluster.start(job_id, slots, **fields)
    except (NotEnoughSlots, StartFailed):
        return
    raise AssertionError(f"{job_id} was not refused")


def main() -> None:
    """Refuses to write over a golden log."""
    if LOG.exists():
        sys.exit(f"{LOG.name} is there, and stays: a new schema version gets a new one")
    cluster = lived()
    LOG.write_bytes(cluster.log_lines())
    LEDGER.write_bytes(msgspec.json.format(cluster.ledger.snapshot(), indent=1) + b"\n")


if __name__ == "__main__":
    main()
