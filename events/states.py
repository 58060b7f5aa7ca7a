"""The life cycles of worker, run and node as transition tables.

What lives here: the states, what may happen in each, and the one error that says both.
What may not: why something happens (that is decided in ``schedulers.decide``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar


class WorkerState(StrEnum):
    """``lost``: its node is silent, or it vanished without an exit code."""

    ASSIGNED = "assigned"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"


class RunState(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class NodeState(StrEnum):
    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    EXPIRED = "expired"


class IllegalTransition(Exception):
    """A fact that can't follow the state it meets; says both."""

    def __init__(self, kind: str, who: str, state: str, happening: str) -> None:
        super().__init__(f"{kind} {who} is {state}: {happening} can't happen to it")


W, R, N = WorkerState, RunState, NodeState

WORKER_TABLE: Final[dict[tuple[WorkerState, str], frozenset[WorkerState]]] = {
    (W.ASSIGNED, "worker_launched"): frozenset({W.RUNNING}),
    (W.STOPPING, "worker_launched"): frozenset({W.STOPPING}),
    (W.ASSIGNED, "worker_stopping"): frozenset({W.STOPPING}),
    (W.RUNNING, "worker_stopping"): frozenset({W.STOPPING}),
    (W.STOPPING, "worker_stopping"): frozenset({W.STOPPING}),
    (W.LOST, "worker_stopping"): frozenset({W.STOPPING}),
    (W.ASSIGNED, "worker_lost"): frozenset({W.LOST}),
    (W.RUNNING, "worker_lost"): frozenset({W.LOST}),
    (W.LOST, "worker_returned"): frozenset({W.RUNNING}),
    (W.ASSIGNED, "worker_ended"): frozenset({W.FINISHED, W.FAILED, W.LOST}),
    (W.RUNNING, "worker_ended"): frozenset({W.FINISHED, W.FAILED, W.LOST}),
    (W.STOPPING, "worker_ended"): frozenset({W.FINISHED, W.FAILED, W.LOST}),
    (W.LOST, "worker_ended"): frozenset({W.FINISHED, W.FAILED, W.LOST}),
}

RUN_TABLE: Final[dict[tuple[RunState, str], frozenset[RunState]]] = {
    (R.WAITING, "run_waiting"): frozenset({R.WAITING}),
    (R.WAITING, "run_placed"): frozenset({R.STARTING}),
    (R.STARTING, "run_running"): frozenset({R.RUNNING}),
    (R.WAITING, "run_stopping"): frozenset({R.STOPPING}),
    (R.STARTING, "run_stopping"): frozenset({R.STOPPING}),
    (R.RUNNING, "run_stopping"): frozenset({R.STOPPING}),
    (R.STOPPING, "run_stopping"): frozenset({R.STOPPING}),
    (R.WAITING, "run_ended"): frozenset({R.STOPPED, R.FAILED}),
    (R.STARTING, "run_ended"): frozenset({R.FAILED}),
    (R.RUNNING, "run_ended"): frozenset({R.FINISHED, R.FAILED}),
    (R.STOPPING, "run_ended"): frozenset({R.STOPPED, R.FAILED}),
}

NODE_TABLE: Final[dict[tuple[NodeState, str], frozenset[NodeState]]] = {
    (N.READY, "node_expired"): frozenset({N.EXPIRED}),
    (N.CORDONED, "node_expired"): frozenset({N.EXPIRED}),
    (N.DRAINING, "node_expired"): frozenset({N.EXPIRED}),
    (N.EXPIRED, "node_returned"): frozenset({N.READY, N.CORDONED, N.DRAINING}),
    (N.READY, "node_cordoned"): frozenset({N.CORDONED}),
    (N.DRAINING, "node_cordoned"): frozenset({N.CORDONED}),
    (N.READY, "node_draining"): frozenset({N.DRAINING}),
    (N.CORDONED, "node_draining"): frozenset({N.DRAINING}),
    (N.DRAINING, "node_draining"): frozenset({N.DRAINING}),
    (N.EXPIRED, "node_confirmed_dead"): frozenset({N.EXPIRED}),
    (N.CORDONED, "node_uncordoned"): frozenset({N.READY}),
    (N.DRAINING, "node_uncordoned"): frozenset({N.READY}),
    (N.EXPIRED, "node_cordoned"): frozenset({N.EXPIRED}),
    (N.EXPIRED, "node_draining"): frozenset({N.EXPIRED}),
    (N.EXPIRED, "node_uncordoned"): frozenset({N.EXPIRED}),
}

S = TypeVar("S", WorkerState, RunState, NodeState)


def step(
    table: dict[tuple[S, str], frozenset[S]],
    who: str | tuple[str, int],
    state: S,
    happening: str,
    target: S,
) -> S:
    """The target state, if the table lets ``happening`` lead there from ``state``. ``who``:
    its id; a run's are job_id and run_id.

    Raises IllegalTransition.
    """
    allowed = table.get((state, happening))
    if allowed is None or target not in allowed:
        kind = type(state).__name__.removesuffix("State").lower()
        name = who if isinstance(who, str) else "{}/{}".format(*who)
        raise IllegalTransition(kind, name, f"{state} (asked to be {target})", happening)
    return target


WORKER_ENDED: Final = frozenset({W.FINISHED, W.FAILED})
"""States without return; ``lost`` ends too once the worker is provably gone."""

RUN_ENDED: Final = frozenset({R.FINISHED, R.FAILED, R.STOPPED})

# On Python 3.11 it takes 0.1 us to find a member through its class, and folding a fact looks
# at several; these are for folding.
NODE_READY: Final = N.READY
NODE_CORDONED: Final = N.CORDONED
NODE_DRAINING: Final = N.DRAINING
NODE_EXPIRED: Final = N.EXPIRED
RUN_WAITING: Final = R.WAITING
RUN_STARTING: Final = R.STARTING
RUN_RUNNING: Final = R.RUNNING
RUN_STOPPING: Final = R.STOPPING
WORKER_ASSIGNED: Final = W.ASSIGNED
WORKER_RUNNING: Final = W.RUNNING
WORKER_STOPPING: Final = W.STOPPING
WORKER_LOST: Final = W.LOST
WORKER_FAILED: Final = W.FAILED
