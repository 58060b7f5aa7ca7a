"""Contexts of the nats command line: named settings in files that NATS's users have already.

What lives here: finding and reading them, and what their fields mean to us. What may not:
which other settings win over them (``controller.config``), and writing them.

    $XDG_CONFIG_HOME/nats/context/NAME.json     (or ~/.config/nats/...)
    $XDG_CONFIG_HOME/nats/context.txt           the name of the selected one
"""

from __future__ import annotations

import base64
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from events.errors import Invalid
from events.settings import DEFAULT_SERVER

_MEANT: Final = {
    "url": "server",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds_file",
    "nkey": "nkey_file",
    "cert": "tls_cert",
    "key": "tls_key",
    "ca": "tls_ca",
    "tls_first": "tls_first",
    "inbox_prefix": "inbox_prefix",
}
"""A context's field, and the setting of ours that it fills."""

_UNSUPPORTED: Final = {
    "nsc": "nsc is not run: `nsc generate creds` writes a file to name as creds",
    "socks_proxy": "connections are made directly",
    "jetstream_domain": "JetStream is used under its usual subjects, $JS.API",
    "jetstream_api_prefix": "JetStream is used under its usual subjects, $JS.API",
    "windows_cert_store": "certificates are read from files",
    "windows_cert_match_by": "certificates are read from files",
    "windows_cert_match": "certificates are read from files",
    "windows_ca_certs_match": "certificates are read from files",
}


class NatsContext(Struct, frozen=True):
    """A context that was read; ``settings`` by the names of ours."""

    name: str
    path: Path
    settings: dict[str, str | bool]

    def __repr__(self) -> str:
        return f"NatsContext({self.name!r}, {str(self.path)!r})"


class _File(Struct, frozen=True):
    url: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    cert: str = ""
    key: str = ""
    ca: str = ""
    tls_first: bool = False
    inbox_prefix: str = ""
    user_jwt: str = ""
    user_seed: str = ""
    nsc: str = ""
    socks_proxy: str = ""
    jetstream_domain: str = ""
    jetstream_api_prefix: str = ""
    windows_cert_store: str = ""
    windows_cert_match_by: str = ""
    windows_cert_match: str = ""
    windows_ca_certs_match: list[str] | None = None


def contexts_dir(environ: Mapping[str, str]) -> Path:
    """Where contexts are kept, as the nats command line finds it."""
    base = environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else _home(environ) / ".config") / "nats"


def _home(environ: Mapping[str, str]) -> Path:
    """Where the user database says; HOME only for a user that is not in it."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def selected_context(environ: Mapping[str, str]) -> str:
    """The name that `nats context select` left; "" where nothing is selected, or where that
    can't be read."""
    try:
        return (contexts_dir(environ) / "context.txt").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def known_contexts(environ: Mapping[str, str]) -> list[str]:
    """The names of all contexts, sorted."""
    return sorted(path.stem for path in (contexts_dir(environ) / "context").glob("*.json"))


def read_context(name: str, environ: Mapping[str, str]) -> NatsContext:
    """The context of that name, or in that file where ``name`` is the path of a ``.json``.

    Raises Invalid: there is none, it can't be read, or it asks for what slotbus lacks.
    """
    path = _path_of(name, environ)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Invalid(f"context {path} can't be read: {reason}", path="context") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"context {path} is no context: {error}", path="context") from error
    for field, reason in _UNSUPPORTED.items():
        if getattr(found, field):
            raise Invalid(
                f"context {name}: its field {field} is not supported: {reason}", path="context"
            )
    settings = {ours: getattr(found, theirs) for theirs, ours in _MEANT.items()}
    settings["server"] = found.url or DEFAULT_SERVER
    settings["creds_file"] = found.creds or _creds_of(name, found)
    return NatsContext(name, path, {key: value for key, value in settings.items() if value})


def _path_of(name: str, environ: Mapping[str, str]) -> Path:
    if name.endswith(".json") and Path(name).is_file():
        return Path(name)
    if "/" in name or "\\" in name or ".." in name:
        raise Invalid(
            f"context {name!r} is neither a name nor a .json file that is there", path="context"
        )
    path = contexts_dir(environ) / "context" / f"{name}.json"
    if not path.is_file():
        known = known_contexts(environ)
        there = f"there are {', '.join(known)}" if known else f"there are none in {path.parent}"
        raise Invalid(f"there is no context {name!r}: {there}", path="context")
    return path


def _creds_of(name: str, found: _File) -> str:
    """``user_jwt`` and ``user_seed`` as the credentials they are, inside a reference."""
    if not found.user_jwt:
        return ""
    if not found.user_seed:
        raise Invalid(
            f"context {name}: its user_jwt without a user_seed (a bearer's) is not supported",
            path="context",
        )
    return f"data:;base64,{base64.b64encode(_decorated(found).encode()).decode()}"


def _decorated(found: _File) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{found.user_jwt}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{found.user_seed}\n------END USER NKEY SEED------\n"
    )
