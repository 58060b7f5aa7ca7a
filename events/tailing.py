"""A job's output: what its agents stored, joined to what its workers write now.

What lives here: asking each worker's node for the stored end of its output, listening to
``log.<job_id>.*``, and joining both by their offsets, without a gap or a repetition. What
may not: how agents store and send output.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import nats.errors
from msgspec import Struct
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from events.asking import NoAnswer, link_error
from events.codec import decode, encode, error_from_body
from events.errors import SlotbusError
from events.queries import WorkerRow
from events.subjects import Subjects
from events.traffic import AgentLogs, AgentLogsReply, LogLines

TAIL_TIMEOUT_S: Final = 5.0
IDLE_S: Final = 1.0
"""After so long without a line it is asked whether the job is over."""

TAILS_AT_ONCE: Final = 16
MAX_PENDING: Final = 65_536
MAX_TAIL_BYTES: Final = 512 * 1024


class LogSource(Struct, frozen=True):
    """What the reader needs to know about the job. ``rows``: its workers, ended ones too;
    ``over``: whether nothing runs any more; both may raise SlotbusErrors. ``missing``
    hears of each worker whose stored output can't be had."""

    rows: Callable[[], Awaitable[list[WorkerRow]]]
    over: Callable[[], Awaitable[bool]]
    missing: Callable[[WorkerRow, SlotbusError], None]


class LogReader:
    """One reader of one job's output; iterate over ``lines()`` once."""

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        source: LogSource,
        *,
        job_id: str,
        run_id: int | None,
        tail_bytes: int,
    ) -> None:
        self._nc = nc
        self._subjects = subjects
        self._source = source
        self._job_id = job_id
        self._run_id = run_id
        self._tail_bytes = tail_bytes
        self._shown: dict[str, int] = {}
        self._rows: dict[str, WorkerRow] = {}
        self._joining: set[str] = set()

    async def lines(self, *, follow: bool) -> AsyncGenerator[LogLines]:
        """Yields pieces of output, in order per worker. With ``follow`` until the job is
        over, also for workers that start later. Raises SlotbusErrors."""
        subject = self._subjects.log(self._job_id, "*")
        try:
            live = await self._nc.subscribe(subject, pending_msgs_limit=MAX_PENDING)
        except nats.errors.Error as error:
            raise link_error(error) from error
        try:
            for piece in await self._stored(await self._source.rows()):
                yield piece
            if follow:
                async with contextlib.aclosing(self._follow(live)) as pieces:
                    async for piece in pieces:
                        yield piece
        finally:
            with contextlib.suppress(nats.errors.Error):
                await live.unsubscribe()

    async def _follow(self, live: Subscription) -> AsyncGenerator[LogLines]:
        while True:
            try:
                message = await live.next_msg(timeout=IDLE_S)
            except nats.errors.TimeoutError:
                rest = await self._rest_if_over()
                for piece in rest or []:
                    yield piece
                if rest is not None:
                    return
                continue
            except nats.errors.Error as error:
                raise link_error(error) from error
            with contextlib.suppress(SlotbusError):  # not one of ours: anyone can publish there
                piece = decode(message.data, LogLines)
                for joined in await self._join(piece):
                    yield joined

    async def _rest_if_over(self) -> list[LogLines] | None:
        """What is left to show when the job is over, or None. A leader that does not
        answer just now changes nothing: lines come from the agents."""
        try:
            if not await self._source.over():
                return None
            rows = await self._source.rows()
        except SlotbusError as error:
            if error.retriable:
                return None
            raise
        return await self._stored(rows)

    async def _join(self, piece: LogLines) -> list[LogLines]:
        worker_id, shown = piece.worker_id, self._shown.get(piece.worker_id, 0)
        if self._run_id not in (None, piece.run_id) or piece.offset <= shown:
            return []
        begin = piece.offset - len(piece.text.encode())
        if begin > shown:  # lines were missed, or the worker began before we listened
            earlier = await self._stored(await self._row_of(worker_id))
            shown = self._shown.get(worker_id, 0)
            if piece.offset <= shown:
                return earlier
        else:
            earlier = []
        self._shown[worker_id] = piece.offset
        if worker_id in self._joining:
            # Only the first piece after a stored end may overlap it; later ones follow in
            # order, and cutting them would trust the size of text that was not UTF-8.
            self._joining.discard(worker_id)
            piece = replace(piece, text=_last_bytes(piece.text, piece.offset - shown))
        return [*earlier, piece]

    async def _row_of(self, worker_id: str) -> list[WorkerRow]:
        if worker_id not in self._rows:
            with contextlib.suppress(SlotbusError):
                self._know(await self._source.rows())
        row = self._rows.get(worker_id)
        return [] if row is None else [row]

    def _know(self, rows: list[WorkerRow]) -> None:
        self._rows.update((row.worker_id, row) for row in rows)

    async def _stored(self, rows: list[WorkerRow]) -> list[LogLines]:
        """What the agents have of these workers beyond what was shown."""
        self._know(rows)
        gate = asyncio.Semaphore(TAILS_AT_ONCE)

        async def one(row: WorkerRow) -> LogLines | None:
            async with gate:
                return await self._stored_of(row)

        pieces = await asyncio.gather(*(one(row) for row in rows))
        return [piece for piece in pieces if piece is not None and piece.text]

    async def _stored_of(self, row: WorkerRow) -> LogLines | None:
        shown = self._shown.get(row.worker_id, 0)
        wanted = MAX_TAIL_BYTES if shown else self._tail_bytes
        try:
            tail = await self._ask_node(row, wanted)
        except SlotbusError as error:
            self._source.missing(row, error)
            return None
        if tail.offset <= shown:
            return None
        self._shown[row.worker_id] = tail.offset
        self._joining.add(row.worker_id)
        return LogLines(
            worker_id=row.worker_id,
            job_id=row.job_id,
            run_id=row.run_id,
            offset=tail.offset,
            text=_last_bytes(tail.text, tail.offset - shown) if shown else tail.text,
        )

    async def _ask_node(self, row: WorkerRow, max_bytes: int) -> AgentLogsReply:
        if row.host:
            raise NoAnswer(
                f"the output of {row.worker_id} is where its pod is: "
                f"kubectl logs -l worker_id={row.worker_id}",
                node_id=row.node_id,
            )
        subject = self._subjects.agent(row.node_id, "logs")
        question = encode(AgentLogs(worker_id=row.worker_id, max_bytes=max_bytes))
        try:
            reply = await self._nc.request(subject, question, timeout=TAIL_TIMEOUT_S)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError) as error:
            raise NoAnswer(
                f"node {row.node_id} does not answer: the stored output of {row.worker_id} "
                "can't be had",
                node_id=row.node_id,
            ) from error
        except nats.errors.Error as error:
            raise link_error(error) from error
        refusal = error_from_body(reply.data)
        if refusal is not None:
            raise refusal
        return decode(reply.data, AgentLogsReply)


def _last_bytes(text: str, size: int) -> str:
    """The end of a text, at most ``size`` bytes of it, beginning with a whole letter."""
    raw = text.encode()
    return text if len(raw) <= size else raw[len(raw) - size :].decode(errors="ignore")
