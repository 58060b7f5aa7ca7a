"""Hearing that a process ended, on the loop and without a thread.

What lives here: pidfds, and looking every now and then where there are none (an old kernel,
no descriptors left). What may not: what to do about it.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from typing import Final

from schedulers.supervisor.process_tree import ProcessId, is_running, open_pidfd

POLL_S: Final = 0.05
SPARE_DESCRIPTORS: Final = 64
"""Left free for spawning and for clients when descriptors run short."""


class ExitWatch:
    """Calls back once for each watched process, when it has ended."""

    def __init__(self) -> None:
        self._fds: dict[ProcessId, int] = {}
        self._polled: dict[ProcessId, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, process: ProcessId, ended: Callable[[], None], *, held: bool) -> None:
        """``ended`` is called from the loop, also for one that is gone already. ``held``:
        it is our child and not reaped."""
        fd = self._pidfd(process, held=held)
        if fd is None:
            self._polled[process] = ended
            self._schedule()
            return
        self._fds[process] = fd
        asyncio.get_running_loop().add_reader(fd, self._readable, process, ended)

    def remove(self, process: ProcessId) -> None:
        """No call for this one, if it was not made yet."""
        self._polled.pop(process, None)
        fd = self._fds.pop(process, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def close(self) -> None:
        """Nothing is called back any more."""
        for fd in self._fds.values():
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._fds.clear()
        self._polled.clear()
        if self._timer is not None:
            self._timer.cancel()

    def abandon(self) -> None:
        """As ``close``, where the loop runs no more."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self._polled.clear()

    def _pidfd(self, process: ProcessId, *, held: bool) -> int | None:
        try:
            fd = open_pidfd(process, held=held)
        except OSError:
            return None
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if fd is not None and limit != resource.RLIM_INFINITY and fd >= limit - SPARE_DESCRIPTORS:
            os.close(fd)
            return None
        return fd

    def _readable(self, process: ProcessId, ended: Callable[[], None]) -> None:
        self.remove(process)
        ended()

    def _schedule(self) -> None:
        if self._timer is None and self._polled:
            self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        for process, ended in list(self._polled.items()):
            if not is_running(process):
                self.remove(process)
                ended()
        self._schedule()
