"""Which NATS server a command talks to, and as whom.

What lives here: the client's settings, and the note by which a running ``slotbus up`` is
found. What may not: connecting.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct, structs

from controller.config import ControllerConfig, access_of
from controller.loading import Setting, load
from events.asking import Patience
from events.connection import CONNECT_TIMEOUT_S, Access
from events.settings import (
    DEFAULT_SERVER,
    ConnectTimeout,
    Context,
    CredsFile,
    InboxPrefix,
    NatsServer,
    NkeyFile,
    Password,
    Root,
    TlsCa,
    TlsCert,
    TlsFirst,
    TlsKey,
    Token,
    User,
)
from events.subjects import Subjects
from schedulers.node.config import AgentConfig

NOTE_SUFFIX: Final = ".up"


class ClientConfig(Struct, kw_only=True, frozen=True):
    """What ``SLOTBUS_CFG_*`` and flags say to a client. ``server`` empty: look for one."""

    server: NatsServer = ""
    root: Root = "slotbus"
    connect_timeout_s: ConnectTimeout = CONNECT_TIMEOUT_S
    patience_s: Annotated[
        float,
        Meta(ge=0, le=86_400, description="how long a controller is waited for where none answers"),
    ] = Patience().absent_s
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
        return access_of(self)


def as_client(config: Struct) -> ClientConfig:
    """What another program's configuration says of the server and of who we are to it."""
    names = {field.name for field in structs.fields(ClientConfig)}
    return ClientConfig(**{name: getattr(config, name) for name in names if hasattr(config, name)})


def settings_of_others(kind: type[Struct]) -> frozenset[str]:
    """Names that other programs read from the environment they share with this one."""
    kinds = (ControllerConfig, AgentConfig, ClientConfig)
    names = {field.name for each in kinds for field in structs.fields(each)}
    return frozenset(names - {field.name for field in structs.fields(kind)})


def client_config(
    flags: Mapping[str, Setting] | None = None, environ: Mapping[str, str] = os.environ
) -> ClientConfig:
    """The client's settings, with a server in any case: what is said (by a flag, a variable
    or a named context), else a running ``slotbus up``, else the selected context, else the
    local default. Raises Invalid."""
    also_known = settings_of_others(ClientConfig)

    def loaded(*, use_selected: bool) -> ClientConfig:
        return load(
            ClientConfig,
            environ=environ,
            flags=flags,
            also_known=also_known,
            use_selected=use_selected,
        )

    config = loaded(use_selected=False)
    running = None if config.server else find_up(environ)
    if running is not None:
        root_said = config.root != ClientConfig().root
        root = config.root if root_said else running.root
        config = structs.replace(config, server=running.server, root=root)
    else:
        config = loaded(use_selected=True)
    Subjects(config.root)
    return config if config.server else structs.replace(config, server=DEFAULT_SERVER)


class RunningUp(Struct, frozen=True):
    """A ``slotbus up`` that runs: its server, when it started in wall-clock seconds, and the
    root of its subjects."""

    server: str
    started: float
    root: str = "slotbus"


def notes_dir(environ: Mapping[str, str]) -> Path:
    """Where this user's running ``slotbus up`` leave their notes."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.access(runtime, os.W_OK):
        return Path(runtime) / "slotbus"
    state = environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return home / "slotbus" / "running"


@contextlib.contextmanager
def leave_note(
    server: str,
    started: float,
    environ: Mapping[str, str] = os.environ,
    *,
    root: str = "slotbus",
) -> Generator[Path]:
    """Lets other commands of this user find ``server`` while the block runs.

    The note is locked as long as we live: a note without its lock is of a process that
    was killed, whatever its pid is used for today. Raises OSError.
    """
    folder = notes_dir(environ)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{os.getpid()}{NOTE_SUFFIX}"
    unready = path.with_suffix(".new")
    with unready.open("w") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        note.write(json.dumps({"server": server, "started": started, "root": root}))
        note.flush()
        unready.rename(path)  # locked before anyone can find it
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def find_up(environ: Mapping[str, str] = os.environ) -> RunningUp | None:
    """The ``slotbus up`` of this user that was started last and still runs."""
    found = [up for path in notes_dir(environ).glob(f"*{NOTE_SUFFIX}") if (up := _read(path))]
    return max(found, key=lambda up: up.started, default=None)


def _read(path: Path) -> RunningUp | None:
    try:
        with path.open() as note:
            try:
                fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                fields = json.loads(note.read())
                root = str(fields.get("root", "slotbus"))
                return RunningUp(str(fields["server"]), float(fields["started"]), root)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        path.unlink()
    return None
