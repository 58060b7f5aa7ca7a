"""The life of a worker: made, followed, asked to end, killed, seen gone.

What lives here: every step that touches a worker's process, each written to the memory.
What may not: who may ask for it (``core``: epochs, tombstones, leases).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from schedulers.supervisor import spawn
from schedulers.supervisor.adopt import Found, look_for
from schedulers.supervisor.api import Spawned, SpawnRefused, WorkerSpec
from schedulers.supervisor.endings import Exit, how_it_ended
from schedulers.supervisor.exits import ExitWatch
from schedulers.supervisor.journal import Launching, Running, Stopping, Tombstone
from schedulers.supervisor.memory import Memory
from schedulers.supervisor.output import OutputStore
from schedulers.supervisor.process_tree import (
    Ownership,
    ProcessId,
    boot_id,
    is_running,
    read_process,
)
from schedulers.supervisor.state import Worker
from schedulers.supervisor.sweep import Sweeper, reap_strays

KILLED_WITHIN_S: Final = 1.0
"""Longer is only waited for what sleeps where no signal reaches it."""


class Workers:
    """All living workers of an opened memory. ``changed`` is called after every end."""

    def __init__(
        self, memory: Memory, outputs: OutputStore, workdir: Path, changed: Callable[[], None]
    ) -> None:
        self._memory = memory
        self._state = memory.state
        self._outputs = outputs
        self._workdir = workdir
        self._passed_on = spawn.passed_on(os.environ)
        self._changed = changed
        self.boot = boot_id()
        self._owner_of = Ownership(memory.state.supervisor_id)
        self._watch = ExitWatch()
        self._mains: dict[str, ProcessId] = {}
        self._sweeper = Sweeper(self._owner_of, self._mains, self._gone)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._killed: set[str] = set()

    def take_over(self) -> None:
        """Follows, or reports as gone, what an earlier supervisor left."""
        for found in look_for(self._state.living(), self.boot, self._owner_of):
            self._adopt(found)

    def detach(self) -> None:
        """Lets go of all: they live on without us."""
        for timer in self._deadlines.values():
            timer.cancel()
        self._watch.close()
        self._sweeper.close()
        for child in self._children.values():
            child.returncode = 0  # somebody else's now, which Popen can't know
        self._children.clear()

    def kill_all(self) -> None:
        """Kills every tree, without the loop and without telling."""
        self._sweeper.kill_all()
        self._watch.abandon()
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(KILLED_WITHIN_S)
        self._children.clear()

    def reap_strays(self) -> None:
        """For a subreaper: takes ended orphans, kills live ones when no worker is left."""
        reap_strays(self._mains.values(), kill=not self._state.alive)

    # --- launch -----------------------------------------------------------------------

    def spawn(self, spec: WorkerSpec) -> Spawned:
        try:
            self._memory.promise(
                Launching(
                    worker_id=spec.worker_id,
                    job_id=spec.job_id,
                    run_id=spec.run_id,
                    slots=spec.slots,
                    stamp=spec.stamp,
                    stop_after_s=spec.stop_after_s,
                )
            )
            child = self._start_process(spec)
        except (OSError, ValueError) as error:
            reason = spawn.why_not(error, spec.command)
            self._memory.record(Tombstone(worker_id=spec.worker_id, reason=reason))
            self._outputs.remove(spec.worker_id)
            raise SpawnRefused(reason, ran=False) from error
        # Not reaped yet, so it is in the table, as a zombie at least.
        row = read_process(child.pid)
        main = row.id if row else ProcessId(child.pid, 0)
        self._children[spec.worker_id] = child
        self._memory.record(
            Running(worker_id=spec.worker_id, pid=main.pid, start=main.start, boot=self.boot)
        )
        self._follow(spec.worker_id, main)
        return Spawned(pid=child.pid, seq=self._memory.next_seq())

    def _start_process(self, spec: WorkerSpec) -> subprocess.Popen[bytes]:
        folder = self._outputs.create(spec.worker_id)
        environment = spawn.worker_environment(
            spec, self._passed_on, self._state.supervisor_id, folder
        )
        fd = self._outputs.open_for_worker(spec.worker_id)
        try:
            return spawn.spawn(spec.command, environment, self._workdir, fd)
        finally:
            os.close(fd)

    def _follow(self, worker_id: str, main: ProcessId) -> None:
        self._mains[worker_id] = main
        held = worker_id in self._children
        self._watch.add(main, lambda: self._sweeper.add(worker_id), held=held)

    def _adopt(self, found: Found) -> None:
        worker_id = found.worker.born.worker_id
        if found.main is None:
            self._sweeper.add(worker_id)
            return
        if found.worker.process is None:
            pid, start = found.main
            self._memory.record(Running(worker_id=worker_id, pid=pid, start=start, boot=self.boot))
        self._follow(worker_id, found.main)
        stopping = found.worker.stopping
        if stopping is not None:
            self._terminate(worker_id, stopping.grace_s)

    # --- stop -------------------------------------------------------------------------

    def begin_stop(
        self, worker: Worker, *, grace_s: float, reason: str, asked: bool = True
    ) -> None:
        worker_id = worker.born.worker_id
        if worker.stopping is None:
            self._memory.record(
                Stopping(worker_id=worker_id, grace_s=grace_s, reason=reason, asked=asked)
            )
            self._terminate(worker_id, grace_s)
            return
        # Asked again: only an earlier end is news.
        deadline = self._deadlines.get(worker_id)
        if deadline is not None and deadline.when() > asyncio.get_running_loop().time() + grace_s:
            self._kill_after(worker_id, grace_s)

    def _terminate(self, worker_id: str, grace_s: float) -> None:
        main = self._mains.get(worker_id)
        if main is not None and grace_s > 0 and self._holds_group(worker_id, main):
            spawn.terminate_group(main.pid)
        self._kill_after(worker_id, grace_s)

    def _holds_group(self, worker_id: str, main: ProcessId) -> bool:
        # A child that we have not reaped keeps its number; an adopted one we look at.
        return worker_id in self._children or is_running(main)

    def _kill_after(self, worker_id: str, grace_s: float) -> None:
        earlier = self._deadlines.pop(worker_id, None)
        if earlier is not None:
            earlier.cancel()
        if grace_s <= 0:
            self._kill(worker_id)
            return
        loop = asyncio.get_running_loop()
        self._deadlines[worker_id] = loop.call_later(grace_s, self._kill, worker_id)

    def _kill(self, worker_id: str) -> None:
        self._deadlines.pop(worker_id, None)
        self._killed.add(worker_id)
        self._sweeper.add(worker_id)

    # --- end --------------------------------------------------------------------------

    def _gone(self, worker_id: str) -> None:
        """Nothing of the worker is left: take its exit code, tell everyone."""
        worker = self._state.workers[worker_id]
        child = self._children.get(worker_id)
        exit_ = spawn.take_exit(child) if child is not None else Exit()
        if exit_ is None:
            self._sweeper.add(worker_id)
            return
        killed = worker_id in self._killed
        self._killed.discard(worker_id)
        self._children.pop(worker_id, None)
        main = self._mains.pop(worker_id, None)
        if main is not None:
            self._watch.remove(main)  # a sweep may see it gone before its pidfd says so
        deadline = self._deadlines.pop(worker_id, None)
        if deadline is not None:
            deadline.cancel()
        adopted = child is None
        ended = how_it_ended(worker, exit_, killed=killed, adopted=adopted)
        self._memory.record(ended)
        self._memory.next_seq()
        self._outputs.ended(worker_id)
        self._changed()
