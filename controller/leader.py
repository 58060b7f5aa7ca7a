"""The lease: which controller tries to lead, for how long, and who comes next.

What lives here: one key in a NATS KV bucket that vanishes unless its holder renews it, and
how long the holder may rely on it. What may not: what a leader does. The lease only
chooses who tries; who writes is decided by the event log's compare-and-swap.

The key is written by plain publishes to its subject, with ``Nats-TTL`` and the expected
last sequence: nats-py's ``create`` and ``get`` misbehave on keys that ran out, and its
watchers lag after a restart of the server. The server cuts a TTL to whole seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Final

import msgspec
import nats.errors
import nats.js.errors
import structlog
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import Header

from controller.identity import Process, new_holder_name, provably_gone, this_process
from controller.leasebucket import LeaseUnusable as LeaseUnusable
from controller.leasebucket import ensure_bucket
from events.errors import SlotbusError
from events.subjects import Subjects

KEY: Final = "leader"
MARGIN: Final = 0.1
"""Part of the TTL that the holder does not rely on: clocks run at different rates."""

RENEWALS_A_TTL: Final = 4
POLL_S: Final = 1.0
"""How often a standby looks at the longest; a release is heard at once."""

LATE_POLL_S: Final = 0.1
"""The same once a renewal is overdue."""

SOON_S: Final = (0.01, 0.05, 0.25)
"""When to look again after a release was heard, which may be before it is stored."""

RENEWED_S: Final = (0.02,)  # likewise: the lease's age counts from when it was seen
RETRY_S: Final = 0.05
MAX_DOUBLINGS: Final = 4
"""Pauses between attempts to renew grow up to 0.8 s."""

_OPERATION: Final = "KV-Operation"
_WRONG_SEQUENCE: Final = frozenset({10071, 10164})
_NO_MESSAGE: Final = 10037

_TROUBLE: Final = (nats.errors.Error, TimeoutError, OSError)
"""What a broken or slow link raises: nothing is known about what was asked."""

_log = structlog.get_logger("slotbus.leader")


def boot_clock() -> float:
    """Seconds that grow steadily, also while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseLost(SlotbusError):
    """The lease is over: everything this leadership has is thrown away."""

    code = "not_leader"
    status = 503
    retriable = True


class LeaseValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands in the key. ``serial`` counts the holder's writes; ``epoch`` is 0 until
    the holder has read the log."""

    holder: str
    serial: int
    epoch: int = 0
    process: Process = Process()


class _Found(Struct, frozen=True):
    """The key as it is: ``value`` None means free, ``sequence`` 0 that nothing is there.
    ``ttl_s``: for how long it was written; 0 where it does not say."""

    sequence: int = 0
    value: LeaseValue | None = None
    ttl_s: int = 0


class _Held(Struct, frozen=True):
    """Somebody's lease as we saw it first, ``at`` a moment after it was written."""

    sequence: int
    at: float
    ttl_s: int


class _WrongSequence(Exception):
    """The key was written since we looked, perhaps by ourselves."""


class Lease:
    """One candidate for the lease of one cluster. ``ttl_s`` in whole seconds, at least 1.
    ``clock`` gives seconds and must not jump. Not for use by two tasks at once, but for
    ``valid_for``, and ``release`` beside ``keep``."""

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        *,
        ttl_s: int,
        holder: str | None = None,
        replicas: int = 1,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.holder = holder or new_holder_name()
        self.seen: LeaseValue | None = None
        """Who held it when we last looked."""
        self._nc = nc
        self._js = nc.jetstream(timeout=max(0.5, ttl_s / RENEWALS_A_TTL))
        self._bucket = subjects.lease_bucket
        self._stream = f"KV_{self._bucket}"
        self._subject = f"$KV.{self._bucket}.{KEY}"
        self._ttl_s = max(1, int(ttl_s))
        self._replicas = replicas
        self._clock = clock
        self._process = this_process()
        self._epoch = 0
        self._serial = 0
        self._sent: dict[int, float] = {}
        self._sequence = 0
        self._until: float | None = None
        self._released = False
        self._busy = asyncio.Lock()
        self._bucket_known = False
        self._heard = asyncio.Event()
        self._soon: list[float] = []
        self._held: _Held | None = None
        self._complained = ""

    def valid_for(self) -> float:
        """Seconds for which we may still act as the leader; 0 if we may not.

        Counted from the moment the last successful write was sent, not answered.
        """
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def set_epoch(self, epoch: int) -> None:
        """Tells others our epoch, with the next renewal."""
        self._epoch = epoch

    # --- standby ------------------------------------------------------------------------

    async def acquire(self) -> None:
        """Waits until the lease is ours; cancel it to give up. It is free when it was let go,
        when its holder is provably dead, or when it was not renewed for its whole TTL.

        Raises LeaseUnusable, and LeaseLost when the connection is closed for good. Other
        trouble with the link is logged and waited out.
        """
        self._until, self._released = None, False
        subscription = await self._nc.subscribe(self._subject, cb=self._on_key)
        try:
            while not await self._try():
                await self._pause()
        finally:
            with contextlib.suppress(*_TROUBLE):
                await subscription.unsubscribe()
        _log.info("lease acquired", holder=self.holder, ttl_s=self._ttl_s)

    async def _on_key(self, message: Msg) -> None:
        """A delete marker passes by, the holder let go; or a renewal."""
        released = message.headers is not None and _OPERATION in message.headers
        self._soon = list(SOON_S if released else RENEWED_S)
        self._heard.set()

    async def _pause(self) -> None:
        self._heard.clear()
        wait_s = min(POLL_S, self._ttl_s / RENEWALS_A_TTL) * random.uniform(0.7, 1.0)
        if self._soon:
            wait_s = self._soon.pop(0)
        elif self._held is not None and self._held.ttl_s:
            left_s = self._held.at + self._held.ttl_s - self._clock()
            if left_s < self._held.ttl_s / 2:
                wait_s = min(wait_s, LATE_POLL_S, max(left_s, 0.01))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._heard.wait()

    async def _try(self) -> bool:
        """One look at the key, and one attempt where it is free."""
        try:
            found = await self._read()
            self.seen = found.value
            self._notice(found)
            if not self._is_free(found):
                return False
            await self._write(found.sequence)
        except _WrongSequence:
            return False
        except _TROUBLE as error:
            self._trouble(error)
            return False
        self._complained = ""
        return True

    def _is_free(self, found: _Found) -> bool:
        if found.value is None or found.value.holder == self.holder:
            return True  # ours, yet we don't act on it: an answer was lost
        if provably_gone(found.value.process):
            _log.info("the lease's holder is dead", holder=found.value.holder)
            return True
        # The holder counted from when it sent what we saw stored, and a tenth less.
        held = self._held
        return held is not None and 0 < held.ttl_s <= self._clock() - held.at

    def _notice(self, found: _Found) -> None:
        """Remembers since when the key is as it is."""
        if self._held is None or self._held.sequence != found.sequence:
            self._held = _Held(found.sequence, self._clock(), found.ttl_s)

    def _trouble(self, error: Exception) -> None:
        if self._nc.is_closed:
            raise LeaseLost("the connection to NATS is closed") from error
        self._bucket_known = False
        cause = str(error) or repr(error)
        if isinstance(
            error, nats.errors.NoRespondersError | nats.js.errors.ServiceUnavailableError
        ):
            cause = f"JetStream is not enabled on this server, or not ready yet ({cause})"
        if cause != self._complained:
            self._complained = cause
            _log.warning("the lease can't be reached, trying on", cause=cause)

    # --- holder -------------------------------------------------------------------------

    async def keep(self) -> None:
        """Renews the lease well before its end, until it is lost or let go; never returns.
        Raises LeaseLost."""
        failures = 0
        while True:
            pause_s = RETRY_S * 2**failures if failures else self._ttl_s / RENEWALS_A_TTL
            await asyncio.sleep(min(pause_s * random.uniform(0.8, 1.0), self.valid_for()))
            if self._released:
                await asyncio.Event().wait()
            if not self.valid_for():
                raise self._lost("it could not be renewed in time")
            try:
                async with asyncio.timeout(self.valid_for()), self._busy:
                    await self._renew()
                failures = 0
            except _TROUBLE as error:
                if self._nc.is_closed:
                    raise self._lost("the connection to NATS is closed") from error
                failures = min(failures + 1, MAX_DOUBLINGS)
                _log.warning(
                    "lease not renewed, trying again",
                    cause=str(error) or repr(error),
                    valid_for_s=round(self.valid_for(), 3),
                )

    async def _renew(self) -> None:
        if self._released:
            return
        try:
            await self._write(self._sequence)
        except _WrongSequence:
            found = await self._read()
            if found.value is None or found.value.holder != self.holder:
                other = found.value.holder if found.value else "nobody"
                raise self._lost(f"{other} holds it") from None
            # Our own write, whose answer was lost: it counts from when it was sent.
            self._stored(found.value.serial, found.sequence)

    def _lost(self, why: str) -> LeaseLost:
        self._until = None
        return LeaseLost(f"the lease is over: {why}")

    async def release(self) -> None:
        """Lets go of the lease, so that a standby takes over at once; also of one that we
        can't know to hold, since its answer was lost.

        Acts as the leader no more, whether or not the server could be told.
        """
        held, self._until = self._until is not None, None
        self._released = True
        if not self._serial:
            return
        try:
            async with asyncio.timeout(max(1.0, self._ttl_s / 2)), self._busy:
                released = await self._delete(self._sequence if held else None)
        except (_WrongSequence, *_TROUBLE) as error:
            _log.warning("lease not released, it will run out", cause=str(error) or repr(error))
            return
        if released:
            _log.info("lease released", holder=self.holder)

    async def _delete(self, expected: int | None) -> bool:
        """Deletes the key if it is ours. Raises _WrongSequence."""
        headers = {_OPERATION: "DEL"}
        if expected is not None:
            with contextlib.suppress(_WrongSequence):
                await self._publish(b"", expected, headers)
                return True
        found = await self._read()
        if found.value is None or found.value.holder != self.holder:
            return False
        await self._publish(b"", found.sequence, headers)
        return True

    # --- the key ------------------------------------------------------------------------

    async def _write(self, expected: int) -> None:
        """Stores our value if the key is still at ``expected``. Raises _WrongSequence."""
        self._serial += 1
        value = LeaseValue(
            holder=self.holder, serial=self._serial, epoch=self._epoch, process=self._process
        )
        self._sent[self._serial] = self._clock()
        headers = {Header.MSG_TTL.value: str(self._ttl_s)}
        sequence = await self._publish(msgspec.json.encode(value), expected, headers)
        self.seen = value
        self._stored(value.serial, sequence)

    def _stored(self, serial: int, sequence: int) -> None:
        sent = self._sent.get(serial, float("-inf"))
        self._sent = {later: at for later, at in self._sent.items() if later > serial}
        self._sequence = sequence
        self._until = None if self._released else sent + self._ttl_s * (1 - MARGIN)

    async def _publish(self, body: bytes, expected: int, headers: dict[str, str]) -> int:
        headers[Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value] = str(expected)
        try:
            ack = await self._js.publish(self._subject, body, headers=headers)
        except nats.js.errors.BadRequestError as error:
            if error.err_code in _WRONG_SEQUENCE:
                raise _WrongSequence from error
            raise
        return ack.seq

    async def _read(self) -> _Found:
        if not self._bucket_known:
            await self._ensure_bucket()
        try:
            message = await self._js.get_last_msg(self._stream, self._subject)
        except nats.js.errors.NotFoundError as error:
            if error.err_code != _NO_MESSAGE:
                raise
            return _Found()
        sequence = message.seq or 0
        if message.headers and _OPERATION in message.headers:
            return _Found(sequence)
        try:
            value = msgspec.json.decode(message.data or b"", type=LeaseValue)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise LeaseUnusable(
                f"the key {KEY} of the bucket {self._bucket} holds something else: {error}; "
                "it runs out, or delete it"
            ) from error
        ttl = (message.headers or {}).get(Header.MSG_TTL.value, "").removesuffix("s")
        return _Found(sequence, value, int(ttl) if ttl.isascii() and ttl.isdigit() else 0)

    async def _ensure_bucket(self) -> None:
        await ensure_bucket(self._js, self._bucket, self._replicas)
        self._bucket_known = True
