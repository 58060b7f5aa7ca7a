"""Listening to all that goes over NATS, and holding it to the published schemas.

What lives here: ``Wiretap``. What may not: making traffic.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jsonschema import Draft202012Validator
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller.reference.catalogue import ErrorReply, Exchange, on_subject
from controller.reference.schema import schema_of
from events.subjects import Subjects

OPEN = frozenset({"ErrorFields"})
"""Facts of an error stand beside its known fields."""


class Heard(Struct, frozen=True):
    """One message: the subject, or that of the request that it answers."""

    subject: str
    body: bytes
    is_reply: bool


class Wiretap:
    """Hears every message under a root and every answer to one."""

    def __init__(self, subjects: Subjects) -> None:
        self._prefix = f"{subjects.root}."
        self._asked: dict[str, str] = {}
        self.heard: list[Heard] = []

    async def hear(self, message: Msg) -> None:
        """Takes a message of whatever subject."""
        asked = self._asked.get(message.subject)
        if message.subject.startswith(self._prefix):
            exchange = on_subject(message.subject)
            # Where nobody of ours answers, JetStream may, that it has captured the message.
            if message.reply and exchange is not None and exchange.reply is not None:
                self._asked[message.reply] = message.subject
            self.heard.append(Heard(message.subject, message.data, is_reply=False))
        elif asked is not None:
            self.heard.append(Heard(asked, message.data, is_reply=True))

    def kinds(self) -> Counter[str]:
        """How often each message and each reply of the catalogue was heard."""
        counts: Counter[str] = Counter()
        for one in self.heard:
            counts[_kind(one).__name__] += 1
        return counts

    def complaints(self) -> list[str]:
        """What does not fit its schema, fields unknown there too."""
        return [
            f"{one.subject}: {error.json_path}: {error.message}"
            for one in self.heard
            for line in _lines(one)
            for error in _validator(_kind(one)).iter_errors(json.loads(line))
        ]


@asynccontextmanager
async def tapped(nc: Client, subjects: Subjects) -> AsyncIterator[Wiretap]:
    """Listens during a block of code."""
    tap = Wiretap(subjects)
    subscription = await nc.subscribe(">", cb=tap.hear)
    await nc.flush()
    yield tap
    await nc.flush()
    await subscription.unsubscribe()


def _exchange(one: Heard) -> Exchange:
    found = on_subject(one.subject)
    assert found is not None, f"{one.subject} is not in the catalogue"
    return found


def _kind(one: Heard) -> type[Struct]:
    exchange = _exchange(one)
    if not one.is_reply:
        return exchange.message
    if "error" in json.loads(one.body):
        return ErrorReply
    assert exchange.reply is not None
    return exchange.reply


def _lines(one: Heard) -> list[bytes]:
    many = _exchange(one).many and not one.is_reply
    return one.body.split(b"\n") if many else [one.body or b"{}"]


_VALIDATORS: dict[str, Draft202012Validator] = {}


def _validator(kind: type[Struct]) -> Draft202012Validator:
    name = kind.__name__
    if name not in _VALIDATORS:
        _VALIDATORS[name] = Draft202012Validator(closed(schema_of(name)))
    return _VALIDATORS[name]


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, with no fields but those that it names: what we send we describe."""
    for name, definition in schema["$defs"].items():
        if "properties" in definition and name not in OPEN:
            definition["additionalProperties"] = False
    return schema
