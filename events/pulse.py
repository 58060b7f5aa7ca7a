"""The pulse: who was heard from when, folded from what came in.

What lives here: last heard times, the epoch each node has seen, and expiry as a pure
function of these and a time. What may not: the log (an expiry becomes a fact elsewhere),
clocks.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from msgspec import Struct

from events.ledger import Ledger, live_digest

__all__ = ["Beat", "Pulse", "live_digest"]


class Beat(Struct, kw_only=True):
    """What was last heard of a node. ``owed``: this leader needs an inventory of it;
    ``asked_at``: since when one is being waited for."""

    last_seen: datetime
    seq: int = 0
    epoch: int = 0
    owed: bool = False
    asked_at: datetime | None = None


class Pulse:
    """Last signs of life of the watched nodes; ``expiry``: silence longer than this is
    death, silence of exactly this is not."""

    def __init__(self, expiry: timedelta) -> None:
        self.expiry = expiry
        self.beats: dict[str, Beat] = {}
        self._epochs: Counter[int] = Counter()
        """How many nodes have seen which epoch as their highest."""
        self.due: datetime | None = None
        """No node can be expired up to this time (and one may be after it)."""

    def adopt(self, beats: dict[str, Beat], due: datetime | None) -> None:
        """Knows what another pulse knew, and nothing else."""
        self.beats, self.due = beats, due
        self._epochs = Counter(beat.epoch for beat in beats.values())

    def heard(self, node_id: str, at: datetime, *, epoch: int = 0, seq: int = 0) -> Beat:
        """A sign of life; ``epoch``: the highest the node says it has seen."""
        beat = self.beats.get(node_id)
        if beat is None:
            beat = self.beats[node_id] = Beat(last_seen=at)
            self._epochs[beat.epoch] += 1
            self._expect(at)
        self.heard_again(beat, at, epoch, seq)
        return beat

    def heard_again(self, beat: Beat, at: datetime, epoch: int, seq: int) -> None:
        """A further sign of life of a node that is known."""
        if at > beat.last_seen:
            beat.last_seen = at
        if seq > beat.seq:
            beat.seq = seq
        if epoch > beat.epoch:
            self._epochs[beat.epoch] -= 1
            self._epochs[epoch] += 1
            beat.epoch = epoch

    def heard_under(self, epoch: int) -> int:
        """How many nodes have seen this epoch or a higher one."""
        return sum(count for seen, count in self._epochs.items() if seen >= epoch)

    def grace(self, at: datetime) -> None:
        """Everybody gets a new full term: we could not have heard them."""
        for beat in self.beats.values():
            beat.last_seen = max(beat.last_seen, at)

    def forget(self, node_id: str) -> None:
        """Expect nothing of this node."""
        beat = self.beats.pop(node_id, None)
        if beat is not None:
            self._epochs[beat.epoch] -= 1

    def follow(self, ledger: Ledger, now: datetime) -> None:
        """Expects what a ledger that was read anew says: this pulse may have given up a node
        that the log has not, or the reverse."""
        watched = {n.node_id for n in ledger.nodes.values() if n.watched and not n.expired}
        for node_id in self.beats.keys() - watched:
            self.forget(node_id)
        for node_id in sorted(watched - self.beats.keys()):
            self.heard(node_id, now)

    def age(self, node_id: str, now: datetime) -> timedelta | None:
        """Time since a node was heard, or None where it is not watched."""
        beat = self.beats.get(node_id)
        return None if beat is None else max(timedelta(0), now - beat.last_seen)

    def expired(self, now: datetime, most: int | None = None) -> list[str]:
        """The first ``most`` nodes, by id, that were silent for longer than the expiry;
        ``forget`` each. Cheap while none can be."""
        if not self.overdue(now):
            return []
        silent = sorted(n for n, b in self.beats.items() if now - b.last_seen > self.expiry)
        if most is not None and len(silent) > most:
            return silent[:most]  # the others are still due
        gone = set(silent)
        seen = [b.last_seen for n, b in self.beats.items() if n not in gone]
        self.due = min(seen) + self.expiry if seen else None
        return silent

    def overdue(self, now: datetime) -> bool:
        """Whether a node may have expired by now."""
        return self.due is not None and now > self.due

    def _expect(self, at: datetime) -> None:
        due = at + self.expiry
        self.due = due if self.due is None else min(self.due, due)
