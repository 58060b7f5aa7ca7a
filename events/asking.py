"""One question to the leader, asked until it is answered: the client's retries.

What lives here: which subject a request goes to and which reply it gets, what is asked
again and until when, and the errors of a question that nobody answered. What may not:
the connection's making and what a reply means to its caller.

A command keeps its ``command_id`` over all attempts, so that asking again joins the work
that is under way, or gets the answer that was lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import ClassVar, Final, Literal, TypeAlias

import nats.errors
from msgspec import Struct
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg

from events.codec import decode, encode, error_from_body
from events.connection import request
from events.denials import Denials
from events.denials import Denied as Denied
from events.errors import CommandTimeout, Internal, SlotbusError, TooLarge
from events.messages import (
    Command,
    ConfirmDeadReply,
    ConfirmDeadReq,
    CordonReq,
    DrainReply,
    DrainReq,
    Message,
    NodeReply,
    RebuildReply,
    RebuildReq,
    StartPipelineReq,
    StartReply,
    StopReply,
    StopWorkersReq,
    UncordonReq,
)
from events.queries import (
    JobReply,
    JobsReply,
    LeaderReply,
    NodeDetailReply,
    NodesReply,
    QueryJob,
    QueryJobs,
    QueryLeader,
    QueryNode,
    QueryNodes,
    QueryShortage,
    QueryWorker,
    QueryWorkers,
    ShortageReply,
    WorkerReply,
    WorkersReply,
)
from events.subjects import Subjects

PagedQuery: TypeAlias = QueryWorkers | QueryJobs | QueryNodes | QueryShortage
Query: TypeAlias = PagedQuery | QueryJob | QueryNode | QueryWorker | QueryLeader
Request: TypeAlias = Command | Query

STATUS_HEADER: Final = "Nats-Service-Error-Code"
REASON_HEADER: Final = "Nats-Service-Error"
LEAST_WAIT_S: Final = 0.1
"""What a repeated command still waits for at the leader when its own wait is over."""


class NoController(SlotbusError):
    """Nobody listens on the subject (``subject``): no controller leads at the moment."""

    code: ClassVar[str] = "no_controller"
    status: ClassVar[int] = 503
    retriable: ClassVar[bool] = True


class NobodyThere(SlotbusError):
    """Nobody listens on the subject of a plain request (``subject``)."""

    code: ClassVar[str] = "nobody_there"
    status: ClassVar[int] = 503
    retriable: ClassVar[bool] = True


class NoAnswer(CommandTimeout):
    """Somebody listened and no answer came: it may have been done, or not."""


class LinkDown(SlotbusError):
    """The connection to NATS is lost; it reconnects by itself unless it was closed."""

    code: ClassVar[str] = "unreachable"
    status: ClassVar[int] = 503
    retriable: ClassVar[bool] = True


class LinkClosed(LinkDown):
    """The connection is closed for good: connect again."""

    retriable: ClassVar[bool] = False


class Patience(Struct, frozen=True, kw_only=True):
    """How long a client goes on, all in seconds.

    ``margin_s``: beyond a command's own ``wait_s``. ``absent_s``: with nobody there at
    all; longer than a dead leader's lease lasts (10 s). ``resend_s``: after which an
    attempt is repeated without waiting for its answer, which may have died with a leader.
    ``query_s``: for a whole query.
    """

    margin_s: float = 5.0
    absent_s: float = 15.0
    resend_s: float = 5.0
    query_s: float = 10.0
    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0


class Route(Struct, frozen=True):
    """Where a request goes and the type of its reply."""

    family: Literal["cmd", "query"]
    verb: str
    reply: type[Message]

    def subject(self, subjects: Subjects) -> str:
        return getattr(subjects, self.family)(self.verb)  # type: ignore[no-any-return]


ROUTES: Final[dict[type[Message], Route]] = {
    StartPipelineReq: Route("cmd", "start", StartReply),
    StopWorkersReq: Route("cmd", "stop", StopReply),
    CordonReq: Route("cmd", "cordon", NodeReply),
    UncordonReq: Route("cmd", "uncordon", NodeReply),
    DrainReq: Route("cmd", "drain", DrainReply),
    ConfirmDeadReq: Route("cmd", "confirm_dead", ConfirmDeadReply),
    RebuildReq: Route("cmd", "rebuild", RebuildReply),
    QueryWorkers: Route("query", "workers", WorkersReply),
    QueryJobs: Route("query", "jobs", JobsReply),
    QueryNodes: Route("query", "nodes", NodesReply),
    QueryJob: Route("query", "job", JobReply),
    QueryNode: Route("query", "node", NodeDetailReply),
    QueryWorker: Route("query", "worker", WorkerReply),
    QueryLeader: Route("query", "leader", LeaderReply),
    QueryShortage: Route("query", "shortage", ShortageReply),
}


class _Next(Struct):
    """Of any page: where the next one begins."""

    next: str = ""


class Asker:
    """Asks over one connection. ``retrying`` hears of every failed attempt that will be
    repeated; it is called in the loop and must not block. A command that is not answered
    while its wait lasts is repeated in silence."""

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        *,
        patience: Patience | None = None,
        retrying: Callable[[SlotbusError], None] | None = None,
        denials: Denials | None = None,
    ) -> None:
        self.nc = nc
        self._denials = denials or Denials()
        self._subjects = subjects
        self._patience = patience or Patience()
        self._retrying = retrying or (lambda _error: None)

    async def ask(self, message: Request) -> bytes:
        """The body of the reply. A command must carry its ``command_id``.

        Raises the error that the reply holds, and NoController, NoAnswer, LinkDown,
        Denied, TooLarge.
        """
        question = _Question(message, self._subjects, self._patience)
        while True:
            try:
                return await self._attempt(question)
            except SlotbusError as error:
                pause = question.pause_after(error)
                if pause is None:
                    raise
                if not question.is_patient(error):
                    self._retrying(error)
            await asyncio.sleep(pause)

    async def pages(self, query: PagedQuery) -> list[bytes]:
        """The bodies of all replies to a query, one for each page. Raises as ``ask``."""
        pages: list[bytes] = []
        while True:
            body = await self.ask(query)
            pages.append(body)
            cursor = decode(body, _Next).next
            if not cursor:
                return pages
            if cursor == query.cursor:
                raise Internal("the controller answers with the same page again and again")
            query = replace(query, cursor=cursor)

    async def ask_once(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        """The body of the answer to a request of any kind, asked once, whatever it says.

        Raises NobodyThere, NoAnswer, LinkDown, Denied.
        """
        asking = request(self.nc, subject, body, timeout_s)
        try:
            reply = await self._denials.unless_denied(asking, subject)
        except nats.errors.NoRespondersError as error:
            raise NobodyThere(f"nobody listens on {subject}", subject=subject) from error
        except nats.errors.TimeoutError as error:
            raise NoAnswer(
                f"no answer on {subject} within {timeout_s:g} s", subject=subject
            ) from error
        except nats.errors.Error as error:
            raise link_error(error) from error
        return reply.data

    async def _attempt(self, question: _Question) -> bytes:
        subject = question.subject
        asking = request(self.nc, subject, question.body(), question.attempt_s())
        try:
            reply = await self._denials.unless_denied(asking, subject)
        except nats.errors.Error as error:
            raise self._explained(error, question) from error
        refusal = _refusal(reply)
        if refusal is not None:
            raise refusal
        return reply.data

    def _explained(self, error: nats.errors.Error, question: _Question) -> SlotbusError:
        subject, facts = question.subject, question.facts
        if isinstance(error, nats.errors.NoRespondersError):
            return NoController(
                f"no controller answers on {subject}: is `slotbus controller` running?",
                subject=subject,
                **facts,
            )
        if isinstance(error, nats.errors.MaxPayloadError):
            return TooLarge(
                f"the request is larger than this NATS server takes ({self.nc.max_payload} bytes)",
                limit=self.nc.max_payload,
                unit="bytes",
            )
        if isinstance(error, nats.errors.TimeoutError):
            return NoAnswer(
                f"no answer on {subject} within {question.spent_s():.0f} s: "
                "it may have been done, or not",
                subject=subject,
                **facts,
            )
        return link_error(error)


def link_error(error: nats.errors.Error) -> SlotbusError:
    """What an error of nats-py says about the connection."""
    closed = nats.errors.ConnectionClosedError | nats.errors.ConnectionDrainingError
    if isinstance(error, closed):
        return LinkClosed("the connection to NATS is closed")
    return LinkDown(f"the connection to NATS is lost: {str(error) or repr(error)}")


def _refusal(reply: Msg) -> SlotbusError | None:
    error = error_from_body(reply.data)
    if error is None and reply.headers and STATUS_HEADER in reply.headers:
        text = reply.headers.get(REASON_HEADER, "") or "an error without a reason"
        return Internal(text, status=reply.headers[STATUS_HEADER])
    return error


class _Question:
    """One request over all its attempts: what is sent next, and whether."""

    def __init__(self, request: Request, subjects: Subjects, patience: Patience) -> None:
        self.subject = ROUTES[type(request)].subject(subjects)
        self._request = request
        self._patience = patience
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._absent_since: float | None = None
        self._pause_s = patience.first_pause_s
        if isinstance(request, Query):
            self._wait_s, total_s = 0.0, patience.query_s
            self.facts: dict[str, str] = {}
        else:
            self._wait_s, total_s = request.wait_s, request.wait_s + patience.margin_s
            self.facts = {"command_id": request.command_id or ""}
        self._end = self._began + total_s

    def spent_s(self) -> float:
        return self._clock() - self._began

    def attempt_s(self) -> float:
        """Seconds that this attempt may take: its last one lasts until the leader can have
        said that the command's wait is over."""
        left_s = self._wait_s - self.spent_s()
        attempt_s = self._patience.resend_s
        if left_s <= attempt_s:
            attempt_s = max(attempt_s, left_s + self._patience.margin_s / 2)
        return max(0.01, min(self._end - self._clock(), attempt_s))

    def body(self) -> bytes:
        """A repeated command waits only for what is left; 0 keeps its other meaning."""
        if isinstance(self._request, Query):
            return encode(self._request)
        left_s = self._wait_s - self.spent_s()
        least_s = min(self._wait_s, LEAST_WAIT_S)
        return encode(replace(self._request, wait_s=round(max(left_s, least_s), 3)))

    def is_patient(self, error: SlotbusError) -> bool:
        """A command that waits for its outcome is silent; that is no failure to tell of."""
        return isinstance(error, NoAnswer) and self.spent_s() < self._wait_s

    def pause_after(self, error: SlotbusError) -> float | None:
        """Seconds until the next attempt; None: this error is the last word."""
        now = self._clock()
        if not error.retriable or self._said_in_time(error, now):
            return None
        if isinstance(error, NoController | LinkDown):
            self._absent_since = now if self._absent_since is None else self._absent_since
            end = min(self._end, self._absent_since + self._patience.absent_s)
        else:
            self._absent_since, end = None, self._end
        pause_s = random.uniform(0.5, 1.0) * self._pause_s
        self._pause_s = min(2 * self._pause_s, self._patience.longest_pause_s)
        return pause_s if now + pause_s < end else None

    def _said_in_time(self, error: SlotbusError, now: float) -> bool:
        """The leader itself says that the command's wait is over."""
        waited = isinstance(error, CommandTimeout) and not isinstance(error, NoAnswer)
        return waited and now >= self._began + self._wait_s - LEAST_WAIT_S
