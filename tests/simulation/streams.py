"""A stream of the modelled server: what it keeps, and when it refuses.

What lives here: storing under expectations, duplicates, ages of messages, a lost tail. What
may not: requests about streams (``jsapi``).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tests.simulation.matching import matches

WRONG_LAST: Final = 10071
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence"
MSG_ID: Final = "Nats-Msg-Id"
TTL: Final = "Nats-TTL"
FOREVER: Final = float("inf")


class Stored(Struct, frozen=True):
    """A message in a stream; ``until``: when it vanishes, in the loop's time."""

    seq: int
    subject: str
    data: bytes
    headers: dict[str, str]
    until: float = FOREVER
    at: int = 0
    """In nanoseconds."""


class Taken(Struct, frozen=True):
    """What became of a message: its place, or JetStream's no."""

    seq: int = 0
    duplicate: bool = False
    err_code: int = 0
    description: str = ""


class Stream:
    """``created`` is as JetStream writes it."""

    def __init__(self, name: str, config: dict[str, object], created: str) -> None:
        self.name = name
        self.config = config
        self.created = created
        self.last_seq = 0
        self.messages: dict[int, Stored] = {}
        self._last_of: dict[str, int] = {}
        self._ids: dict[str, tuple[int, float]] = {}

    @property
    def subjects(self) -> list[str]:
        found = self.config.get("subjects")
        return [str(subject) for subject in found] if isinstance(found, list) else []

    @property
    def first_seq(self) -> int:
        return next(iter(self.messages), self.last_seq + 1 if self.last_seq else 0)

    @property
    def last_at(self) -> int:
        """When the last message was stored; 0 where it is gone."""
        stored = self.messages.get(self.last_seq)
        return stored.at if stored else 0

    @property
    def size(self) -> int:
        return sum(len(stored.data) for stored in self.messages.values())

    def covers(self, subject: str) -> bool:
        return any(
            wanted == subject or matches(wanted, subject.split(".")) for wanted in self.subjects
        )

    def may_cover(self, beginning: str) -> bool:
        """Whether it may cover a subject that begins so."""
        return any(wanted.startswith(beginning[: len(wanted)]) for wanted in self.subjects)

    def take(self, subject: str, data: bytes, headers: dict[str, str], now: float) -> Taken:
        """Stores a message, or says why not; first of all it looks at what is expected, so
        that a repeated message is refused rather than known again."""
        self.expire(now)
        wrong = self._wrong(subject, headers)
        if wrong is not None:
            return wrong
        msg_id = headers.get(MSG_ID)
        if msg_id is not None:
            known = self._ids.get(msg_id)
            if known is not None and now - known[1] <= self._window_s():
                return Taken(known[0], duplicate=True)
        self.last_seq += 1
        ttl = headers.get(TTL)
        until = now + int(ttl) if ttl is not None else FOREVER
        self._keep(Stored(self.last_seq, subject, data, headers, until, int(now * 1e9)))
        if msg_id is not None:
            self._ids[msg_id] = (self.last_seq, now)
        return Taken(self.last_seq)

    def _keep(self, stored: Stored) -> None:
        before = self._last_of.get(stored.subject)
        if before is not None and self.config.get("max_msgs_per_subject") == 1:
            self.messages.pop(before, None)
        self.messages[stored.seq] = stored
        self._last_of[stored.subject] = stored.seq

    def _wrong(self, subject: str, headers: dict[str, str]) -> Taken | None:
        stream = headers.get(EXPECTED_STREAM)
        if stream is not None and stream != self.name:
            return Taken(err_code=10060, description="expected stream does not match")
        last = headers.get(EXPECTED_LAST)
        if last is not None and int(last) != self.last_seq:
            return Taken(err_code=WRONG_LAST, description=f"wrong last sequence: {self.last_seq}")
        of_subject = headers.get(EXPECTED_LAST_SUBJECT)
        found = self._last_of.get(subject, 0)
        if of_subject is not None and int(of_subject) != found:
            return Taken(err_code=WRONG_LAST, description=f"wrong last sequence: {found}")
        return None

    def last(self, subject: str, now: float) -> Stored | None:
        self.expire(now)
        seq = self._last_of.get(subject)
        return None if seq is None else self.messages.get(seq)

    def purge(self, before: int) -> None:
        """Removes what is below a sequence."""
        for seq in [seq for seq in self.messages if seq < before]:
            self._remove(seq)

    def lose_tail(self, count: int) -> int:
        """A crash before the disk had it: the last messages were never there."""
        lost = [seq for seq in self.messages if seq > self.last_seq - count]
        for seq in lost:
            self._remove(seq)
        self.last_seq -= len(lost)
        self._ids = {key: at for key, at in self._ids.items() if at[0] <= self.last_seq}
        return len(lost)

    def expire(self, now: float) -> None:
        for seq in [seq for seq, at in self._mortal() if at <= now]:
            self._remove(seq)

    def _mortal(self) -> list[tuple[int, float]]:
        if not self.config.get("allow_msg_ttl"):
            return []
        return [(seq, stored.until) for seq, stored in self.messages.items()]

    def _remove(self, seq: int) -> None:
        stored = self.messages.pop(seq)
        if self._last_of.get(stored.subject) == seq:
            del self._last_of[stored.subject]

    def _window_s(self) -> float:
        window = self.config.get("duplicate_window")
        return (window if isinstance(window, int) else 120_000_000_000) / 1e9
