"""What is known of the pods: every one that we made or found, until its end is in the log.

What lives here: what a sight of a pod, from whatever list, watch or answer, adds to what was
known, and what there is to say about it. What may not: requests, and waiting.

Lists and watches may come late, twice, or in the wrong order, and versions can't be compared.
So a pod only ever goes forward (waits, runs, is deleted, has ended), and one that is over,
by its uid, stays so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from events.states import WorkerState
from events.traffic import InventoryRow, WorkerFinishedReq
from schedulers.kubernetes.identity import Identity, read_identity
from schedulers.kubernetes.manifest import NODE
from schedulers.kubernetes.names import pod_name
from schedulers.kubernetes.phases import Asked, Cause, Sighting, see, see_deleted
from schedulers.kubernetes.pods import Pod
from schedulers.launcher import HostSeen, Report, WorkerSeen

REMEMBERED_UIDS: Final = 100_000
"""Pods that are over, so that a late word of them changes nothing."""

_log = structlog.get_logger("slotbus.kubernetes")


class Tracked(Struct, eq=False):
    """One worker's pod. ``since``: when it was first seen, of the loop's clock; ``there``:
    the object exists; ``verdict``: why we ended it ourselves; ``settled``: it runs, or it
    never will; ``host``: the node that was told. ``deleting``: the grace of a deletion that is
    to be sent; ``due``: when its stop is overdue; ``forced``: when it is removed without the
    kubelet. ``requests``: deletions under way, whose answers tell what it means that the
    object ``vanished`` meanwhile."""

    who: Identity
    pod: Pod
    since: float
    sight: Sighting
    asked: Asked = Asked.NO
    started: bool = False
    there: bool = True
    end: WorkerFinishedReq | None = None
    verdict: str = ""
    host: str = ""
    told: str = ""
    requests: int = 0
    vanished: Pod | None = None
    deleting: int | None = None
    due: float | None = None
    forced: float | None = None
    settled: bool = False
    waited_for: asyncio.Event | None = None

    async def until_settled(self) -> None:
        """Waits until it runs or never will. Few do: an event for each pod is a tenth of it."""
        if not self.settled:
            self.waited_for = self.waited_for or asyncio.Event()
            await self.waited_for.wait()

    def settle(self) -> None:
        self.settled = True
        if self.waited_for is not None:
            self.waited_for.set()

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def name(self) -> str:
        return self.pod.metadata.name

    @property
    def ran(self) -> bool:
        """Whether its container began, as far as anybody said."""
        sight = self.sight
        ended = sight.exit_code is not None or sight.signal is not None
        return self.started or (ended and sight.cause is not Cause.CONTAINER)


class PodView:
    """The pods of one cluster name in one namespace. ``tell`` gets what there is to say."""

    def __init__(self, cluster: str, tell: Callable[[Report], None]) -> None:
        self._cluster = cluster
        self._tell = tell
        self._by_uid: dict[str, Tracked] = {}
        self._by_worker: dict[str, Tracked] = {}
        self._over: dict[str, None] = {}
        self._strange: set[str] = set()
        self.unsettled: dict[str, Tracked] = {}
        """By uid, pods of which something is due: to run, or to go."""

    def __len__(self) -> int:
        return len(self._by_uid)

    def of(self, worker_id: str) -> Tracked | None:
        """The pod of a worker, also of one that is gone and was not acknowledged."""
        return self._by_worker.get(worker_id)

    def runs(self) -> set[tuple[str, int]]:
        """Job and run of every pod here."""
        return {(t.who.job_id, t.who.run_id) for t in self._by_worker.values()}

    # --- what is seen -------------------------------------------------------------------

    def take(self, pod: Pod, now: float, *, found: bool = False) -> Tracked | None:
        """A pod as it is. ``found``: left by an earlier controller, so that who asked for its
        deletion is not known. None for what is no worker of ours, or is over."""
        uid = pod.metadata.uid
        if uid in self._over:
            return None
        tracked = self._by_uid.get(uid)
        if tracked is None:
            return self._first(pod, now, found)
        if not tracked.there or _stage(see(pod, tracked.asked), pod) < _stage(
            tracked.sight, tracked.pod
        ):
            return tracked
        tracked.pod = pod.unmarked()
        self._look(tracked, see(pod, tracked.asked))
        return tracked

    def gone(self, pod: Pod, now: float) -> None:
        """The object is no more; ``pod``: as it was last."""
        tracked = self._by_uid.get(pod.metadata.uid)
        if tracked is None:
            if pod.metadata.uid not in self._over:
                # Created and deleted between two looks.
                tracked = self._first(pod, now, found=False)
            if tracked is None:
                return
        if _stage(tracked.sight, tracked.pod) > _stage(see(pod, tracked.asked), pod):
            pod = tracked.pod
        self._vanished(tracked, pod)

    def missing(self, tracked: Tracked) -> None:
        """The object is no more, and nobody saw it go."""
        self._vanished(tracked, tracked.pod)

    def listed(self, pods: Iterable[Pod], now: float, begun: float, *, found: bool) -> None:
        """A whole list, begun at ``begun``: what it lacks and was there before is gone."""
        here: set[str] = set()
        for pod in pods:
            here.add(pod.metadata.uid)
            self.take(pod, now, found=found)
        for tracked in list(self._by_uid.values()):
            if tracked.there and tracked.uid not in here and tracked.since < begun:
                self.missing(tracked)

    # --- what is done -------------------------------------------------------------------

    def ask(self, tracked: Tracked, *, due: float, forced: float | None = None) -> None:
        """We have asked for the end of this pod."""
        tracked.due, tracked.forced = due, forced if forced is not None else tracked.forced
        self.unsettled[tracked.uid] = tracked

    def asking(self, tracked: Tracked, grace_s: int) -> Asked:
        """A deletion is sent; gives what was asked before."""
        before = tracked.asked
        if not grace_s:
            tracked.asked = Asked.FORCED
        elif before is Asked.NO:
            tracked.asked = Asked.GRACEFULLY
        tracked.requests += 1
        return before

    def asked(self, tracked: Tracked) -> None:
        """It was answered, or nobody waits for the answer any more."""
        tracked.requests -= 1
        last, tracked.vanished = tracked.vanished, None
        if last is not None:
            self._vanished(tracked, last)

    def forget(self, worker_id: str) -> None:
        """The end of this worker is in the log."""
        tracked = self._by_worker.pop(worker_id, None)
        if tracked is None:
            return
        self._by_uid.pop(tracked.uid, None)
        self.unsettled.pop(tracked.uid, None)
        self._over[tracked.uid] = None
        while len(self._over) > REMEMBERED_UIDS:
            del self._over[next(iter(self._over))]

    # --- what there is to say -----------------------------------------------------------

    def rows(self) -> list[InventoryRow]:
        """All that are there, and ends that were not acknowledged. ``assigned``: nobody can
        say that it runs, or that it does not."""
        return [_row(tracked) for tracked in self._by_worker.values()]

    def _first(self, pod: Pod, now: float, found: bool) -> Tracked | None:
        meta = pod.metadata
        who = read_identity(meta.labels or {}, meta.annotations or {})
        if who is None or who.stamp.cluster != self._cluster:
            self._once(meta.uid, "a pod that has our labels is no worker", pod=meta.name)
            return None
        other = self._by_worker.get(who.worker_id)
        if other is not None:
            if not self._named_as(who, meta.name) or self._named_as(other.who, other.name):
                self._once(meta.uid, "two pods claim to be one worker", pod=meta.name)
                return None
            self.forget(who.worker_id)
        deleted = meta.deletion_timestamp is not None
        asked = Asked.GRACEFULLY if found and deleted else Asked.NO
        tracked = Tracked(who, pod.unmarked(), now, see(pod, asked), asked)
        self._by_uid[meta.uid] = self._by_worker[who.worker_id] = tracked
        self.unsettled[meta.uid] = tracked
        self._look(tracked, tracked.sight)
        if found and deleted and tracked.end is None:
            self._say(tracked, "its pod is being deleted", lost=True)
        return tracked

    def _named_as(self, who: Identity, name: str) -> bool:
        return name == pod_name(self._cluster, who.job_id, who.run_id, who.worker_id)

    def _look(self, tracked: Tracked, sight: Sighting) -> None:
        tracked.sight = sight
        if sight.node and sight.node != tracked.host:
            tracked.host = sight.node
            self._tell(HostSeen(worker_id=tracked.who.worker_id, host=sight.node))
        if sight.state is WorkerState.RUNNING:
            tracked.started = True
        if sight.gone:
            self._end(tracked, sight)
        elif sight.state is WorkerState.LOST:
            self._say(tracked, sight.reason, lost=True)
        if tracked.started or sight.gone or not tracked.there:
            tracked.settle()
            if tracked.asked is Asked.NO or not tracked.there:
                self.unsettled.pop(tracked.uid, None)

    def _vanished(self, tracked: Tracked, last: Pod) -> None:
        if tracked.requests:
            tracked.vanished = last
            return
        tracked.pod, tracked.there = last.unmarked(), False
        self._look(tracked, see_deleted(last, tracked.asked))

    def _end(self, tracked: Tracked, sight: Sighting) -> None:
        """Said once; the engine acknowledges it whenever it hears of it."""
        if tracked.end is not None:
            return
        state, reason = sight.state, sight.reason
        if tracked.verdict:
            state, reason = WorkerState.FAILED, tracked.verdict
        elif state is WorkerState.LOST and tracked.asked is not Asked.NO:
            state = WorkerState.FINISHED
        who, exits = tracked.who, tracked.ran and not tracked.verdict
        tracked.end = WorkerFinishedReq(
            node_id=NODE,
            worker_id=who.worker_id,
            job_id=who.job_id,
            run_id=who.run_id,
            slots=who.slots,
            exit_code=sight.exit_code if exits else None,
            signal=sight.signal if exits else None,
            reason=reason,
            state=state,
        )
        self._tell(tracked.end)

    def say_gone(self, tracked: Tracked) -> None:
        """Its stop was asked for once more, and there is nothing left to be deleted."""
        if tracked.end is None:
            tracked.told = ""
            self._say(tracked, tracked.sight.reason, lost=True)

    def say_still_there(self, tracked: Tracked) -> None:
        """Its stop takes longer than it should."""
        self._say(tracked, see(tracked.pod, tracked.asked).reason, lost=False)

    def _say(self, tracked: Tracked, reason: str, *, lost: bool) -> None:
        if tracked.told == reason:
            return
        tracked.told = reason
        who, node = tracked.who, tracked.pod.node
        _log.warning(
            "nobody can vouch for a worker" if lost else "a worker's stop takes long",
            worker_id=who.worker_id, job_id=who.job_id, node=node, reason=reason,
        )  # fmt: skip
        self._tell(WorkerSeen(worker_id=who.worker_id, lost=lost, reason=reason))

    def _once(self, uid: str, what: str, **facts: str) -> None:
        if uid not in self._strange and len(self._strange) < REMEMBERED_UIDS:
            self._strange.add(uid)
            _log.warning(what, **facts)


def _stage(sight: Sighting, pod: Pod) -> int:
    """How far a pod has come: waits, runs, is being deleted, has ended."""
    if sight.gone or pod.status.phase in ("Succeeded", "Failed"):
        return 3
    if pod.metadata.deletion_timestamp is not None:
        return 2
    return 0 if sight.state is WorkerState.ASSIGNED else 1


def _row(tracked: Tracked) -> InventoryRow:
    who, sight, end = tracked.who, tracked.sight, tracked.end
    row = InventoryRow(
        worker_id=who.worker_id,
        job_id=who.job_id,
        run_id=who.run_id,
        slots=who.slots,
        state=WorkerState.ASSIGNED if sight.state is WorkerState.LOST else sight.state,
        reason=sight.reason,
        stamp=who.stamp,
    )
    if end is None:
        return row
    state = end.state or WorkerState.LOST
    return msgspec.structs.replace(
        row, state=state, exit_code=end.exit_code, signal=end.signal, reason=end.reason
    )
