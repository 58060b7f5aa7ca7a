"""What another backend is made of: a name, a launcher, and perhaps a node of its own.

What lives here: ``Backend`` and ``LocalNode``. What may not: any one backend
(``schedulers.process``, ``schedulers.node``).
"""

from __future__ import annotations

from msgspec import Struct

from schedulers.launcher import Launcher


class LocalNode(Struct, frozen=True, kw_only=True):
    """The one node of a backend without agents. ``listed``: its launcher can say what runs
    there; else nothing is concluded when a leader starts."""

    node_id: str
    task_slots: int
    incarnation: str
    machine_id: str = ""
    listed: bool = True


class Backend(Struct, frozen=True, kw_only=True):
    """What a backend adds: a launcher, and the node it is itself, if it has no agents."""

    name: str
    launcher: Launcher
    local: LocalNode | None = None
