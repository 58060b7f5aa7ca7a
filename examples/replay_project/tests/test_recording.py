"""A recording of a real cluster, played again: what would we have decided?"""

from pathlib import Path

from events.audit import audit
from schedulers.files import replay_file

RECORDING = Path(__file__).parent / "golden" / "a_lost_node.jsonl"


def test_the_recording_leads_to_the_same_decisions() -> None:
    played = replay_file(RECORDING)
    assert not audit(played.records)
    assert played.ledger.nodes["n1"].expired
    assert [worker.state for worker in played.ledger.workers.values()] == ["lost", "running"]
