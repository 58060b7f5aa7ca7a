"""Publishing many messages to JetStream at once and hearing of each that it was stored.

What lives here: one inbox for the acknowledgements of a batch. What may not: what is
published. nats-py's own ``publish_async`` keeps a slot for ever when the link is down.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from events.jetstream_api import ApiError, ApiRefused
from events.log import LogError, LogUnsettled


class Outgoing(Struct, frozen=True):
    """One message; give it a ``Nats-Msg-Id``, so that sending it again does no harm."""

    subject: str
    body: bytes
    headers: dict[str, str]


class _Ack(Struct):
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


_ACKS: Final = msgspec.json.Decoder(_Ack)


class Publisher:
    """Sends batches, one at a time. ``last_seq``: the highest place that a message got in
    its stream; ``repeated``: whether the last batch had messages that were there already."""

    def __init__(self, nc: Client) -> None:
        self.last_seq = 0
        self.repeated = False
        self._nc = nc
        self._inbox = nc.new_inbox()
        self._subscription: Subscription | None = None
        self._number = 0
        self._waiting: set[str] = set()
        self._error: LogError | None = None
        self._all = asyncio.Event()

    async def publish(self, messages: Sequence[Outgoing], *, timeout_s: float) -> None:
        """Returns when all are stored. Raises LogUnsettled after ``timeout_s`` seconds,
        ApiRefused for a no, nats.errors.Error when they can't be sent."""
        if not messages:
            return
        if self._subscription is None:
            self._subscription = await self._nc.subscribe(f"{self._inbox}.*", cb=self._heard)
        replies: list[str] = []
        for _ in messages:
            self._number += 1
            replies.append(f"{self._inbox}.{self._number}")
        self._waiting, self._error, self.repeated = set(replies), None, False
        self._all.clear()
        for message, reply in zip(messages, replies, strict=True):
            await self._nc.publish(
                message.subject, message.body, reply=reply, headers=message.headers
            )
        try:
            async with asyncio.timeout(timeout_s):
                await self._all.wait()
        except TimeoutError:
            raise LogUnsettled(
                f"{len(self._waiting)} of {len(messages)} messages were not acknowledged"
            ) from None
        if self._error is not None:
            raise self._error

    async def _heard(self, message: Msg) -> None:
        if message.subject not in self._waiting:
            return  # of a batch that was given up
        self._waiting.discard(message.subject)
        try:
            ack = _ACKS.decode(message.data)
            self.last_seq = max(self.last_seq, ack.seq)
            self.repeated = self.repeated or ack.duplicate
            if ack.error is not None:
                self._error = ApiRefused(f"a message on {self._inbox}", ack.error)
        except (msgspec.DecodeError, UnicodeDecodeError):
            status = (message.headers or {}).get("Status", "no JSON")
            self._error = LogUnsettled(f"no stream took a message ({status})")
        if not self._waiting:
            self._all.set()

    async def close(self) -> None:
        """Listens for acknowledgements no more."""
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = None
