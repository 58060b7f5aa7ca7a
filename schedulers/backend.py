"""What another backend is made of: a name, a launcher, and perhaps a node of its own.

What lives here: ``Backend``, ``LocalNode``, ``Measure``. What may not: any one backend
(``schedulers.process``, ``schedulers.node``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from events.messages import StartPipelineReq
from schedulers.launcher import Launcher

AT_ONCE: Final = 64
"""Tries under way on one node at the same time; the others wait, those of other nodes
don't: a silent node holds up nobody else."""

TRY_S: Final = 3.0
"""Deadline of one try, in seconds."""


class LocalNode(Struct, frozen=True, kw_only=True):
    """The one node of a backend without agents. ``listed``: its launcher can say what runs
    there; else nothing is concluded when a leader starts."""

    node_id: str
    task_slots: int
    incarnation: str
    machine_id: str = ""
    listed: bool = True


class Value(Struct, frozen=True):
    """A number, and the values of its labels."""

    number: float
    labels: dict[str, str] = {}


class Measure(Struct, frozen=True, kw_only=True):
    """A series of a backend's own, for metrics. ``labels``: their names, which every value
    has; ``grows``: it is a count since the backend was made."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    values: list[Value]
    grows: bool = False


class Backend(Struct, frozen=True, kw_only=True):
    """What a backend adds: a launcher, and the node it is itself, if it has no agents.

    ``check(request)``: pure, raises Invalid for a start that it can't carry out, before it is
    accepted. ``failing()``: what is wrong with its way to the outside, "" for nothing.
    ``measures()``: what it counts itself.
    ``at_once``, ``try_s``: how many tries may be under way on a node, and how long one takes.
    """

    name: str
    launcher: Launcher
    local: LocalNode | None = None
    check: Callable[[StartPipelineReq], None] | None = None
    failing: Callable[[], str] | None = None
    measures: Callable[[], list[Measure]] | None = None
    at_once: int = AT_ONCE
    try_s: float = TRY_S
