"""Recording from outside: what the leader publishes of its inbox, into files.

What lives here: asking for it as long as it lasts, whoever leads, and what is missing on the way.
What may not: files (``controller.recorder``), the leader's side (``controller.tap``), the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Final

import nats.errors
import structlog
from nats.aio.msg import Msg

from controller.recordbuffer import RecordStats
from controller.recorder import FileRecorder, Origin
from controller.recordsettings import RecordSettings
from events.asking import NoAnswer, NobodyThere, NoController
from events.client import SlotbusClient
from events.codec import decode, encode, error_from_body
from events.errors import SlotbusError
from events.tap import HOLD_S, InboxPiece, Joiner, Lost, TapInbox, TapReply
from schedulers.backoff import Backoff
from schedulers.recording import (
    Gap,
    Header,
    Opening,
    Stored,
    decode_line,
)

ASK_EVERY_S: Final = HOLD_S / 3
ASK_SOON_S: Final = 0.5
"""How soon an opening is asked for once it is needed; the leader takes its time for it."""

ASK_TIMEOUT_S: Final = 2.0
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 2.0
PENDING_BYTES: Final = 64 * 1024 * 1024
"""What nats-py may hold back for us; beyond, it drops the newest, which we then notice."""

_log = structlog.get_logger("slotbus.record")


class Outside:
    """One recording. ``said`` hears what a person would want to know; ``begun`` is called once,
    when the first lines have come. ``absent_s``: how long a leader is waited for at the beginning.
    """

    def __init__(
        self,
        bus: SlotbusClient,
        settings: RecordSettings,
        *,
        said: Callable[[str], None],
        begun: Callable[[], None],
        absent_s: float = 15.0,
    ) -> None:
        self.records = 0
        self._absent_s = absent_s
        self._bus = bus
        self._recorder = FileRecorder(settings, trouble=self._disk_trouble)
        self._said = said
        self._begun = begun
        self._started = False
        self._joiner = Joiner()
        self._tap_id = f"t-{secrets.token_hex(8)}"
        self._hurry = asyncio.Event()

    @property
    def stats(self) -> RecordStats:
        """Of what is in the files; ``lost``: lines that should be."""
        return self._recorder.stats

    async def run(self, stop: asyncio.Event) -> None:
        """Records until ``stop`` is set. Raises NoController where none answers at the beginning,
        Denied, LinkDown; what fails later is said and tried again."""
        subjects = self._bus.subjects
        listening = await self._bus.nc.subscribe(
            subjects.inbox, cb=self._on_piece, pending_bytes_limit=PENDING_BYTES
        )
        writing = asyncio.create_task(self._recorder.run(), name="recording")
        try:
            await self._bus.unless_denied(self._first(), subjects.tap, subjects.inbox)
            await self._go_on(stop)
        finally:
            await self._let_go()
            with contextlib.suppress(nats.errors.Error, OSError):  # the connection may be gone
                async with asyncio.timeout(ASK_TIMEOUT_S):  # what has come is taken first
                    await listening.drain()  # type: ignore[no-untyped-call]
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await self._recorder.close()

    # --- asking -------------------------------------------------------------------------

    async def _first(self) -> None:
        """Asks until a leader answers, for as long as a client would."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        deadline = asyncio.get_running_loop().time() + self._absent_s
        while True:
            try:
                await self._ask()
                return
            except (NobodyThere, NoAnswer) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    subject = self._bus.subjects.tap
                    raise NoController(
                        f"no controller answers on {subject}: is `slotbus controller` running, "
                        "and of this version?",
                        subject=subject,
                    ) from error
            await asyncio.sleep(backoff.next())

    async def _go_on(self, stop: asyncio.Event) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        pause_s, alone = ASK_SOON_S, False
        while not await _either(stop, self._hurry, pause_s):
            if self._hurry.is_set():
                self._hurry.clear()
                await _either(stop, None, ASK_SOON_S)
            try:
                await self._ask()
            except SlotbusError as error:
                if not error.retriable:
                    raise
                pause_s = backoff.next()
                if not alone:
                    self._said(f"nothing is recorded at the moment: {error.message}")
                alone = True
                continue
            if alone:
                self._said("a leader answers again")
            pause_s, alone = ASK_EVERY_S, False
            backoff.reset()

    async def _ask(self) -> None:
        wants = not self._started or self._recorder.wants_opening
        request = TapInbox(tap_id=self._tap_id, opening=wants)
        body = await self._bus.ask(self._bus.subjects.tap, encode(request), ASK_TIMEOUT_S)
        refusal = error_from_body(body)
        if refusal is not None:
            raise refusal
        decode(body, TapReply)

    async def _let_go(self) -> None:
        """The leader first publishes what it has gathered."""
        request = TapInbox(tap_id=self._tap_id, hold_s=0)
        with contextlib.suppress(SlotbusError):  # it ends by itself
            await self._bus.ask(self._bus.subjects.tap, encode(request), ASK_TIMEOUT_S)

    # --- what comes ---------------------------------------------------------------------

    async def _on_piece(self, message: Msg) -> None:
        try:
            found = self._joiner.take(decode(message.data, InboxPiece))
            for each in found:
                self._take(each)
        except SlotbusError as error:  # nobody who leads sends that
            _log.warning("a message was left out", cause=error.message)
            self._lost(Lost(0, f"something can't be understood: {error.message}"))
        if self._started and self._recorder.wants_opening:
            self._hurry.set()

    def _take(self, each: bytes | Lost) -> None:
        if isinstance(each, Lost):
            self._lost(each)
            return
        line = decode_line(each, 0)
        if isinstance(line, Header):
            self._recorder.origin = Origin(line.version, tuple(line.masked))
        elif isinstance(line, Opening):
            self._recorder.add(line)
            if not self._started:
                self._started = True
                self._begun()
        elif not self._started:
            return  # for another recorder that began earlier
        elif isinstance(line, Gap):
            self._lost(Lost(line.count, line.reason))
        else:
            self.records += line.count if isinstance(line, Stored) else 0
            self._recorder.add(line)

    def _disk_trouble(self, error: OSError) -> None:
        self._said(f"nothing can be written, a gap: {error}")

    def _lost(self, lost: Lost) -> None:
        if self._started:
            self._recorder.missed(lost.reason, lost.lines)
            count = f"{lost.lines} lines" if lost.lines else "some lines"
            self._said(f"a gap, {count}: {lost.reason}")


async def _either(stop: asyncio.Event, other: asyncio.Event | None, timeout_s: float) -> bool:
    """Waits for one of them, or for the time; whether ``stop`` is set."""
    waiting = [asyncio.create_task(event.wait()) for event in (stop, other) if event is not None]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return stop.is_set()
