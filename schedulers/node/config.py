"""Configuration of an agent: what can be set, and what follows from it.

What lives here: ``AgentConfig`` and its checks. What may not: reading it from files, the
environment or flags (``controller.config`` does that for every program).
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from events.connection import CONNECT_TIMEOUT_S, Access
from events.errors import Invalid
from events.ids import ID_RE, Capacity
from events.settings import (
    DEFAULT_SERVER,
    ConnectTimeout,
    Context,
    CredsFile,
    Http,
    InboxPrefix,
    LogFormat,
    LogLevel,
    NatsServer,
    NkeyFile,
    Password,
    PositiveSeconds,
    Root,
    StateDir,
    TlsCa,
    TlsCert,
    TlsFirst,
    TlsKey,
    Token,
    User,
    WorkerCommand,
)
from events.subjects import Subjects


class AgentConfig(Struct, kw_only=True, frozen=True):
    """All that an operator can say about an agent. Times are in seconds."""

    server: NatsServer = DEFAULT_SERVER
    root: Root = "slotbus"
    node_id: Annotated[
        str,
        Meta(description="1 to 128 of letters, digits, `_` and `-`; empty: the host's name"),
    ] = ""
    slots: Annotated[Capacity, Meta(description="what the node offers")] = 16
    labels: Annotated[
        dict[str, str], Meta(description="for the `selector` of a job; as text `k=v`, by commas")
    ] = {}
    state_dir: StateDir = ""
    worker_command: WorkerCommand = []
    addr: Annotated[
        str, Meta(description="where the node is, shown to people; empty: the host's name")
    ] = ""
    machine_id: Annotated[
        str,
        Meta(
            description="keeps agents of one node_id on different machines apart; "
            "empty: the machine's own"
        ),
    ] = ""
    http: Http = None
    stop_workers_on_exit: Annotated[
        bool, Meta(description="workers end with the agent instead of staying with the supervisor")
    ] = False
    exit_grace_s: Annotated[
        PositiveSeconds, Meta(description="what they then get between TERM and KILL")
    ] = 10.0
    connect_timeout_s: ConnectTimeout = CONNECT_TIMEOUT_S
    request_timeout_s: Annotated[
        PositiveSeconds, Meta(description="for the controller's answers")
    ] = 5.0
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    context: Context = ""
    user: User = ""
    password: Password = ""
    token: Token = ""
    creds_file: CredsFile = ""
    nkey_file: NkeyFile = ""
    tls_ca: TlsCa = ""
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""
    tls_first: TlsFirst = False
    inbox_prefix: InboxPrefix = ""

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
