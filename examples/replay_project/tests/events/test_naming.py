"""A folder named ``events`` hides nothing: slotbus's own package is still found."""

from pathlib import Path

from events.ids import DEFAULT_EXPIRY_S
from slotbus_pytest import Cluster


def test_both_are_there(cluster: Cluster) -> None:
    assert cluster.rules.expiry_s == DEFAULT_EXPIRY_S
    assert Path(__file__).parent.name == "events"
