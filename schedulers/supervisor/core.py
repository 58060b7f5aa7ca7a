"""The supervisor itself, in the process of whoever uses it.

What lives here: one decision for each method of the port: who may ask for what, by epochs,
tombstones and leases. What may not: sockets, and what is done to processes (``workers``) or
remembered of them (``memory``). All of it is synchronous between two turns of the loop, so
that no two things are ever done to one worker at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from events.errors import Invalid
from events.ids import DEFAULT_GRACE_S, ID_RE
from events.policies import LEASE_GRACE_S
from events.traffic import AgentStopReply, InventoryRow
from schedulers.supervisor import output
from schedulers.supervisor.api import (
    Inventory,
    OutputTail,
    Spawned,
    SpawnRefused,
    SupervisorGone,
    WorkerSpec,
)
from schedulers.supervisor.journal import Acknowledged, EpochSeen, Renewed, Tombstone
from schedulers.supervisor.memory import Memory
from schedulers.supervisor.process_tree import become_subreaper
from schedulers.supervisor.state import MAX_WORKERS, Worker
from schedulers.supervisor.workers import Workers

CLOSE_MARGIN_S: Final = 5.0
"""How long ``close`` waits for the killed, beyond the grace."""

_log = logging.getLogger(__name__)


class Settings(Struct, frozen=True, kw_only=True):
    """``workdir``: where workers start, else the current directory. ``subreaper``: adopt
    orphans of this whole program, only for a process that is nothing but a supervisor.
    ``tick_s``: seconds between two looks at leases and output sizes."""

    workdir: str = ""
    subreaper: bool = False
    tick_s: float = 0.5
    close_grace_s: float = DEFAULT_GRACE_S
    output_file_bytes: int = output.FILE_BYTES
    output_files: int = output.FILES
    kept_outputs: int = output.KEPT_OUTPUTS


class LocalSupervisor:
    """Implements ``api.Supervisor``. Opens the state directory with the first call.

    Every method raises StateDirBusy if another supervisor holds the directory, OSError if
    it can't be written, and SupervisorGone after ``close``.
    """

    def __init__(self, state_dir: Path, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._dir = state_dir.absolute()
        self._workdir = Path(self.settings.workdir or Path.cwd()).absolute()
        self._memory = Memory(self._dir)
        self._state = self._memory.state
        self._outputs = output.OutputStore(
            self._dir / "workers",
            self.settings.output_file_bytes,
            self.settings.output_files,
            self.settings.kept_outputs,
        )
        self._workers: Workers | None = None
        self._listeners: set[asyncio.Event] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._renewed_at = 0.0
        self._closing = self._closed = False

    # --- the port ---------------------------------------------------------------------

    async def launch(self, spec: WorkerSpec, epoch: int) -> Spawned:
        workers = self.open()
        if not ID_RE.match(spec.worker_id):
            raise Invalid(f"{spec.worker_id!r} is no worker id", path="$.worker_id")
        self._fence(epoch)
        worker = self._state.workers.get(spec.worker_id)
        if worker is not None and worker.process and not worker.stopping and not worker.ended:
            return Spawned(pid=worker.process.pid, seq=self._memory.next_seq())
        self._refuse_if_over(spec, worker)
        return workers.spawn(spec)

    async def stop(
        self, worker_id: str, *, force: bool, grace_s: float, epoch: int
    ) -> AgentStopReply:
        workers = self.open()
        self._fence(epoch)
        worker = self._state.workers.get(worker_id)
        if worker is None:
            return self._stop_unknown(worker_id)
        if worker.ended is not None:
            return AgentStopReply(state="ended", seq=self._memory.next_seq())
        grace_s = 0.0 if force else grace_s
        workers.begin_stop(worker, grace_s=grace_s, reason="stopped as asked")
        return AgentStopReply(state="stopping", seq=self._memory.next_seq())

    async def inventory(self, epoch: int) -> Inventory:
        self.open()
        if epoch:
            self._fence(epoch)
        rows = [worker.row() for worker in self._state.workers.values()]
        return Inventory(seq=self._memory.next_seq(), epoch=self._state.epoch, workers=rows)

    async def acknowledge(self, worker_ids: Sequence[str]) -> None:
        self.open()
        known = [
            worker_id
            for worker_id in worker_ids
            if (worker := self._state.workers.get(worker_id)) is not None and worker.ended
        ]
        if known:
            self._memory.record(Acknowledged(worker_ids=known))

    async def renew(self, sent_at: float | None = None) -> None:
        workers = self.open()
        now = _now()
        renewed_at = now if sent_at is None else min(sent_at, now)
        if renewed_at > self._renewed_at:
            self._renewed_at = renewed_at
            self._memory.record(Renewed(at=renewed_at, boot=workers.boot))

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        self.open()
        return self._outputs.read(worker_id, since, max_bytes)

    async def reports(self) -> AsyncIterator[InventoryRow]:
        self.open()
        news = asyncio.Event()
        self._listeners.add(news)
        order = 0
        try:
            while True:
                news.clear()
                for worker in self._state.ended_after(order):
                    order = worker.order
                    if worker.ended is not None and worker.born.worker_id in self._state.workers:
                        yield worker.row()
                if self._closed:
                    return
                if not news.is_set():
                    await news.wait()
        finally:
            self._listeners.discard(news)

    async def close(self) -> None:
        """Stops all workers, reports their ends, and gives the directory back. What can't
        be seen gone within the grace and CLOSE_MARGIN_S stays for the next supervisor."""
        await self.stop_all(self.settings.close_grace_s)
        await self.detach()

    # --- beyond the port --------------------------------------------------------------

    def open(self) -> Workers:
        """Locks the directory and takes over the workers of an earlier supervisor."""
        if self._closed:
            raise SupervisorGone("this supervisor is closed")
        if self._workers is not None:
            return self._workers
        self._memory.open()
        if self.settings.subreaper and not become_subreaper():
            _log.warning("can't become child subreaper: orphans are found by session and name")
        self._workers = Workers(self._memory, self._outputs, self._workdir, self._tell)
        self._renewed_at = self._last_renewal(self._workers.boot)
        self._outputs.recover({worker.born.worker_id for worker in self._state.living()})
        self._workers.take_over()
        self._schedule_tick()
        return self._workers

    async def stop_all(self, grace_s: float) -> None:
        """Stops all workers and waits until they are gone, CLOSE_MARGIN_S longer at most.
        From now on nothing is launched."""
        if self._closed or self._workers is None:
            return
        self._closing = True
        for worker in self._state.living():
            self._workers.begin_stop(worker, grace_s=grace_s, reason="stopped with its supervisor")
        news = asyncio.Event()
        self._listeners.add(news)
        try:
            async with asyncio.timeout(grace_s + CLOSE_MARGIN_S):
                while self._state.alive:
                    news.clear()
                    await news.wait()
        except TimeoutError:
            _log.error("%d workers can't be seen gone", self._state.alive)
        finally:
            self._listeners.discard(news)

    async def detach(self) -> None:
        """Lets go at once: workers go on, for the next supervisor of this directory."""
        self._closed = True
        if self._workers is None:
            return
        self.reap_strays()
        if self._tick is not None:
            self._tick.cancel()
        self._workers.detach()
        self._memory.close()
        self._tell()

    def kill_all(self) -> None:
        """Kills all workers and lets go, for a program whose loop runs no more. Their ends
        are the next supervisor's to report."""
        if self._workers is not None and not self._closed:
            self._closed = True
            self._workers.kill_all()
            self._memory.close()

    @property
    def alive(self) -> int:
        """Workers that are not seen gone."""
        return self._state.alive

    @property
    def supervisor_id(self) -> str:
        """What every process of this directory carries as ``SLOTBUS_SUPERVISOR``."""
        return self._state.supervisor_id

    def reap_strays(self) -> None:
        """As a subreaper: takes ended orphans, and kills live ones no worker is left for."""
        if self.settings.subreaper and self._workers is not None:
            self._workers.reap_strays()

    # --- launch -----------------------------------------------------------------------

    def _fence(self, epoch: int) -> None:
        seen = self._state.epoch
        if epoch < seen:
            raise SpawnRefused(f"epoch {epoch} is over: {seen} was seen", epoch_seen=seen)
        if epoch > seen:
            self._memory.record(EpochSeen(epoch=epoch))

    def _refuse_if_over(self, spec: WorkerSpec, worker: Worker | None) -> None:
        stone = self._state.tombstones.get(spec.worker_id)
        if stone is not None:
            text = f"worker {spec.worker_id} never starts here: {stone.reason}"
            raise SpawnRefused(text, ran=stone.ran, told=stone.ran)
        if worker is not None:
            state = worker.row().state
            raise SpawnRefused(
                f"worker {spec.worker_id} never starts here again: it is {state}",
                ran=worker.process is not None,
            )
        reason = self._why_not(spec)
        if reason:
            self._memory.record(Tombstone(worker_id=spec.worker_id, reason=reason))
            raise SpawnRefused(reason, ran=False)

    def _why_not(self, spec: WorkerSpec) -> str:
        """Why a worker that was never here can't be taken, or ""."""
        if not spec.command:
            return "no worker command: neither the job nor this controller has one"
        if self._closing:
            return "the supervisor is shutting down"
        if len(self._state.workers) >= MAX_WORKERS:
            return f"{MAX_WORKERS} workers are alive or not acknowledged here"
        if spec.stop_after_s is not None and self._lease_over(spec.stop_after_s):
            return f"its lease of {spec.stop_after_s:g} s would be over already: no client renewed"
        return ""

    # --- stop -------------------------------------------------------------------------

    def _stop_unknown(self, worker_id: str) -> AgentStopReply:
        stone = self._state.tombstones.get(worker_id)
        if stone is None:
            stone = Tombstone(worker_id=worker_id, reason="it was stopped before it started")
            self._memory.record(stone)
        seq = self._memory.next_seq()
        state: Literal["ended", "unknown"] = "ended" if stone.ran else "unknown"
        return AgentStopReply(state=state, told=stone.ran, seq=seq)

    def _tell(self) -> None:
        for news in self._listeners:
            news.set()

    # --- now and then -----------------------------------------------------------------

    def _last_renewal(self, boot: str) -> float:
        """Where leases count from when the directory is opened: from now, unless there are
        workers with a lease, which goes on from where an earlier supervisor left it."""
        now, renewed = _now(), self._state.renewed
        leased = any(worker.born.stop_after_s is not None for worker in self._state.living())
        if not leased or renewed is None or renewed.boot != boot:
            return now
        return min(renewed.at, now)

    def _lease_over(self, stop_after_s: float) -> bool:
        return _now() - self._renewed_at > stop_after_s

    def _schedule_tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick = loop.call_later(self.settings.tick_s, self._on_tick)

    def _on_tick(self) -> None:
        self._schedule_tick()
        workers = self.open()
        living = self._state.living()
        for worker in living:
            lease = worker.born.stop_after_s
            if lease is not None and worker.stopping is None and self._lease_over(lease):
                reason = f"no client renewed its lease for {lease:g} s"
                workers.begin_stop(worker, grace_s=LEASE_GRACE_S, reason=reason, asked=False)
        try:
            self.reap_strays()
            self._outputs.rotate(worker.born.worker_id for worker in living)
            self._memory.tidy()
        except OSError as error:
            _log.warning("can't tidy up: %s", error)


def _now() -> float:
    """Seconds since boot, those in suspend included: leases run out while a lid is shut."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
