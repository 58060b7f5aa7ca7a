"""Ending whole process trees: many workers in one walk over the process table.

What lives here: freeze, look again, kill, until nothing of a worker is left. What may not:
why a worker ends, and what is told about it (``core``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from schedulers.supervisor.process_tree import (
    Ownership,
    Process,
    ProcessId,
    find_members,
    read_table,
    send_signal,
)

MAX_WALKS: Final = 32
"""Walks in one round: each finds what was forked before its parent was frozen."""

FIRST_RETRY_S: Final = 0.001
LAST_RETRY_S: Final = 1.0
"""A process in an uninterruptible sleep dies when it wakes; it is looked for this often."""


class Sweeper:
    """Kills what is left of the workers handed to it, and says when nothing is.

    ``mains``: the main process of every worker that lives, a view. ``gone``: called once for each.
    """

    def __init__(
        self,
        owner_of: Ownership,
        mains: Mapping[str, ProcessId],
        gone: Callable[[str], None],
    ) -> None:
        self._owner_of = owner_of
        self._mains = mains
        self._gone = gone
        self._batch: dict[str, None] = {}
        self._timer: asyncio.Handle | None = None
        self._retry_s = FIRST_RETRY_S

    def add(self, worker_id: str) -> None:
        """Kill this worker's tree. All that are added in one turn of the loop share walks."""
        self._batch[worker_id] = None
        if self._timer is not None:
            self._timer.cancel()
        self._retry_s = FIRST_RETRY_S
        self._timer = asyncio.get_running_loop().call_soon(self._round)

    def kill_all(self) -> None:
        """Kills the trees of all workers there are, now and without telling."""
        self._batch.update(dict.fromkeys(self._mains))
        for members in self._freeze().values():
            for process in members:
                send_signal(process.id, signal.SIGKILL)

    def close(self) -> None:
        self._batch.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _round(self) -> None:
        self._timer = None
        left = self._freeze()
        for worker_id, members in left.items():
            for process in members:
                send_signal(process.id, signal.SIGKILL)
            if not members:
                del self._batch[worker_id]
        for worker_id, members in left.items():
            if not members:
                self._gone(worker_id)
        if self._batch and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._retry_s, self._round)
            self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)

    def _freeze(self) -> dict[str, list[Process]]:
        """Stops all members so that none can fork away, and gives them back."""
        frozen: set[ProcessId] = set()
        for _ in range(MAX_WALKS):
            table = read_table()
            self._owner_of.prune(table)
            found = find_members(table, self._mains, self._batch, self._owner_of)
            fresh = False
            for worker_id, members in found.items():
                for process in members:
                    self._owner_of.learn(process.id, worker_id)
                    if process.id not in frozen:
                        frozen.add(process.id)
                        fresh |= send_signal(process.id, signal.SIGSTOP)
            if not fresh:
                break
        return found


def reap_strays(mains: Iterable[ProcessId], *, kill: bool) -> None:
    """For a subreaper that has no children but workers: takes the exit of every ended
    orphan, and with ``kill`` ends the living ones (no worker is left that they may be of).
    """
    known = {main.pid for main in mains}
    if not _worth_a_walk(known, kill=kill):
        return
    me = os.getpid()
    for row in read_table().values():
        if row.parent != me or row.id.pid in known:
            continue
        if row.alive and kill:
            send_signal(row.id, signal.SIGKILL)
        elif not row.alive:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(row.id.pid, os.WNOHANG)


def _worth_a_walk(mains: Collection[int], *, kill: bool) -> bool:
    """False without children, or when none has ended that is not a worker. (A worker that
    ended may stand before an orphan in the kernel's list; the next look finds it.)"""
    try:
        first = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return kill or (first is not None and first.si_pid not in mains)
