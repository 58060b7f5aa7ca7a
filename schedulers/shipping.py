"""From a worker's stored output to whoever listens: live lines and stored ends.

What lives here: following the output of workers through their supervisor and handing whole
lines on, dropping (and counting) rather than waiting, since the files keep everything.
What may not: NATS, subjects, and files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from events.errors import SlotbusError
from events.traffic import AgentLogs, AgentLogsReply, LogLines
from schedulers.supervisor.api import OutputTail

POLL_S: Final = 0.2
IDLE_POLL_S: Final = 1.0
"""A worker that says nothing is looked at less and less often, down to this."""
PARTIAL_S: Final = 1.0
"""A line without an end is handed on after this."""
CHUNK_BYTES: Final = 64 * 1024
MAX_CHUNKS: Final = 8
"""For one worker at one look. Who writes faster is skipped ahead: files keep the rest."""
PUBLISH_TIMEOUT_S: Final = 1.0

_log = structlog.get_logger("slotbus.shipping")


class OutputSource(Protocol):
    """The part of a supervisor that is needed here."""

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        """See ``schedulers.supervisor.api.Supervisor.output``."""
        ...


Publish = Callable[[LogLines], Awaitable[None]]


@dataclass
class ShippingStats:
    """``dropped_bytes``: never handed on, because nobody took them or they came too fast."""

    messages: int = 0
    bytes: int = 0
    dropped_bytes: int = 0
    failures: int = 0


@dataclass
class _Followed:
    worker_id: str
    job_id: str
    run_id: int
    read: int | None
    """Bytes read since the worker's start; None: begin at the present end."""
    held: bytes = b""
    held_since: float = 0.0
    every_s: float = POLL_S
    due: float = 0.0
    ended: bool = False
    shipped: asyncio.Event = field(default_factory=asyncio.Event)


class LogShipper:
    """Follows workers. ``publish`` may raise anything: what it was given is then dropped.

    ``run`` is a task of its owner; ``follow`` and ``finish`` may be called at any time.
    """

    def __init__(self, source: OutputSource, publish: Publish) -> None:
        self._source = source
        self._publish = publish
        self._followed: dict[str, _Followed] = {}
        self._wake = asyncio.Event()
        self.stats = ShippingStats()

    def follow(self, worker_id: str, job_id: str, run_id: int, *, since: int | None = 0) -> None:
        """Hands on a worker's output from byte ``since`` on (None: from its present end).
        Following twice changes nothing."""
        if worker_id not in self._followed:
            self._followed[worker_id] = _Followed(worker_id, job_id, run_id, since)
            self._wake.set()

    def following(self) -> list[str]:
        """Ids of the workers whose output is followed."""
        return list(self._followed)

    async def finish(self, worker_id: str, timeout_s: float = 2.0) -> bool:
        """The worker has ended: hand on the rest and follow it no more. Returns whether
        the rest was handed on in time; needs ``run`` to be running."""
        followed = self._followed.get(worker_id)
        if followed is None:
            return True
        followed.ended, followed.due = True, 0.0
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                await followed.shipped.wait()
        except TimeoutError:
            self._followed.pop(worker_id, None)
            return False
        return True

    async def run(self) -> None:
        """Looks at what is due, until cancelled."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            for followed in [f for f in self._followed.values() if f.due <= now]:
                await self._look(followed)
            upcoming = [f.due for f in self._followed.values()]
            pause = max(0.0, min(upcoming) - time.monotonic()) if upcoming else None
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self, followed: _Followed) -> None:
        ended = followed.ended  # what was written before the end is there by now
        before = followed.read
        try:
            await self._drain(followed)
        except (SlotbusError, OSError):
            self.stats.failures += 1  # the supervisor is being replaced: its files stay
            followed.due = time.monotonic() + IDLE_POLL_S
            return
        now = time.monotonic()
        if followed.held and (ended or now - followed.held_since >= PARTIAL_S):
            await self._hand_on(followed, len(followed.held))
        if ended:
            self._followed.pop(followed.worker_id, None)
            followed.shipped.set()
        idle = followed.read == before and not followed.held
        followed.every_s = min(IDLE_POLL_S, followed.every_s * 1.5) if idle else POLL_S
        followed.due = now + followed.every_s

    async def _drain(self, followed: _Followed) -> None:
        if followed.read is None:
            followed.read = (await self._end(followed)).offset
        for _ in range(MAX_CHUNKS):
            tail = await self._source.output(
                followed.worker_id, since=followed.read, max_bytes=CHUNK_BYTES
            )
            if not tail.data:
                return
            await self._skip_to(followed, tail.offset - len(tail.data))
            if not followed.held:
                followed.held_since = time.monotonic()
            followed.held += tail.data
            followed.read = tail.offset
            await self._hand_on(followed, whole_part(followed.held, CHUNK_BYTES))
        await self._skip_to(followed, (await self._end(followed)).offset)

    async def _end(self, followed: _Followed) -> OutputTail:
        return await self._source.output(followed.worker_id, since=-1, max_bytes=1)

    async def _skip_to(self, followed: _Followed, offset: int) -> None:
        """Counts what lies between as dropped, after what is held was handed on."""
        read = followed.read or 0
        if offset > read:
            await self._hand_on(followed, len(followed.held))
            self.stats.dropped_bytes += offset - read
            followed.read = offset

    async def _hand_on(self, followed: _Followed, size: int) -> None:
        if size == 0:
            return
        data, followed.held = followed.held[:size], followed.held[size:]
        followed.held_since = time.monotonic()
        lines = LogLines(
            worker_id=followed.worker_id,
            job_id=followed.job_id,
            run_id=followed.run_id,
            offset=(followed.read or 0) - len(followed.held),
            text=data.decode(errors="replace"),
        )
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await self._publish(lines)
        except Exception as error:  # noqa: BLE001  # the edge: whatever publish does, we go on
            if self.stats.failures == 0:
                _log.warning("worker output could not be handed on", cause=repr(error))
            self.stats.failures += 1
            self.stats.dropped_bytes += len(data)
        else:
            self.stats.messages += 1
            self.stats.bytes += len(data)


def whole_part(data: bytes, limit: int) -> int:
    """How many bytes of ``data`` are whole lines; of a line longer than ``limit`` bytes,
    what is whole characters of UTF-8."""
    cut = data.rfind(b"\n") + 1
    if cut or len(data) < limit:
        return cut
    for back in range(1, min(4, len(data)) + 1):
        first = data[-back]
        if first < 0x80:
            break
        if first >= 0xC0:  # begins a character of 2, 3 or 4 bytes
            length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return len(data) - back if back < length else len(data)
    return len(data)


async def stored_tail(source: OutputSource, request: AgentLogs) -> AgentLogsReply:
    """Answers a request for the stored end of a worker's output. Raises SupervisorGone."""
    tail = await source.output(request.worker_id, since=-1, max_bytes=request.max_bytes)
    return AgentLogsReply(text=tail.data.decode(errors="replace"), offset=tail.offset)
