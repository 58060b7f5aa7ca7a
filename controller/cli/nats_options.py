"""The options that say which NATS server, and who we are to it: the same for every command.

What lives here: the options, and ``with_nats``, which gives them to a command. What may not:
what they mean (``controller.loading``, ``controller.cli.finding``).

They are named as the nats command line names its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

PANEL: Final = "NATS"
_OURS: Final = {
    "creds": "creds_file",
    "nkey": "nkey_file",
    "tlsca": "tls_ca",
    "tlscert": "tls_cert",
    "tlskey": "tls_key",
    "tlsfirst": "tls_first",
}
"""Options that are named otherwise than the setting they fill."""


@dataclass(frozen=True)
class Nats:
    """What the options say; None: nothing."""

    server: str | None = None
    context: str | None = None
    root: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: str | None = None
    nkey: str | None = None
    tlsca: str | None = None
    tlscert: str | None = None
    tlskey: str | None = None
    tlsfirst: bool | None = None
    inbox_prefix: str | None = None

    def __repr__(self) -> str:
        return "Nats(...)"

    def settings(self) -> dict[str, object]:
        """What was said, by the names of the settings."""
        said = ((_OURS.get(name, name), value) for name, value in vars(self).items())
        return {name: value for name, value in said if value is not None}


NOTHING_SAID: Final = Nats()


def _text(metavar: str, text: str, name: str = "") -> Any:
    names = (name,) if name else ()
    return Annotated[
        str | None, typer.Option(*names, metavar=metavar, help=text, rich_help_panel=PANEL)
    ]


def _contexts(incomplete: str) -> list[str]:
    """Names of contexts, for the shell's completion."""
    import os

    from events.contexts import known_contexts

    return [name for name in known_contexts(os.environ) if name.startswith(incomplete)]


_OPTIONS: Final[dict[str, Any]] = {
    "server": _text(
        "URL",
        "NATS server; else NATS_URL, else a named context, else a running `slotbus up` (for "
        "what asks a cluster), else the selected context, else the local default.",
    ),
    "context": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Context of the nats command line, or a .json file; '' for none. Else "
            "NATS_CONTEXT.",
            rich_help_panel=PANEL,
            autocompletion=_contexts,
        ),
    ],
    "root": _text("SUBJECT", "Root of the subjects: one for each cluster (slotbus)."),
    "user": _text("NAME", "User, or a token where no password is given; else NATS_USER."),
    "password": _text("TEXT", "Password; better in NATS_PASSWORD, where `ps` shows it to nobody."),
    "token": _text("TEXT", "Token; better in NATS_TOKEN."),
    "creds": _text("FILE", "Credentials (JWT and seed); else NATS_CREDS."),
    "nkey": _text("FILE", "Seed of an nkey; else NATS_NKEY."),
    "tlsca": _text("FILE", "CA of the server's certificate; else NATS_CA."),
    "tlscert": _text("FILE", "Certificate of ours; else NATS_CERT."),
    "tlskey": _text("FILE", "Its key; else NATS_KEY."),
    "tlsfirst": Annotated[
        bool | None,
        typer.Option("--tlsfirst", help="TLS before the server's greeting.", rich_help_panel=PANEL),
    ],
    "inbox_prefix": _text(
        "SUBJECT", "Listen for answers below this (_INBOX).", name="--inbox-prefix"
    ),
}


def with_nats(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which takes ``nats: Nats``, as typer wants it: with each option by itself."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for name, each in signature.parameters.items() if name != "nats"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]

    def run(**values: Any) -> None:
        said = {name: values.pop(name) for name in _OPTIONS}
        command(**values, nats=Nats(**said))

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + added
    made: Any = functools.update_wrapper(run, command)
    made.__signature__ = signature.replace(parameters=parameters)
    made.__annotations__ = {each.name: each.annotation for each in parameters}
    del made.__wrapped__  # typer would read its signature instead
    return run
