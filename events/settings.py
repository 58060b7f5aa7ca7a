"""Settings that several programs share, each with the one description it has.

What lives here: annotated types for the fields of configurations. What may not: settings of
one program alone, and reading any of them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
"""Where NATS is by itself."""

PositiveSeconds = Annotated[float, Meta(gt=0, le=86_400)]

NatsServer = Annotated[str, Meta(description="NATS addresses, joined by commas")]
Root = Annotated[
    str,
    Meta(description="of all subjects, streams and buckets; several clusters can share one NATS"),
]
StateDir = Annotated[str, Meta(description="where state is kept; empty: per user")]
Http = Annotated[
    str | None,
    Meta(
        description="HOST:PORT of `/metrics`, `/healthz` and `/readyz`, `off` for none; "
        "null: on loopback, another port where the usual one is taken"
    ),
]
WorkerCommand = Annotated[
    list[str],
    Meta(
        description="what a worker runs where its job does not say; "
        "text is split like a shell's words"
    ),
]
ConnectTimeout = Annotated[
    PositiveSeconds,
    Meta(description="for the first connection; afterwards it is made again for ever"),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], Meta(description="the least that is logged")
]
LogFormat = Annotated[
    Literal["auto", "json", "console"],
    Meta(description="auto: columns on a terminal, else JSON"),
]
Context = Annotated[
    str,
    Meta(
        description="a context of the nats command line, by name or file; empty: the selected "
        "one, where nothing else says which server"
    ),
]
InboxPrefix = Annotated[
    str, Meta(description="below which answers are listened for; empty: `_INBOX`")
]
User = Annotated[str, Meta(description="who it is to NATS")]
Password = Annotated[str, Meta(description="of that user")]
Token = Annotated[str, Meta(description="instead of a user and a password")]
CredsFile = Annotated[
    str, Meta(description="credentials (JWT and seed): a file, `env://NAME` or `data:`")
]
NkeyFile = Annotated[str, Meta(description="the seed of an nkey: a file, `env://NAME` or `data:`")]
TlsCa = Annotated[str, Meta(description="a file of certificates that the server's is checked by")]
TlsCert = Annotated[str, Meta(description="a file with the own certificate")]
TlsKey = Annotated[str, Meta(description="a file with the key of the own certificate")]
TlsFirst = Annotated[bool, Meta(description="the TLS handshake comes before the server's greeting")]
