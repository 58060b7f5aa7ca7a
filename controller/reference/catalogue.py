"""The catalogue: which message goes over which subject, and what answers it.

What lives here: one entry for each kind of subject. What may not: how a message looks (its
struct says that), and text for people.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from events.asking import ROUTES
from events.errors import CODES
from events.facts import PublishedRecord, Record
from events.subjects import Subjects
from events.tap import InboxPiece, TapInbox, TapReply
from events.traffic import (
    AgentAbout,
    AgentAboutReply,
    AgentInventory,
    AgentLogs,
    AgentLogsReply,
    AgentStart,
    AgentStartReply,
    AgentStop,
    AgentStopReply,
    FinishedReply,
    HeartbeatNodeReq,
    HeartbeatReply,
    InventoryReply,
    LogLines,
    RegisterNodeReq,
    RegisterReply,
    WorkerFinishedReq,
)

Way = Literal[
    "client to leader",
    "agent to leader",
    "leader to agent",
    "client to agent",
    "leader to all",
    "agent to all",
]


class ErrorFields(Struct, kw_only=True, frozen=True):
    """``code`` is for programs, ``message`` for people; facts of the error stand beside them
    (``slots_needed``, ``path``, ...)."""

    code: Literal[CODES]  # type: ignore[valid-type]
    message: str


class ErrorReply(Struct, kw_only=True, frozen=True):
    """The answer to anything that is refused or fails. It carries the headers
    ``Nats-Service-Error`` and ``Nats-Service-Error-Code``."""

    error: ErrorFields
    warnings: list[str] = []


class Exchange(Struct, frozen=True, kw_only=True):
    """What goes over one kind of subject. ``<node_id>`` and the like stand for one token.
    ``said``: fields of the message that the subject says already, so it may leave them
    out. ``many``: a message holds one or more of them, a line each."""

    subject: str
    way: Way
    message: type[Struct]
    reply: type[Struct] | None = None
    said: tuple[str, ...] = ()
    many: bool = False


def exchanges(subjects: Subjects | None = None) -> list[Exchange]:
    """All of them, under a root."""
    at = subjects or Subjects()
    return [
        *(
            Exchange(
                subject=route.subject(at), way="client to leader", message=kind, reply=route.reply
            )
            for kind, route in ROUTES.items()
        ),
        Exchange(subject=at.tap, way="client to leader", message=TapInbox, reply=TapReply),
        *_node_traffic(at),
        *_orders(at),
        Exchange(subject=at.event_job("<job_id>"), way="leader to all", message=PublishedRecord),
        Exchange(subject=at.event_node("<node_id>"), way="leader to all", message=PublishedRecord),
        Exchange(subject=at.event_leader, way="leader to all", message=PublishedRecord),
        Exchange(subject=at.eventlog, way="leader to all", message=Record, many=True),
        Exchange(subject=at.inbox, way="leader to all", message=InboxPiece),
        Exchange(subject=at.log("<job_id>", "<worker_id>"), way="agent to all", message=LogLines),
    ]


def _node_traffic(at: Subjects) -> list[Exchange]:
    traffic: dict[str, tuple[type[Struct], type[Struct]]] = {
        "register": (RegisterNodeReq, RegisterReply),
        "heartbeat": (HeartbeatNodeReq, HeartbeatReply),
        "finished": (WorkerFinishedReq, FinishedReply),
    }
    return [
        Exchange(
            subject=at.node("<node_id>", verb),
            way="agent to leader",
            message=message,
            reply=reply,
            said=("node_id",),
        )
        for verb, (message, reply) in traffic.items()
    ]


def _orders(at: Subjects) -> list[Exchange]:
    orders: dict[str, tuple[Way, type[Struct], type[Struct]]] = {
        "start": ("leader to agent", AgentStart, AgentStartReply),
        "stop": ("leader to agent", AgentStop, AgentStopReply),
        "inventory": ("leader to agent", AgentInventory, InventoryReply),
        "logs": ("client to agent", AgentLogs, AgentLogsReply),
        "about": ("client to agent", AgentAbout, AgentAboutReply),
    }
    return [
        Exchange(subject=at.agent("<node_id>", verb), way=way, message=message, reply=reply)
        for verb, (way, message, reply) in orders.items()
    ]


def on_subject(subject: str) -> Exchange | None:
    """What goes over a subject, whatever its root and ids: ``t.node.n1.register``."""
    tokens = subject.split(".")
    for exchange in exchanges():
        own = exchange.subject.split(".")[1:]
        given = tokens[-len(own) :]
        if len(given) == len(own) and all(
            mine.startswith("<") or mine == theirs for mine, theirs in zip(own, given, strict=True)
        ):
            return exchange
    return None


MESSAGES: Final[list[type[Struct]]] = list(
    dict.fromkeys(
        kind
        for exchange in exchanges()
        for kind in (exchange.message, exchange.reply)
        if kind is not None
    )
)
"""Every message that goes over the wire, requests before their replies, but errors."""

KINDS: Final[tuple[type[Struct], ...]] = (*MESSAGES, ErrorReply)
"""All of them."""
