"""The typed client: commands, queries, events and output of a slotbus over NATS.

What lives here: ``SlotbusClient``, the one door for programs that use a cluster; the
command line is built on it too. What may not: retries (``events.asking``), reading the
event stream (``events.following``) and output (``events.tailing``).

    async with SlotbusClient.connect("nats://127.0.0.1:4222") as bus:
        reply = await bus.start(job_id="wordcount", slots=6)
        for worker in await bus.workers("wordcount"):
            print(worker.worker_id, worker.state)
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import datetime
from typing import Any, Final, TypeVar, Unpack

from msgspec.structs import replace
from nats.aio.client import Client

from events.access import DEFAULT_INBOX_PREFIX
from events.arguments import StartFields, StopFields
from events.asking import Asker, PagedQuery, Patience, Query
from events.codec import convert, decode
from events.connecting import Connecting
from events.connection import CONNECT_TIMEOUT_S, Access, Hooks, connect
from events.denials import Denials
from events.errors import Invalid, SlotbusError, UnknownJob
from events.following import EventRecord, Follower, Start
from events.ids import DEFAULT_DRAIN_S, ID_RE, Position
from events.messages import (
    Command,
    ConfirmDeadReply,
    ConfirmDeadReq,
    CordonReq,
    DrainReply,
    DrainReq,
    NodeReply,
    StartPipelineReq,
    StartReply,
    StopReply,
    StopWorkersReq,
    UncordonReq,
)
from events.queries import (
    JobReply,
    JobRow,
    JobsReply,
    LeaderReply,
    NodeDetailReply,
    NodeRow,
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
    WaitingRow,
    WorkerReply,
    WorkerRow,
    WorkersReply,
)
from events.queueing import leave
from events.settings import DEFAULT_SERVER
from events.states import RUN_ENDED
from events.subjects import Subjects
from events.tailing import LogReader, LogSource
from events.traffic import LogLines
from events.waits import wait_for_drain, wait_for_start, wait_for_stop

DEFAULT_TAIL_BYTES: Final = 64 * 1024
_LOG_PATIENCE: Final = Patience(absent_s=1.0, query_s=2.0)
"""Live output must not wait for long while a leader is away."""

T = TypeVar("T")
C = TypeVar("C", StartPipelineReq, StopWorkersReq, CordonReq, UncordonReq)
Retrying = Callable[[SlotbusError], None]
Missing = Callable[[WorkerRow, SlotbusError], None]


def make_command_id() -> str:
    """A fresh ``command_id``: repeat a command under the same one, never two commands."""
    return f"c-{secrets.token_hex(8)}"


def _no_matter(_row: WorkerRow, _error: SlotbusError) -> None:
    return None


class SlotbusClient:
    """A cluster, seen from a program. Safe to use from many tasks of one loop.

    Every method raises SlotbusErrors: the ones the leader answers with, and
    ``NoController``, ``NoAnswer``, ``LinkDown``, ``Denied`` of ``events.asking``.
    """

    def __init__(
        self,
        nc: Client,
        root: str = "slotbus",
        *,
        patience: Patience | None = None,
        retrying: Retrying | None = None,
        denials: Denials | None = None,
    ) -> None:
        """Over a connection of your own, which stays yours to close; ``connect`` makes
        one. ``retrying`` hears of failed attempts that are repeated; ``denials`` is told
        of what the server forbids, where somebody tells it."""
        self.nc = nc
        self.subjects = Subjects(root)
        self._denials = denials or Denials()
        self._asker = Asker(
            nc, self.subjects, patience=patience, retrying=retrying, denials=self._denials
        )
        self._log_asker = Asker(nc, self.subjects, patience=_LOG_PATIENCE, denials=self._denials)

    @classmethod
    def connect(
        cls,
        server: str | None = None,
        root: str = "slotbus",
        *,
        name: str = "slotbus client",
        access: Access | None = None,
        patience: Patience | None = None,
        retrying: Retrying | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Connecting[SlotbusClient]:
        """``async with`` it, or await it and call ``close`` yourself.

        ``server``: addresses joined by commas; else ``NATS_URL``, else the local default.
        Raises ConnectionFailed within ``connect_timeout_s`` seconds; afterwards the
        connection comes back by itself.
        """

        async def make() -> SlotbusClient:
            prefix = access.inbox_prefix if access else ""
            denials = Denials(prefix or DEFAULT_INBOX_PREFIX)
            nc = await connect(
                server or os.environ.get("NATS_URL") or DEFAULT_SERVER,
                name=name,
                access=access,
                hooks=Hooks(denied=denials.heard, reconnected=denials.reconnected),
                connect_timeout_s=connect_timeout_s,
            )
            return cls(nc, root, patience=patience, retrying=retrying, denials=denials)

        return Connecting(make)

    async def close(self) -> None:
        """Closes the connection; what is still asked or read ends with LinkClosed."""
        await self.nc.close()

    # --- commands -----------------------------------------------------------------------

    async def start(
        self, request: StartPipelineReq | None = None, /, **fields: Unpack[StartFields]
    ) -> StartReply:
        """Starts a run of a job, all or nothing: give a ``StartPipelineReq`` or its
        fields. Returns when all workers are launched (``wait_s`` 0: when it is accepted);
        without a ``wait_s`` among the fields it waits until the outcome is due.

        Raises NotEnoughSlots, StaleRun, RunActive, StartFailed, Invalid, TooLarge,
        CommandTimeout (the work goes on: start again under the same ``command_id``).
        """
        if (request is None) == (not fields):
            raise Invalid("give a StartPipelineReq, or its fields")
        chosen = request or convert({"wait_s": wait_for_start(), **fields}, StartPipelineReq)
        return decode(await self.send(chosen), StartReply)

    async def stop(self, job: str | StopWorkersReq, /, **fields: Unpack[StopFields]) -> StopReply:
        """Stops a job: give its id and fields, or a ``StopWorkersReq``. Returns when its
        workers are gone, with those that can't be confirmed; without a ``wait_s`` among the
        fields it waits until that is known.

        Raises UnknownJob, CommandTimeout, Invalid.
        """
        if isinstance(job, str):
            wait_s = wait_for_stop(fields.get("grace_s"), force=fields.get("force", False))
            job = convert({"job_id": job, "wait_s": wait_s, **fields}, StopWorkersReq)
        elif fields:
            raise Invalid("give a StopWorkersReq, or a job_id and fields")
        return decode(await self.send(job), StopReply)

    async def cordon(self, node_id: str) -> NodeReply:
        """No new workers on this node. Raises UnknownNode."""
        request = convert({"node_id": node_id}, CordonReq)
        return decode(await self.send(request), NodeReply)

    async def uncordon(self, node_id: str) -> NodeReply:
        """New workers are welcome there again. Raises UnknownNode."""
        request = convert({"node_id": node_id}, UncordonReq)
        return decode(await self.send(request), NodeReply)

    async def drain(
        self, node_id: str, *, deadline_s: float = DEFAULT_DRAIN_S, force: bool = False
    ) -> DrainReply:
        """Empties a node: its runs move elsewhere, or stop, as their jobs have it. Returns at
        the end or the deadline, with what remains and why. Raises UnknownNode."""
        fields = {"node_id": node_id, "deadline_s": deadline_s, "force": force}
        request = convert({**fields, "wait_s": wait_for_drain(deadline_s)}, DrainReq)
        return decode(await self.send(request), DrainReply)

    async def confirm_dead(self, node_id: str) -> ConfirmDeadReply:
        """Says that nothing runs on an expired node any more: its workers count as gone, and
        others may take their place. Raises UnknownNode, NodeAlive."""
        request = convert({"node_id": node_id}, ConfirmDeadReq)
        return decode(await self.send(request), ConfirmDeadReply)

    async def send(self, command: Command) -> bytes:
        """Like the methods above, for those who want the body of the reply as it came.
        A missing ``command_id`` is made before the first try, and kept."""
        if command.command_id is None:
            command = replace(command, command_id=make_command_id())
        return await self._asker.ask(command)

    async def leave(self, command: Command) -> int:
        """Leaves a command in the queue: it is done once, when a controller leads, and its
        outcome is an event. Its place in the queue. Give it a ``not_after``, or it is done
        however late. Raises NotQueued."""
        if command.command_id is None:
            command = replace(command, command_id=make_command_id())
        return await self.unless_denied(
            leave(self.nc, self.subjects, command), self.subjects.queues
        )

    # --- queries ------------------------------------------------------------------------

    async def workers(
        self,
        job_id: str | None = None,
        *,
        run_id: int | None = None,
        node_id: str | None = None,
        include_ended: bool = False,
    ) -> list[WorkerRow]:
        """Workers alive, of one job, one node or of all; ``include_ended``: those remembered
        too."""
        query = QueryWorkers(job_id=job_id, run_id=run_id, node_id=node_id, all=include_ended)
        pages = await self.pages(query)
        return [row for page in pages for row in decode(page, WorkersReply).workers]

    async def jobs(self, job_id: str | None = None) -> list[JobRow]:
        """Jobs with their newest run; an unknown one gives an empty list."""
        pages = await self.pages(QueryJobs(job_id=job_id))
        return [row for page in pages for row in decode(page, JobsReply).jobs]

    async def nodes(self, node_id: str | None = None) -> list[NodeRow]:
        """Nodes with their slots; an unknown one gives an empty list."""
        pages = await self.pages(QueryNodes(node_id=node_id))
        return [row for page in pages for row in decode(page, NodesReply).nodes]

    async def shortage(self) -> list[WaitingRow]:
        """The starts that wait for slots, in the order in which they get them."""
        pages = await self.pages(QueryShortage())
        return [row for page in pages for row in decode(page, ShortageReply).waiting]

    async def job(self, job_id: str, *, run_id: int | None = None) -> JobReply:
        """Everything about one run of a job, the newest unless said otherwise. Raises
        UnknownJob."""
        query = convert({"job_id": job_id, "run_id": run_id}, QueryJob)
        return decode(await self.query(query), JobReply)

    async def node(self, node_id: str) -> NodeDetailReply:
        """Everything about one node but its workers. Raises UnknownNode."""
        query = convert({"node_id": node_id}, QueryNode)
        return decode(await self.query(query), NodeDetailReply)

    async def worker(self, worker_id: str) -> WorkerReply:
        """Everything about one worker. Raises UnknownWorker."""
        query = convert({"worker_id": worker_id}, QueryWorker)
        return decode(await self.query(query), WorkerReply)

    async def leader(self) -> LeaderReply:
        """Who leads, and what its clock says."""
        return decode(await self.query(QueryLeader()), LeaderReply)

    async def pages(self, query: PagedQuery) -> list[bytes]:
        """The bodies of all replies to a query, one for each page."""
        return await self._asker.pages(query)

    async def query(self, query: Query) -> bytes:
        """The body of the reply to a query, or of its first page."""
        return await self._asker.ask(query)

    async def ask(self, subject: str, body: bytes = b"", timeout_s: float = 2.0) -> bytes:
        """The answer to a request of your own, asked once, whatever it says. Raises
        NobodyThere, NoAnswer, Denied, LinkDown."""
        return await self._asker.ask_once(subject, body, timeout_s)

    async def unless_denied(self, work: Coroutine[Any, Any, T], *subjects: str) -> T:
        """Awaits something that uses ``nc`` and publishes on these subjects. Raises Denied as
        soon as the server forbids one of them, where it would only have timed out."""
        return await self._denials.unless_denied(work, *subjects)

    # --- watching -----------------------------------------------------------------------

    def events(
        self,
        *,
        job_id: str | None = None,
        node_id: str | None = None,
        follow: bool = False,
        since: datetime | Position | int | None = None,
    ) -> AsyncGenerator[EventRecord]:
        """The records of the event log that concern a job, a node, or anything at all.

        Each comes once, in order. ``since``: a time, or the position after which to begin
        (where you stopped reading); None is all that is kept. Without ``follow`` it ends
        with the last one stored; with it, it goes on through lost links. Iterate inside
        ``contextlib.aclosing`` where you may leave early.

        Raises NoEvents, Invalid, LinkDown, LinkClosed.
        """
        if job_id is not None and node_id is not None:
            raise Invalid("give a job_id or a node_id, not both", path="node_id")
        subject = self.subjects.events
        if job_id is not None:
            subject = self.subjects.event_job(_plain(job_id, "job_id"))
        elif node_id is not None:
            subject = self.subjects.event_node(_plain(node_id, "node_id"))
        if isinstance(since, datetime):
            start = Start(time=since)
        else:
            start = Start(after=Position(since or 0))
        stream = self.subjects.event_stream
        reader = Follower(
            self.nc, stream, subject, start=start, follow=follow, denials=self._denials
        )
        return reader.records()

    def logs(
        self,
        job_id: str,
        *,
        run_id: int | None = None,
        follow: bool = False,
        tail_bytes: int = DEFAULT_TAIL_BYTES,
        missing: Missing = _no_matter,
    ) -> AsyncGenerator[LogLines]:
        """The output of a job's workers, ended ones too: of one run, or of the newest.

        First the stored end, up to ``tail_bytes`` bytes a worker; with ``follow`` then
        what they write, until the job is over. ``missing`` hears of workers whose node
        does not answer. Raises UnknownJob and what queries raise.
        """
        _plain(job_id, "job_id")
        askers = [self._asker]

        async def newest() -> JobRow:
            pages = await askers[-1].pages(QueryJobs(job_id=job_id))
            jobs = [row for page in pages for row in decode(page, JobsReply).jobs]
            if not jobs:
                raise UnknownJob(f"there is no job {job_id}", job_id=job_id)
            return jobs[0]

        async def rows() -> list[WorkerRow]:
            run = run_id if run_id is not None else (await newest()).run_id
            query = QueryWorkers(job_id=job_id, run_id=run, all=True)
            pages = await askers[-1].pages(query)
            askers[:] = [self._log_asker]  # only the first questions may take their time
            return [row for page in pages for row in decode(page, WorkersReply).workers]

        async def over() -> bool:
            job = await newest()
            return job.state in RUN_ENDED or (run_id is not None and run_id < job.run_id)

        reader = LogReader(
            self.nc,
            self.subjects,
            LogSource(rows, over, missing),
            job_id=job_id,
            run_id=run_id,
            tail_bytes=tail_bytes,
        )
        return reader.lines(follow=follow)


def _plain(text: str, path: str) -> str:
    """An id that is safe in a subject. Raises Invalid."""
    if not ID_RE.match(text):
        raise Invalid(f"{text!r} is not 1 to 128 of letters, digits, _ and -", path=path)
    return text
