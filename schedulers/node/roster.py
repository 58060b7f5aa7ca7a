"""The slots an agent has given out, as far as it knows without asking its supervisor.

What lives here: a pure fold of launches, ends and inventories. What may not: asking.
"""

from __future__ import annotations

from msgspec import Struct

from events.states import WorkerState
from schedulers.supervisor.api import Inventory

LIVE = frozenset({WorkerState.RUNNING, WorkerState.STOPPING})


class Held(Struct, frozen=True):
    """A worker's slots; ``seq``: of the launch or the inventory that showed it."""

    slots: int
    seq: int


class Roster:
    """Errs on the side of holding too much: ask for an inventory before you refuse."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self._reserved: dict[str, int] = {}

    def holds(self, worker_id: str) -> bool:
        return worker_id in self.held

    @property
    def used(self) -> int:
        """Slots of live workers and of those being launched."""
        return sum(held.slots for held in self.held.values()) + sum(
            slots for worker_id, slots in self._reserved.items() if worker_id not in self.held
        )

    def reserve(self, worker_id: str, slots: int) -> None:
        """A launch begins: its slots are taken until ``release``."""
        self._reserved[worker_id] = slots

    def release(self, worker_id: str) -> None:
        """A launch is over, whatever came of it."""
        self._reserved.pop(worker_id, None)

    def launched(self, worker_id: str, slots: int, seq: int) -> None:
        self.held[worker_id] = Held(slots, seq)

    def ended(self, worker_id: str) -> None:
        self.held.pop(worker_id, None)

    def refresh(self, inventory: Inventory) -> None:
        """Takes over an inventory; what was launched after it was taken stays."""
        later = {w: held for w, held in self.held.items() if held.seq > inventory.seq}
        self.held = {
            row.worker_id: Held(row.slots, inventory.seq)
            for row in inventory.workers
            if row.state in LIVE
        } | later
