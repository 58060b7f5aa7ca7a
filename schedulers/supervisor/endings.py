"""How a worker's end is told: its state and a sentence that says why.

What lives here: pure words about an exit. What may not: processes.
"""

from __future__ import annotations

import signal

from msgspec import Struct

from events.states import WorkerState
from schedulers.supervisor.journal import Ended
from schedulers.supervisor.state import Worker


class Exit(Struct, frozen=True):
    """How a process ended: by itself with ``code``, or by ``signal``; neither: unknown."""

    code: int | None = None
    signal: int | None = None


def how_it_ended(worker: Worker, end: Exit, *, killed: bool, adopted: bool) -> Ended:
    """``killed``: the grace was over; ``adopted``: an earlier supervisor had started it."""
    parts = []
    stopping = worker.stopping
    if stopping is not None:
        parts.append(stopping.reason)
        if killed:
            grace = f" after a grace of {stopping.grace_s:g} s" if stopping.grace_s else ""
            parts.append(f"killed{grace}")
    elif end.signal is not None:
        parts.append(f"killed by {_signal_name(end.signal)}")
    elif end.code:
        parts.append(f"exit code {end.code}")
    if end.code is None and end.signal is None:
        parts.append(f"its exit code is unknown: {_why_unknown(worker, adopted)}")
    return Ended(
        worker_id=worker.born.worker_id,
        state=_state(worker, end),
        exit_code=end.code,
        signal=end.signal,
        reason="; ".join(parts),
    )


def _state(worker: Worker, end: Exit) -> WorkerState:
    if worker.stopping is not None:
        return WorkerState.FINISHED if worker.stopping.asked else WorkerState.LOST
    if end.code is None and end.signal is None:
        return WorkerState.LOST
    return WorkerState.FINISHED if end.code == 0 else WorkerState.FAILED


def _why_unknown(worker: Worker, adopted: bool) -> str:
    if not adopted:
        return "another part of this program took it"
    if worker.process is None:
        return "the supervisor that was starting it died"
    return "the supervisor that started it died"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
