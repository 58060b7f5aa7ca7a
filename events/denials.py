"""What the NATS server forbids: heard by the way, and matched to what waits for it.

What lives here: ``Denials``, which ends a wait that the server has made hopeless. What may
not: what is asked.

A server that refuses a publish or a subscription says so on the connection, not to who
asked: the request itself would only time out. nats-py (2.16) puts its words in small letters.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, ClassVar, Final, TypeVar

from msgspec import Struct

from events.access import DEFAULT_INBOX_PREFIX
from events.errors import SlotbusError

T = TypeVar("T")

_VIOLATION: Final = re.compile(
    r'permissions violation for (publish|subscription) to "([^"]+)"', re.I
)


class Denied(SlotbusError):
    """The NATS server does not let us publish or listen there (``subject``)."""

    code: ClassVar[str] = "denied"
    status: ClassVar[int] = 403


class _Waiting(Struct, eq=False):
    subjects: tuple[str, ...]
    refusal: asyncio.Future[Denied]


class Denials:
    """The denials of one connection. ``inbox_prefix``: below which it hears answers."""

    def __init__(self, inbox_prefix: str = DEFAULT_INBOX_PREFIX) -> None:
        self._inbox_prefix = inbox_prefix
        self._waiting: list[_Waiting] = []
        self._deaf: Denied | None = None
        """No answer can be heard on this connection at all."""

    def heard(self, error: Exception) -> None:
        """The server's word on something that it refused."""
        found = _VIOLATION.search(str(error))
        if found is None:
            return
        listening, forbidden = found[1].lower() == "subscription", found[2].lower()
        if listening and forbidden.startswith(f"{self._inbox_prefix.lower()}."):
            self._deaf = self._no_answers()
        for waiting in self._waiting:
            subject = next((s for s in waiting.subjects if s.lower() == forbidden), None)
            if waiting.refusal.done():
                continue
            if self._deaf is not None:
                waiting.refusal.set_result(self._deaf)
            elif subject is not None:
                waiting.refusal.set_result(_denied(listening, subject))

    def reconnected(self) -> None:
        """Another server, or other permissions: what is still forbidden is said again."""
        self._deaf = None

    async def unless_denied(self, work: Coroutine[Any, Any, T], *subjects: str) -> T:
        """Awaits ``work``, which publishes on ``subjects`` and hears an answer. Raises
        Denied as soon as the server refuses either, and what ``work`` raises."""
        if self._deaf is not None:
            work.close()
            raise self._deaf
        refusal: asyncio.Future[Denied] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(subjects, refusal)
        self._waiting.append(waiting)
        task = asyncio.create_task(work, name=f"unless denied {subjects[:1]}")
        try:
            either: set[asyncio.Future[Any]] = {task, refusal}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise refusal.result()
            return task.result()
        finally:
            self._waiting.remove(waiting)
            refusal.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _no_answers(self) -> Denied:
        subject = f"{self._inbox_prefix}.>"
        return Denied(
            f"the NATS server does not let this user listen for answers on {subject}: say "
            "--inbox-prefix with what the user may subscribe to",
            subject=subject,
        )


def _denied(listening: bool, subject: str) -> Denied:
    doing = "listen" if listening else "publish"
    return Denied(
        f"the NATS server does not let this user {doing} on {subject}: its permissions say so",
        subject=subject,
    )
