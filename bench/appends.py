"""Bare appends: what storing costs when nothing is around it.

What lives here: a stream like the log's and compare-and-swap appends to it. What may not:
slotbus's own log.
"""

from __future__ import annotations

from typing import Final, Self

from nats.aio.client import Client

from events.jetstream_api import Deadline, JetStreamApi, StreamConfig

TIMEOUT_S: Final = 60.0
STREAM: Final = "BARE"
SUBJECT: Final = "bare"


class BareAppends:
    """Appends what the log's stream holds to another one, under compare-and-swap."""

    def __init__(self, nc: Client, source: str) -> None:
        self._nc = nc
        self._api = JetStreamApi(nc)
        self._source = source
        self._last = 0

    @classmethod
    async def open(cls, nc: Client, source: str) -> Self:
        """Makes the other stream."""
        await JetStreamApi(nc).ensure(
            StreamConfig(name=STREAM, subjects=[SUBJECT], discard="new", deny_delete=True),
            Deadline(TIMEOUT_S),
        )
        return cls(nc, source)

    async def end(self) -> int:
        """The last sequence of the log's stream."""
        info = await self._api.info(self._source, Deadline(TIMEOUT_S))
        assert info is not None
        return info.state.last_seq

    async def bodies(self, after: int) -> list[bytes]:
        """What was stored since."""
        found: list[bytes] = []
        for seq in range(after + 1, await self.end() + 1):
            message = await self._api.message(self._source, seq, Deadline(TIMEOUT_S))
            assert message is not None
            found.append(message.data)
        return found

    async def append(self, body: bytes) -> None:
        """One message, durable when this returns."""
        headers = {
            "Nats-Expected-Stream": STREAM,
            "Nats-Expected-Last-Sequence": str(self._last),
            "Nats-Msg-Id": f"m{self._last}",
        }
        answer = await self._nc.request(SUBJECT, body, timeout=TIMEOUT_S, headers=headers)
        self._last += 1
        assert b'"error"' not in answer.data, answer.data
