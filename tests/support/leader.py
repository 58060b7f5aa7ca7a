"""A leader for tests of its clients: it answers what it was told to, in order.

What lives here: ``FakeLeader``, which listens on a subject tree as a controller does and
keeps what it was asked. What may not: any behaviour of the real one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from events.errors import SlotbusError
from events.messages import Message
from events.subjects import Subjects

SILENCE = "silence"
"""An answer that never comes."""

Answer: TypeAlias = Message | SlotbusError | str | Callable[[dict[str, Any]], Message]


class Asked(Struct):
    """One request as it came; ``body`` is its JSON."""

    subject: str
    body: dict[str, Any]


class FakeLeader:
    """``will("cmd.start", NotLeader("..."), StartReply(...))``: the last answer stays."""

    def __init__(self, nc: Client, subjects: Subjects) -> None:
        self._nc = nc
        self._subjects = subjects
        self._answers: dict[str, deque[Answer]] = {}
        self._after_s: dict[str, float] = {}
        self.asked: list[Asked] = []

    async def will(self, what: str, *answers: Answer, after_s: float = 0.0) -> None:
        """Listens on ``<root>.<what>`` from now on; each answer takes so long."""
        subject = f"{self._subjects.root}.{what}"
        self._answers[subject], self._after_s[subject] = deque(answers), after_s
        await self._nc.subscribe(subject, cb=self._on_message)
        await self._nc.flush()

    async def _on_message(self, message: Msg) -> None:
        body = msgspec.json.decode(message.data or b"{}")
        self.asked.append(Asked(message.subject, body))
        answers = self._answers[message.subject]
        answer = answers.popleft() if len(answers) > 1 else answers[0]
        await asyncio.sleep(self._after_s[message.subject])
        if isinstance(answer, str):
            return
        if isinstance(answer, SlotbusError):
            headers = {"Nats-Service-Error": answer.message, "Nats-Service-Error-Code": "500"}
            await self._nc.publish(
                message.reply, msgspec.json.encode(answer.body()), headers=headers
            )
            return
        reply = answer if isinstance(answer, Message) else answer(body)
        await self._nc.publish(message.reply, msgspec.json.encode(reply))

    def bodies(self, what: str) -> list[dict[str, Any]]:
        """What was asked on one subject, in order."""
        subject = f"{self._subjects.root}.{what}"
        return [asked.body for asked in self.asked if asked.subject == subject]


async def eventually(ready: Callable[[], bool], within: float = 10) -> None:
    """Waits until a condition holds. Raises TimeoutError after ``within`` seconds."""
    async with asyncio.timeout(within):
        while not ready():  # noqa: ASYNC110  # the condition is somebody else's
            await asyncio.sleep(0.01)
