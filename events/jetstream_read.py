"""Reading a stretch of a stream fast: raw pulls without acknowledgement.

What lives here: one consumer at a time, made again wherever the stream of messages was
broken (reconnects, server restarts, dropped messages). What may not: what the messages
say (``events.jetstream``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from events.jetstream_api import GONE, NANOSECONDS, Deadline, JetStreamApi
from events.jetstream_messages import stream_seq
from events.log import LogError, LogUnsettled

PULL_MESSAGES: Final = 5_000
PULL_BYTES: Final = 8 * 1024 * 1024
"""Asked for at once: bounds what a reader holds in memory."""
PULL_EXPIRES_S: Final = 2.0
READER_LIFETIME_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 1.0


class _Broken(Exception):
    """This consumer won't give what comes next: make another."""


class _Inbox:
    """What arrives on one subject, gathered by the connection's callback."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self.subject = nc.new_inbox()
        self._arrived: list[Msg] = []
        self._some = asyncio.Event()

    async def open(self) -> None:
        self._subscription = await self._nc.subscribe(self.subject, cb=self._take)

    async def _take(self, message: Msg) -> None:
        self._arrived.append(message)
        self._some.set()

    async def messages(self, timeout_s: float) -> list[Msg]:
        """All that arrived, at least one. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._some.wait()
        self._some.clear()
        arrived, self._arrived = self._arrived, []
        return arrived

    async def close(self) -> None:
        with contextlib.suppress(nats.errors.Error):
            await self._subscription.unsubscribe()


async def read_stream(
    api: JetStreamApi, stream: str, first_seq: int, last_seq: int, *, stall_s: float
) -> AsyncGenerator[list[Msg], None]:
    """Yields the messages of a stretch in order, each once, at least one at a
    time; those that are not in the stream (any more) are left out.

    Raises LogUnsettled when nothing came for ``stall_s`` seconds.
    """
    following = first_seq
    deadline = Deadline(stall_s)
    while following <= last_seq:
        reader = _Reader(api, stream, following, last_seq)
        try:
            await reader.open(deadline)
            while following <= last_seq:
                messages = await reader.step(deadline)
                if messages:
                    following = stream_seq(messages[-1]) + 1
                    yield messages
                    deadline = Deadline(stall_s)
        except GONE as error:
            raise LogUnsettled(f"the connection to NATS is over: {error}") from error
        except (nats.errors.Error, TimeoutError, _Broken) as error:
            if deadline.left_s <= 0:
                raise LogUnsettled(
                    f"stream {stream} could not be read from message {following} on: nothing "
                    f"came for {stall_s:g} s ({str(error) or type(error).__name__})"
                ) from error
            await deadline.back_off()
        finally:
            await reader.close()


class _Reader:
    """One consumer, and the pull it is busy with."""

    def __init__(self, api: JetStreamApi, stream: str, following: int, last_seq: int) -> None:
        self._api = api
        self._stream = stream
        self._following = following
        self._last_seq = last_seq
        self._name = f"reader_{api.nc.new_inbox().rpartition('.')[2]}"
        self._inbox = _Inbox(api.nc)
        self._outstanding = 0
        self._fresh = True

    async def open(self, deadline: Deadline) -> None:
        await self._inbox.open()
        await self._api.create_reader(
            self._stream, self._name, self._following, READER_LIFETIME_S, deadline
        )

    async def step(self, deadline: Deadline) -> list[Msg]:
        """What arrived next, in order; asks for more when nothing is on its way."""
        if self._outstanding <= 0:
            await self._pull()
        arrived = await self._inbox.messages(deadline.attempt_s(PULL_EXPIRES_S * 2))
        if self._is_plain(arrived):
            self._fresh = False
            self._outstanding -= len(arrived)
            self._following += len(arrived)
            return arrived
        taken: list[Msg] = []
        for message in arrived:
            if _is_status(message):
                if not taken and self._outstanding == PULL_MESSAGES:
                    raise _Broken(str(message.headers))  # it ended with nothing delivered
                self._outstanding = 0
                continue
            seq = stream_seq(message)
            # A gap is believed of a new consumer only: else the message may be lost on
            # its way, or dropped by the connection.
            if seq != self._following and not (self._fresh and seq > self._following):
                if taken:
                    break
                raise _Broken(f"message {seq} came where {self._following} was due")
            self._fresh = False
            self._outstanding -= 1
            self._following = seq + 1
            if seq <= self._last_seq:
                taken.append(message)
        return taken

    def _is_plain(self, arrived: list[Msg]) -> bool:
        """Whether it is just what was due: messages keep their order, so that the first and
        the last tell, by how far they are apart."""
        first, last = arrived[0], arrived[-1]
        if _is_status(first) or _is_status(last) or stream_seq(first) != self._following:
            return False
        end = self._following + len(arrived) - 1
        return stream_seq(last) == end <= self._last_seq

    async def _pull(self) -> None:
        body = {
            "batch": PULL_MESSAGES,
            "max_bytes": max(PULL_BYTES, 2 * self._api.nc.max_payload),
            "expires": int(PULL_EXPIRES_S * NANOSECONDS),
        }
        await self._api.nc.publish(
            f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}",
            msgspec.json.encode(body),
            reply=self._inbox.subject,
        )
        self._outstanding = PULL_MESSAGES

    async def close(self) -> None:
        await self._inbox.close()
        if self._api.nc.is_connected:
            with contextlib.suppress(LogError):  # it ends by itself later
                await self._api.delete_reader(self._stream, self._name, Deadline(CLOSE_TIMEOUT_S))


def _is_status(message: Msg) -> bool:
    return not message.reply or (message.headers is not None and "Status" in message.headers)
