"""Configuration of an agent: what can be set, and what follows from it.

What lives here: ``AgentConfig`` and its checks. What may not: reading it from files, the
environment or flags (``controller.config`` does that for every program).
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from events.connection import CONNECT_TIMEOUT_S, Access
from events.errors import Invalid
from events.ids import ID_RE, Capacity
from events.subjects import Subjects

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
PositiveSeconds = Annotated[float, Meta(gt=0, le=86_400)]


class AgentConfig(Struct, kw_only=True, frozen=True):
    """All that an operator can say about an agent. Times are in seconds.

    ``server``: NATS addresses joined by commas. ``node_id``: empty means the host's name.
    ``slots``: what the node offers. ``state_dir``: where its supervisor lives, of this node
    alone; empty means a folder under the user's state directory. ``worker_command``: what a
    worker runs where its job does not say. ``addr``: what the node tells others about where
    it is; empty means the host's name. ``machine_id``: agents of one node_id on different
    machines are kept apart by it; empty means the machine's own. ``http``: HOST:PORT of the
    operators' pages, ``off`` for none. ``stop_workers_on_exit``: workers end with the agent
    instead of staying with the supervisor; ``exit_grace_s`` is what they then get between
    TERM and KILL.
    """

    server: str = DEFAULT_SERVER
    root: str = "slotbus"
    node_id: str = ""
    slots: Capacity = 16
    labels: dict[str, str] = {}
    state_dir: str = ""
    worker_command: list[str] = []
    addr: str = ""
    machine_id: str = ""
    http: str | None = None
    stop_workers_on_exit: bool = False
    exit_grace_s: PositiveSeconds = 10.0
    connect_timeout_s: PositiveSeconds = CONNECT_TIMEOUT_S
    request_timeout_s: PositiveSeconds = 5.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    user: str = ""
    password: str = ""
    token: str = ""
    creds_file: str = ""
    nkey_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def access(self) -> Access:
        """Who we are to the NATS server."""
        names = (field.name for field in msgspec.structs.fields(Access))
        return Access(**{name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        return f"AgentConfig(node_id={self.node_id!r}, slots={self.slots})"


def check_agent(config: AgentConfig) -> None:
    """The rules that a type can't say. Raises Invalid."""
    Subjects(config.root)
    node_id_of(config)
    if any("\0" in word for word in config.worker_command):
        raise Invalid("a null byte can't be passed to a worker", path="worker_command")


def node_id_of(config: AgentConfig) -> str:
    """The configured node_id, else the host's name with what is not allowed as ``-``.

    Raises Invalid.
    """
    node_id = config.node_id or re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:128]
    if not ID_RE.match(node_id):
        raise Invalid(
            f"{node_id!r} is not 1 to 128 of letters, digits, _ and -; say --node-id",
            path="node_id",
        )
    return node_id


def state_dir_of(config: AgentConfig) -> Path:
    """The configured state directory, else this node's own under the user's."""
    if config.state_dir:
        return Path(config.state_dir)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "slotbus" / f"agent-{node_id_of(config)}"
