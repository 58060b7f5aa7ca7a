"""The tap: the leader publishes what enters its inbox, while somebody asks for it.

What lives here: who asked and until when, and the task that publishes. What may not: the messages
(``events.tap``), what waits (``controller.recordbuffer``), files.

Who asked and died costs nothing once its time is over. What NATS does not take in time is
dropped, and said: the engine never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from controller.recordbuffer import Item, Made, NewFile, RecordBuffer, RecordStats, make
from controller.recordsettings import BUFFER_BYTES
from events.codec import decode, encode
from events.errors import Overloaded, SlotbusError
from events.queries import QueryLeader
from events.subjects import Subjects
from events.tap import Cutter, TapInbox, TapReply
from schedulers.decide.messages import Inbound
from schedulers.masking import Mask
from schedulers.recording import Header, Opening

GATHER_S: Final = 0.05
FLUSH_TIMEOUT_S: Final = 5
LAST_WORDS_S: Final = 1.0
"""For what is left when a recorder lets go, or the leadership ends."""

MAX_TAPS: Final = 16

_log = structlog.get_logger("slotbus.tap")


class InboxTap(RecordBuffer):
    """Implements ``schedulers.recording.Recorder`` for one leadership. ``run`` is a task of its
    owner; ``close`` it after the engine, whose last word is the last line.

    ``may_answer()``: whether the lease still holds. ``poke(message)`` has the engine's loop go
    round once, in which it sees that an opening is wanted.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        *,
        mask: Sequence[str],
        version: str,
        may_answer: Callable[[], bool],
        poke: Callable[[Inbound], None],
        stats: RecordStats | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        super().__init__(buffer_bytes, stats or RecordStats(), too_slow="NATS is too slow")
        self.listens = False
        self._nc = nc
        self._subjects = subjects
        self._mask = Mask(mask, secrets.token_bytes(32))
        self._version = version
        self._may_answer = may_answer
        self._poke = poke
        self._until: dict[str, float] = {}
        self._asked = False
        """Somebody who came later needs an opening."""
        self._cutter = Cutter(0)
        self._interrupted = False
        """What was published last is not what came before this."""
        self._epoch = 0
        self._publishing = asyncio.Lock()
        """Pieces go out in order."""
        self._expiry: asyncio.TimerHandle | None = None
        self._subscription: Subscription | None = None

    # --- who asks -----------------------------------------------------------------------

    async def open(self, epoch: int) -> None:
        """Takes requests. Raises nats.errors.Error."""
        self._epoch, self._cutter = epoch, Cutter(epoch)
        self._subscription = await self._nc.subscribe(self._subjects.tap, cb=self._on_request)

    async def _on_request(self, message: Msg) -> None:
        if not self._may_answer():
            return  # the leader will
        headers: dict[str, str] | None = None
        try:
            request = decode(message.data, TapInbox)
            if request.hold_s == 0 and request.tap_id in self._until:
                await self._last_words()
            self._hold(request)
            body = encode(TapReply(epoch=self._epoch))
        except SlotbusError as error:
            headers = {ERROR_HEADER: error.message, ERROR_CODE_HEADER: str(error.status)}
            body = encode(error.body())
        if message.reply:
            with contextlib.suppress(nats.errors.Error, OSError):  # it will ask again
                await self._nc.publish(message.reply, body, headers=headers)

    def _hold(self, request: TapInbox) -> None:
        """Raises Overloaded."""
        if request.hold_s == 0:
            self._until.pop(request.tap_id, None)
            self._look()
            return
        if request.tap_id not in self._until and len(self._until) >= MAX_TAPS:
            raise Overloaded(f"{MAX_TAPS} recorders listen already", limit=MAX_TAPS)
        self._until[request.tap_id] = time.monotonic() + request.hold_s
        if not self.listens:
            self._begin()
        self._asked = self._asked or request.opening
        if self.wants_opening:
            with contextlib.suppress(SlotbusError):  # then another message comes
                self._poke(QueryLeader())
        self._look()

    def _begin(self) -> None:
        self.listens, self._blind, self._asked = True, True, False
        self._gap, self._why = 0, ""
        self._interrupted = True
        _log.info("the inbox is published", subject=self._subjects.inbox)

    def _look(self) -> None:
        """Ends those whose time is over, and all of it with the last."""
        now = time.monotonic()
        self._until = {tap_id: until for tap_id, until in self._until.items() if until > now}
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._until:
            loop, soonest = asyncio.get_running_loop(), min(self._until.values())
            self._expiry = loop.call_later(max(0.01, soonest - now), self._look)
        elif self.listens:
            self.listens, self._blind = False, True
            self._written(self._take())
            _log.info("the inbox is published no more")

    # --- what the engine tells ----------------------------------------------------------

    @property
    def wants_opening(self) -> bool:
        if self._blind or not self._asked:
            return super().wants_opening
        return self.listens and self._has_room() and time.monotonic() >= self._no_opening_before

    def _open(self, line: Opening) -> None:
        self._asked = False
        self._put(Header(version=self._version, masked=self._mask.rules))
        super()._open(line)

    # --- publishing ---------------------------------------------------------------------

    async def run(self) -> None:
        """Publishes what comes, until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_S)
            await self._publish_waiting(FLUSH_TIMEOUT_S)

    async def close(self) -> None:
        """Publishes what waits, for at most LAST_WORDS_S seconds."""
        with contextlib.suppress(nats.errors.Error, OSError):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
        await self._last_words()
        self._until.clear()
        self._look()

    async def _last_words(self) -> None:
        """What waits is published before somebody stops to listen."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._publish_waiting(FLUSH_TIMEOUT_S)

    async def _publish_waiting(self, timeout_s: int) -> None:
        async with self._publishing:
            taken = self._take()
            if taken:
                await self._publish(taken, timeout_s)

    async def _publish(self, taken: Sequence[Item], timeout_s: int) -> None:
        lines = [item for item in taken if not isinstance(item, NewFile)]
        try:
            made = await asyncio.to_thread(make, lines, self._mask)
            for body in self._bodies(made):
                await self._nc.publish(self._subjects.inbox, body)
            await self._nc.flush(timeout_s)
        except (nats.errors.Error, OSError) as error:
            _log.warning("the inbox was not published", cause=str(error) or repr(error))
            self.stats.lost += len(lines)
            self._interrupted = True
            self.missed("NATS took nothing from the leader", 0)  # how many is seen by the others
        finally:
            self._written(taken)

    def _bodies(self, made: Made) -> Iterator[bytes]:
        self.stats.lines += made.lines
        self.stats.bytes += len(made.data)
        if made.unwritable:  # the gap is among the lines already
            self.stats.lost += made.unwritable
            self._blind = True
        if self._interrupted:
            self._cutter.interrupt()
            self._interrupted = False
        return self._cutter.cut(made.data.split(b"\n")[:-1], self._nc.max_payload)
