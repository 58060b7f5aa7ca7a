"""Writes the golden files of this schema version: ``python -m tests.golden.make``.

What lives here: a life in which every fact that the cluster in virtual time can bring about
happens, its log, its ledger and its recording; and the recording of the example project. What may
not: comparing (``tests.golden.test_old_logs``). A golden log is never written anew once its
version was released: a changed fold is what it is there to show. Until then ``--anew`` says that
the change is meant.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from events.errors import NotEnoughSlots, StartFailed
from events.facts import SCHEMA_VERSION
from schedulers.decide import Rules
from schedulers.recording import FORMAT
from slotbus_pytest.cluster import Cluster

FOLDER = Path(__file__).parent
LOG = FOLDER / f"log_v{SCHEMA_VERSION}.jsonl"
LEDGER = FOLDER / f"log_v{SCHEMA_VERSION}.ledger.json"
RECORDING = FOLDER / f"recording_v{FORMAT}.jsonl"
EXAMPLE = FOLDER.parents[1] / "examples/replay_project/tests/golden/a_lost_node.jsonl"
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
    await _policies(cluster)
    await cluster.kill("n4")
    await cluster.advance(400)


async def _policies(cluster: Cluster) -> None:
    """Runs that restart, wait and move; nodes that are drained, or dead."""
    cluster.allow_launches("n4")
    again = {"on_failure": "restart", "on_lost": "restart"}
    await cluster.start("again", 5, **again, scheduler_config={"stop_after_s": 40})
    await cluster.worker_exits(cluster.workers("again")[0].worker_id, 1)
    await cluster.advance(10)
    node_id = cluster.workers("again")[0].node_id
    await cluster.partition(node_id)
    await cluster.advance(75)  # the lease is over, and another run follows
    await cluster.heal(node_id)
    await cluster.start("large", 12, on_shortage="wait", priority=3, wait_s=0)
    await cluster.stop("again")
    await cluster.stop("large", force=True)
    await cluster.start("mover", 3, on_drain="move")
    await cluster.drain(cluster.workers("mover")[0].node_id, deadline_s=20)
    lost = cluster.workers("mover")[0].node_id
    await cluster.kill(lost)
    await cluster.advance(25)
    await cluster.confirm_dead(lost)
    await cluster.reboot(lost)


async def _refused(cluster: Cluster, job_id: str, slots: int, **fields: object) -> None:
    try:
        await cluster.start(job_id, slots, **fields)
    except (NotEnoughSlots, StartFailed):
        return
    raise AssertionError(f"{job_id} was not refused")


def example() -> bytes:
    """The recording in the example project: of a job whose node dies."""
    cluster = Cluster(nodes=2, slots=4)
    cluster.open()
    cluster.run(_lost_node(cluster))
    cluster.close()
    return recorded(cluster)


async def _lost_node(cluster: Cluster) -> None:
    await cluster.start("wordcount", 6)
    await cluster.kill("n1")
    await cluster.advance(40)


def recorded(cluster: Cluster) -> bytes:
    """Its recording, as a file."""
    return b"".join(line + b"\n" for line in cluster.recorder.lines)


def main() -> None:
    """Refuses to write over golden files without ``--anew``; the example's is no such."""
    EXAMPLE.write_bytes(example())
    if LOG.exists() and "--anew" not in sys.argv[1:]:
        sys.exit(f"{LOG.name} is there, and stays: a new schema version gets a new one")
    cluster = lived()
    LOG.write_bytes(cluster.log_lines())
    LEDGER.write_bytes(msgspec.json.format(cluster.ledger.snapshot(), indent=1) + b"\n")
    RECORDING.write_bytes(recorded(cluster))


if __name__ == "__main__":
    main()
