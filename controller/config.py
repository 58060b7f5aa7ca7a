"""Configuration of slotbus's programs: what can be set, and from where it is read.

What lives here: ``ControllerConfig`` and its checks (the agent's is in
``schedulers.node.config``). What may not: reading it (``controller.loading``), parsing of a
command line, and anything that acts on a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from controller.loading import ENV_PREFIX, Setting, load
from controller.recordsettings import FILE_BYTES, TOTAL_BYTES, RecordSettings
from events.connection import CONNECT_TIMEOUT_S, Access
from events.errors import Invalid
from events.ids import DEFAULT_EXPIRY_S, DEFAULT_HEARTBEAT_S, ENV_NAME_RE, Capacity, Id
from events.policies import BackoffSeconds, OnEnd, Restarting, RestartLimit, WindowSeconds
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
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.reading import read_config
from schedulers.masking import DEFAULT_RULES, Mask
from schedulers.packing import Packing

RESTARTING: Final = Restarting()

DEFAULT_HTTP: Final = "127.0.0.1:9622"
HTTP_OFF: Final = "off"
METRICS_NODES: Final = 10_000
LOG_MAX_BYTES: Final = 1024**3

SchedulerName = Literal["process", "node", "kubernetes", "embedded", "manual"]
SlotNumber = Annotated[int, Meta(ge=1, le=1_000_000)]


class ControllerConfig(Struct, kw_only=True, frozen=True):
    """All that an operator can say about a controller. Times are in seconds."""

    server: NatsServer = DEFAULT_SERVER
    scheduler: Annotated[
        SchedulerName,
        Meta(
            description="process: workers on this machine; node: on agents; kubernetes: as "
            "pods; embedded: as tasks of the controller; manual: a person starts what is printed"
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
    kubernetes: Annotated[
        dict[str, object],
        Meta(description="how pods are made and watched: a table of settings of its own"),
    ] = {}
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
    on_shortage: Annotated[
        Literal["fail", "wait"],
        Meta(description="for starts that don't say: refuse one without room, or let it wait"),
    ] = "fail"
    on_failure: Annotated[
        OnEnd,
        Meta(description="for starts that don't say: what a worker's failure leads to"),
    ] = "report"
    on_lost: Annotated[
        OnEnd,
        Meta(description="for starts that don't say: what the loss of a worker leads to"),
    ] = "report"
    on_drain: Annotated[
        Literal["move", "stop", ""],
        Meta(
            description="for starts that don't say: whether a drain moves or stops them; empty "
            "to move those that may be restarted"
        ),
    ] = ""
    restart_first_s: Annotated[
        BackoffSeconds, Meta(description="before the first restart; each further one waits double")
    ] = RESTARTING.first_s
    restart_longest_s: Annotated[
        BackoffSeconds, Meta(description="before a restart, at the most")
    ] = RESTARTING.longest_s
    restart_limit: Annotated[
        RestartLimit, Meta(description="restarts of a job within restart_window_s, at the most")
    ] = RESTARTING.limit
    restart_window_s: Annotated[
        WindowSeconds, Meta(description="in which the restarts of a job are counted")
    ] = RESTARTING.window_s
    restart_quiet_s: Annotated[
        WindowSeconds, Meta(description="a run this old begins with restart_first_s again")
    ] = RESTARTING.quiet_s
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
    record: Annotated[
        str, Meta(description="a folder for recordings of all that comes in; empty for none")
    ] = ""
    record_compress: Annotated[
        Packing, Meta(description="of recordings; zstd takes the least time and room")
    ] = Packing.GZIP
    record_file_bytes: Annotated[
        int,
        Meta(ge=4096, description="bytes of lines after which a recording goes on in another file"),
    ] = FILE_BYTES
    record_max_bytes: Annotated[
        int, Meta(ge=4096, description="bytes of recordings on the disk: the oldest files go first")
    ] = TOTAL_BYTES
    record_mask: Annotated[
        list[str],
        Meta(description="values that no recording shows, as paths below env_vars and program"),
    ] = msgspec.field(default_factory=lambda: list(DEFAULT_RULES))
    log_max_bytes: Annotated[
        int,
        Meta(ge=1024 * 1024, description="bytes of the event log at which nothing more is decided"),
    ] = LOG_MAX_BYTES
    log_keep_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="bytes of the event log beyond which its oldest records go, behind a "
            "snapshot; 0 for half of log_max_bytes",
        ),
    ] = 0
    archive: Annotated[
        str,
        Meta(description="a folder that has records before they go from the log; empty for none"),
    ] = ""
    snapshot_every: Annotated[
        int, Meta(ge=10, description="records from one snapshot of the ledger to the next")
    ] = 10_000
    snapshots_kept: Annotated[
        int, Meta(ge=2, le=100, description="newest snapshots that stay, whatever else goes")
    ] = 3
    replicas: Annotated[int, Meta(ge=1, le=5, description="of the streams, on a NATS cluster")] = 1
    metrics_nodes: Annotated[
        int,
        Meta(
            ge=0,
            description="nodes up to which each has series of its own on /metrics; where there "
            "are more, only the sums are shown",
        ),
    ] = METRICS_NODES
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
        return access_of(self)

    def pods(self, namespace: str = "") -> KubernetesConfig:
        """How pods are made; ``namespace``: where, if no setting says so. Raises Invalid."""
        if self.kubernetes.get("cluster", self.cluster) != self.cluster:
            raise Invalid(
                f"is {self.kubernetes['cluster']!r}, and the controller's is {self.cluster!r}: "
                "set cluster alone",
                path="kubernetes.cluster",
            )
        usual = {"namespace": namespace} if namespace else {}
        return read_config({**usual, **self.kubernetes, "cluster": self.cluster})

    @property
    def keeps_log_bytes(self) -> int:
        """Of the event log, before its oldest records go."""
        return self.log_keep_bytes or self.log_max_bytes // 2

    def recording(self) -> RecordSettings | None:
        """What is recorded where, if anything."""
        if not self.record:
            return None
        return RecordSettings(
            folder=Path(self.record).expanduser(),
            packing=self.record_compress,
            file_bytes=self.record_file_bytes,
            total_bytes=self.record_max_bytes,
            mask=tuple(self.record_mask),
        )

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
_SECRETS: Final = frozenset(
    {"server", "user", "password", "token", "creds_file", "nkey_file", "kubernetes"}
)
"""``server`` too: an address may hold a password; a reference the secret itself; and a pod's
environment anything."""


def access_of(config: Struct) -> Access:
    """The fields of ``Access`` that a program's configuration has under the same names."""
    names = {field.name for field in msgspec.structs.fields(Access)}
    return Access(**{name: getattr(config, name) for name in names if hasattr(config, name)})


def check_controller(config: ControllerConfig) -> None:
    """The rules that a type can't say. Raises Invalid."""
    Subjects(config.root)
    Mask(config.record_mask, b"")
    if config.heartbeat_s >= config.node_expiry_s:
        usual = config.heartbeat_s == _DEFAULTS.heartbeat_s
        raise Invalid(
            f"node_expiry_s is {config.node_expiry_s:g} and heartbeat_s {config.heartbeat_s:g}: a "
            "node must be able to send several heartbeats before it expires. Give a longer "
            f"--node-expiry, or set heartbeat_s to {config.node_expiry_s / 3:.2g} or less, by "
            f"{env_name('heartbeat_s')} or in a --config file",
            path="node_expiry_s" if usual else "heartbeat_s",
        )
    if config.log_keep_bytes > config.log_max_bytes:
        raise Invalid(
            f"log_keep_bytes is {config.log_keep_bytes}, log_max_bytes {config.log_max_bytes}: "
            "the log would be full before anything goes",
            path="log_keep_bytes",
        )
    if config.kubernetes or config.scheduler == "kubernetes":
        config.pods()
    if config.http not in (None, HTTP_OFF):
        split_address(str(config.http))


def load_controller(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Setting] | None = None,
    also_known: frozenset[str] = frozenset(),
    use_selected: bool = True,
) -> ControllerConfig:
    """The controller's configuration; see ``load``. Raises Invalid."""
    return load(
        ControllerConfig,
        file=file,
        environ=environ,
        flags=flags,
        also_known=also_known,
        check=check_controller,
        use_selected=use_selected,
    )


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
