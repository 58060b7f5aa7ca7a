"""What people see: tables, sentences and errors, on a terminal or in a pipe.

What lives here: the look of answers. What may not: asking for them.

On a terminal rich draws (and respects NO_COLOR); into a pipe go plain columns, which no
width cuts off, and colours only where FORCE_COLOR asks for them. Text from elsewhere never
reaches the terminal with control characters.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

from controller.colours import shows_colours
from events.errors import Fact, SlotbusError
from events.messages import ConfirmDeadReply, DrainReply, NodeReply, StartReply, StopReply
from events.queries import JobRow, NodeRow, ShortageReply, WorkerRow
from events.states import NodeState, RunState, WorkerState

if TYPE_CHECKING:
    from rich.status import Status

GAP: Final = "  "
LAST_COLUMN: Final = 24
"""A last column narrower than this is not worth folding into."""

_GOOD: Final = frozenset({WorkerState.RUNNING, RunState.RUNNING, NodeState.READY})
_BAD: Final = frozenset({WorkerState.FAILED, WorkerState.LOST, RunState.FAILED, NodeState.EXPIRED})


def clean(text: str) -> str:
    """The text with control characters spelled out, so that nobody draws on our screen."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def write(text: str) -> None:
    """One or more lines on standard output."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def write_body(body: bytes) -> None:
    """A reply, byte for byte, and a line's end."""
    sys.stdout.flush()
    sys.stdout.buffer.write(body + b"\n")
    sys.stdout.buffer.flush()


def warn(text: str) -> None:
    """A line on standard error that is no error."""
    sys.stderr.write(f"warning: {clean(text)}\n")
    sys.stderr.flush()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows under heads; nothing cuts a cell where the output is no terminal."""
    cells = [[clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(heads, cells)
        return
    widths = [max(len(row[at]) for row in [list(heads), *cells]) for at in range(len(heads))]
    for row in [list(heads), *cells]:
        write(_plain_row(row, widths))


def _plain_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Columns without spaces at the line's end."""
    last = max((at for at, cell in enumerate(cells) if cell), default=0)
    padded = zip(cells[:last], widths, strict=False)
    parts = [coloured(cell, _level(cell)) + " " * (width - len(cell)) for cell, width in padded]
    return GAP.join([*parts, coloured(cells[last], _level(cells[last]))])


def _rich_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for at, head in enumerate(heads):
        last = at == len(heads) - 1
        drawn.add_column(head, no_wrap=not last, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style=_STYLES.get(_level(cell), "")) for cell in row))
    Console(width=max(Console().width, _least_width(heads, rows))).print(drawn)


def _least_width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Ids stay in one piece, to be copied; only the last column folds."""
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    return sum(widths[:-1]) + min(widths[-1], LAST_COLUMN) + len(GAP) * len(heads)


def _level(cell: str) -> str:
    return "ok" if cell in _GOOD else "bad" if cell in _BAD else ""


_STYLES: Final = {"ok": "green", "bad": "red"}
_COLOURS: Final = {"ok": 32, "note": 36, "unknown": 36, "warning": 33, "bad": 31}


def coloured(text: str, level: str) -> str:
    """The text in the colour of a level, where standard output shows colours."""
    code = _COLOURS.get(level)
    shown = code is not None and shows_colours(sys.stdout)
    return f"\x1b[{code}m{text}\x1b[0m" if shown else text


def local_time(when: datetime) -> str:
    """A time as people here read it, to the second; without the date if it is today's."""
    local = when.astimezone()
    today = local.date() == datetime.now(UTC).astimezone().date()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M:%S}"


def print_start(reply: StartReply) -> None:
    for warning in reply.warnings:
        warn(warning)
    slots = sum(worker.slots for worker in reply.workers)
    write(f"{reply.job_id} run {reply.run_id}: {slots} slots, {len(reply.workers)} workers")
    rows = [(worker.worker_id, worker.node_id, str(worker.slots)) for worker in reply.workers]
    table(("WORKER", "NODE", "SLOTS"), rows)


def print_stop(reply: StopReply) -> None:
    for warning in reply.warnings:
        warn(warning)
    write(f"{reply.job_id}: {len(reply.workers)} workers stopped")
    for worker_id in reply.workers:
        write(f"  {clean(worker_id)}")


def unconfirmed_line(reply: StopReply) -> None:
    """Why a stop is no success although it was answered."""
    sys.stdout.flush()
    sys.stderr.write(
        f"error unconfirmed: {len(reply.unconfirmed)} workers are on nodes that do not answer; "
        f"they keep their slots until they are seen gone: {', '.join(reply.unconfirmed)}\n"
    )
    sys.stderr.flush()


def print_node(reply: NodeReply) -> None:
    for warning in reply.warnings:
        warn(warning)
    write(f"{reply.node_id} is {reply.state}")


def print_drain(reply: DrainReply) -> None:
    for warning in reply.warnings:
        warn(warning)
    write(drain_line(reply) + (f" ({reply.reason})" if reply.reason else ""))
    for run in reply.moved:
        onto = "no run yet" if run.to_run is None else f"run {run.to_run}"
        write(f"  {clean(run.job_id)} run {run.run_id} moved: {onto}, {run.state}")
    for worker_id in reply.stopped:
        write(f"  {clean(worker_id)} stopped")
    if reply.remaining:
        rows = [
            (left.worker_id, left.job_id, str(left.run_id), str(left.slots), left.reason)
            for left in reply.remaining
        ]
        table(("REMAINING", "JOB", "RUN", "SLOTS", "REASON"), rows)


def drain_line(reply: DrainReply) -> str:
    """How far a drain has come."""
    if reply.complete:
        return f"{reply.node_id} is empty, and {reply.state}"
    reasons = Counter(left.reason for left in reply.remaining)
    told = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(3))
    return f"{reply.node_id} is {reply.state}: {reply.remaining_count} workers remain ({told})"


def print_dead(reply: ConfirmDeadReply) -> None:
    for warning in reply.warnings:
        warn(warning)
    write(f"{reply.node_id}: {reply.count} workers count as gone")
    for worker_id in reply.workers:
        write(f"  {clean(worker_id)}")


def shortage_table(reply: ShortageReply) -> None:
    heads = ("JOB", "RUN", "SLOTS", "MISSING", "PRIORITY", "SINCE", "UNTIL", "SELECTOR", "REASON")
    write(f"{len(reply.waiting)} wait, {reply.missing} slots are missing")
    table(
        heads,
        [
            (
                row.job_id,
                str(row.run_id),
                str(row.slots),
                str(row.missing),
                str(row.priority),
                local_time(row.since),
                "" if row.not_after is None else local_time(row.not_after),
                ",".join(f"{key}={value}" for key, value in sorted(row.selector.items())),
                _why_waiting(row.reason, row.not_before),
            )
            for row in reply.waiting
        ],
    )


def _why_waiting(reason: str, not_before: datetime | None) -> str:
    return reason if not_before is None else f"not before {local_time(not_before)}: {reason}"


def worker_table(workers: Sequence[WorkerRow]) -> None:
    heads = ("WORKER", "JOB", "RUN", "NODE", "SLOTS", "STATE", "SINCE", "PID", "EXIT", "REASON")
    table(
        heads,
        [
            (
                row.worker_id,
                row.job_id,
                str(row.run_id),
                f"{row.node_id}/{row.host}" if row.host else row.node_id,
                str(row.slots),
                row.state,
                local_time(row.since),
                "" if row.pid is None else str(row.pid),
                _exit_of(row),
                row.reason,
            )
            for row in workers
        ],
    )


def _exit_of(row: WorkerRow) -> str:
    if row.signal is not None:
        return f"signal {row.signal}"
    return "" if row.exit_code is None else str(row.exit_code)


def job_table(jobs: Sequence[JobRow]) -> None:
    heads = ("JOB", "RUN", "STATE", "SLOTS", "WORKERS", "SINCE", "NAME", "REASON")
    table(
        heads,
        [
            (
                row.job_id,
                str(row.run_id),
                row.state,
                str(row.slots),
                str(row.workers),
                local_time(row.since),
                row.name,
                _why_waiting(row.reason, row.not_before),
            )
            for row in jobs
        ],
    )


def node_table(nodes: Sequence[NodeRow]) -> None:
    heads = ("NODE", "STATE", "FREE", "USED", "SLOTS", "HEARD", "LABELS", "ADDRESS", "VERSION")
    table(
        heads,
        [
            (
                row.node_id,
                row.state,
                str(row.free_slots),
                str(row.scheduled_slots),
                str(row.registered_slots),
                "" if row.heartbeat_age_s is None else f"{row.heartbeat_age_s:.0f} s ago",
                ",".join(f"{key}={value}" for key, value in sorted(row.labels.items())),
                row.addr,
                row.version,
            )
            for row in nodes
        ],
    )


def error_line(error: SlotbusError) -> None:
    """``error CODE: sentence (facts)`` on standard error, longer facts on lines of their
    own."""
    short: list[str] = []
    long: list[str] = []
    for name, value in error.facts.items():
        if isinstance(value, dict):
            long.extend(f"  {clean(f'{key}: {text}')}" for key, text in value.items())
        elif value not in (None, "", []) and str(value) not in error.message:
            short.append(f"{name}={_shown(value)}")
    facts = f" ({', '.join(short)})" if short else ""
    lines = [f"error {error.code}: {clean(error.message + facts)}", *long]
    sys.stdout.flush()
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def _shown(value: Fact) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


class Progress:
    """What is waited for, on standard error: alive on a terminal, else a line when it
    takes a turn worth a line."""

    def __init__(self, status: Status | None, stream: TextIO) -> None:
        self._status = status
        self._stream = stream
        self._said: set[str] = set()

    def pause(self) -> None:
        """Leaves the terminal to what is printed next."""
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """What is waited for now."""
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(clean(text)))
        elif text not in self._said:
            self._said.add(text)
            self._stream.write(f"{clean(text)}\n")
            self._stream.flush()


@contextlib.contextmanager
def progress(what: str) -> Generator[Progress]:
    """Shows that ``what`` is waited for; says nothing of it into a pipe."""
    if not sys.stderr.isatty():
        yield Progress(None, sys.stderr)
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(clean(what))) as status:
        yield Progress(status, sys.stderr)
