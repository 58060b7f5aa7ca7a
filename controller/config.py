"""Configuration of slotbus's programs: what can be set, and from where it is read.

What lives here: ``ControllerConfig``, its checks, and the one loader for every program's
configuration (the agent's is in ``schedulers.node.config``). What may not: parsing of a
command line, and anything that acts on a setting.

A later source wins: defaults, a TOML file, the environment (``SLOTBUS_CFG_<NAME>``), flags.
"""

from __future__ import annotations

import difflib
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from events.connection import CONNECT_TIMEOUT_S, Access
from events.errors import Invalid
from events.ids import DEFAULT_EXPIRY_S, DEFAULT_HEARTBEAT_S, ENV_NAME_RE, Capacity, Id
from events.settings import (
    ConnectTimeout,
    CredsFile,
    Http,
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
    TlsKey,
    Token,
    User,
    WorkerCommand,
)
from events.subjects import Subjects

ENV_PREFIX: Final = "SLOTBUS_CFG_"
SERVER_ENV: Final = "NATS_URL"
"""What other NATS tools read; ``SLOTBUS_CFG_SERVER`` wins over it."""

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
DEFAULT_HTTP: Final = "127.0.0.1:9622"
HTTP_OFF: Final = "off"
LOG_MAX_BYTES: Final = 1024**3

SchedulerName = Literal["process", "node", "embedded", "manual"]
SlotNumber = Annotated[int, Meta(ge=1, le=1_000_000)]

C = TypeVar("C", bound=Struct)
Setting = object
"""A value as its source gives it: text from the environment, a TOML value, a flag's."""


class ControllerConfig(Struct, kw_only=True, frozen=True):
    """All that an operator can say about a controller. Times are in seconds."""

    server: NatsServer = DEFAULT_SERVER
    scheduler: Annotated[
        SchedulerName,
        Meta(
            description="process: workers on this machine; node: on agents; embedded: as tasks "
            "of the controller; manual: a person starts what is printed"
        ),
    ] = "process"
    root: Root = "slotbus"
    cluster: Annotated[Id, Meta(description="the cluster's name, in every worker's stamp")] = (
        "slotbus"
    )
    state_dir: StateDir = ""
    http: Http = None
    worker_command: WorkerCommand = []
    allow_job_command: Annotated[
        bool, Meta(description="whether a job may bring its own command")
    ] = True
    slots_per_process: Annotated[
        SlotNumber, Meta(description="the most slots of a worker, but for the node scheduler")
    ] = 16
    task_slots: Annotated[
        Capacity,
        Meta(description="slots of the controller's own node; the node scheduler has none"),
    ] = 1_000
    node_expiry_s: Annotated[
        PositiveSeconds, Meta(description="a node silent for longer than this has expired")
    ] = DEFAULT_EXPIRY_S
    heartbeat_s: Annotated[
        PositiveSeconds, Meta(description="how often agents are told to say that they live")
    ] = DEFAULT_HEARTBEAT_S
    start_timeout_s: Annotated[
        PositiveSeconds,
        Meta(description="by then all workers of a start are launched, or it has failed"),
    ] = 30.0
    launch_timeout_s: Annotated[
        PositiveSeconds, Meta(description="for the launch of one worker on one node")
    ] = 10.0
    stop_timeout_s: Annotated[
        PositiveSeconds,
        Meta(description="beyond a stop's grace; then it answers, with what is unconfirmed"),
    ] = 30.0
    lease_ttl_s: Annotated[
        int, Meta(ge=1, le=3_600, description="how long a dead leader is waited for")
    ] = 10
    shutdown_timeout_s: Annotated[
        PositiveSeconds, Meta(description="for an orderly end: what is under way may finish")
    ] = 10.0
    connect_timeout_s: ConnectTimeout = CONNECT_TIMEOUT_S
    audit: Annotated[
        bool,
        Meta(description="check the laws over the log while it grows, and say which is broken"),
    ] = True
    log_max_bytes: Annotated[
        int,
        Meta(ge=1024 * 1024, description="bytes of the event log at which nothing more is decided"),
    ] = LOG_MAX_BYTES
    replicas: Annotated[int, Meta(ge=1, le=5, description="of the streams, on a NATS cluster")] = 1
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    user: User = ""
    password: Password = ""
    token: Token = ""
    creds_file: CredsFile = ""
    nkey_file: NkeyFile = ""
    tls_ca: TlsCa = ""
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""

    def access(self) -> Access:
        """Who we are to the NATS server."""
        return access_of(self)

    def __repr__(self) -> str:
        """Names only what differs from the defaults, and no secret."""
        given = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value != getattr(_DEFAULTS, name)
        }
        shown = ", ".join(
            f"{name}=..." if name in _SECRETS else f"{name}={value!r}"
            for name, value in given.items()
        )
        return f"ControllerConfig({shown})"


_DEFAULTS: Final = ControllerConfig()
_SECRETS: Final = frozenset({"server", "user", "password", "token"})
"""``server`` too: an address may hold a password."""


def access_of(config: Struct) -> Access:
    """The fields of ``Access`` that a program's configuration has under the same names."""
    names = {field.name for field in msgspec.structs.fields(Access)}
    return Access(**{name: getattr(config, name) for name in names if hasattr(config, name)})


def check_controller(config: ControllerConfig) -> None:
    """The rules that a type can't say. Raises Invalid."""
    Subjects(config.root)
    if config.heartbeat_s >= config.node_expiry_s:
        raise Invalid(
            f"heartbeat_s is {config.heartbeat_s:g}, node_expiry_s {config.node_expiry_s:g}: "
            "a node must be able to send several heartbeats before it expires",
            path="heartbeat_s",
        )
    if config.http not in (None, HTTP_OFF):
        split_address(str(config.http))


def load_controller(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Setting] | None = None,
    also_known: frozenset[str] = frozenset(),
) -> ControllerConfig:
    """The controller's configuration; see ``load``. Raises Invalid."""
    return load(
        ControllerConfig,
        file=file,
        environ=environ,
        flags=flags,
        also_known=also_known,
        check=check_controller,
    )


def load(
    kind: type[C],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Setting] | None = None,
    also_known: frozenset[str] = frozenset(),
    check: Callable[[C], None] | None = None,
) -> C:
    """Reads a configuration of flat fields; a flag that is None was not given.

    ``also_known``: names that other programs read from the environment; they share it, so
    their variables are no mistakes here. Raises Invalid with ``path`` (the setting) and
    ``source`` (where its value came from).
    """
    layers = [
        (str(file), _from_file(file)) if file else ("", {}),
        ("the environment", _from_environ(kind, environ or {}, also_known)),
        ("a flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ]
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    hints = get_type_hints(kind, include_extras=True)
    for source, settings in layers:
        for name, value in settings.items():
            if name not in hints:
                raise _unknown(name, source, list(hints))
            values[name] = _read(value, hints[name], name, source)
            sources[name] = source
    config = _build(kind, values, sources)
    if check is not None:
        try:
            check(config)
        except Invalid as error:
            source = sources.get(error.path, "")
            raise Invalid(error.message, error.path, source=source) from error
    return config


def _build(kind: type[C], values: dict[str, object], sources: dict[str, str]) -> C:
    try:
        return kind(**values)
    except TypeError as error:
        missing = [
            field.name
            for field in msgspec.structs.fields(kind)
            if field.required and field.name not in values
        ]
        name = missing[0] if missing else "$"
        raise Invalid(
            f"{name} is needed: give --{name.replace('_', '-')} or {ENV_PREFIX}{name.upper()}",
            path=name,
            source=sources.get(name, ""),
        ) from error


def _from_file(file: Path) -> dict[str, Setting]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{file} can't be read: {error.strerror}", source=str(file)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not TOML: {error}", source=str(file)) from error


def _from_environ(
    kind: type[Struct], environ: Mapping[str, str], also_known: frozenset[str]
) -> dict[str, Setting]:
    known = {field.name for field in msgspec.structs.fields(kind)}
    found: dict[str, Setting] = {}
    if "server" in known and environ.get(SERVER_ENV):
        found["server"] = environ[SERVER_ENV]
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name in known:
            found[name] = value
        elif name not in also_known:
            near = difflib.get_close_matches(name, known, n=1)
            raise Invalid(
                f"{variable} sets nothing here"
                + (f", did you mean {ENV_PREFIX}{near[0].upper()}?" if near else ""),
                path=name,
                source="the environment",
            )
    return found


def _unknown(name: str, source: str, known: list[str]) -> Invalid:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    return Invalid(f"{source}: there is no setting {name!r}{hint}", path=name, source=source)


def _read(value: Setting, hint: object, name: str, source: str) -> object:
    """One setting as its field's type, from text too. Raises Invalid."""
    try:
        if isinstance(value, str):
            value = _from_text(value, hint)
        elif isinstance(value, tuple):  # what command-line parsers give for repeated flags
            value = list(value)
        return msgspec.convert(value, hint, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at `")[0]
        raise Invalid(f"{name} from {source}: {text}", path=name, source=source) from error
    except ValueError as error:
        raise Invalid(f"{name} from {source}: {error}", path=name, source=source) from error


def _from_text(text: str, hint: object) -> object:
    """Text for a list or a mapping: JSON, a shell's words, or ``k=v`` joined by commas.

    Raises ValueError.
    """
    origins = [get_origin(part) for part in (hint, *get_args(hint))]
    shape = next((origin for origin in origins if origin in (list, dict)), None)
    if shape is None:
        return text
    if text.lstrip().startswith("[" if shape is list else "{"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ValueError(f"not JSON that can be read: {error}") from error
    return shlex.split(text) if shape is list else parse_pairs(text)


def parse_pairs(text: str) -> dict[str, str]:
    """``zone=a,disk=ssd`` as a mapping. Raises ValueError."""
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, found, value = part.partition("=")
        if not found or not key:
            raise ValueError(f"{part!r} is not key=value")
        pairs[key] = value
    return pairs


class Address(Struct, frozen=True):
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int


def split_address(text: str) -> Address:
    """Reads ``HOST:PORT``, ``[V6]:PORT`` or ``:PORT`` (loopback). Raises Invalid."""
    host, found, port = text.rpartition(":")
    if not found or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise Invalid(f"{text!r} is not HOST:PORT", path="http")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def default_state_dir(environ: Mapping[str, str], program: str) -> Path:
    """Where a program keeps its state when nobody says: the XDG state directory."""
    base = environ.get("XDG_STATE_HOME", "")
    home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return home / "slotbus" / program


def env_name(name: str) -> str:
    """The variable that sets a field."""
    variable = f"{ENV_PREFIX}{name.upper()}"
    assert ENV_NAME_RE.match(variable), name
    return variable
