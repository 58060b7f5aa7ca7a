"""Who we are to a NATS server: credentials, keys and certificates, and how they are read.

What lives here: ``Access``, the places a secret may be kept in (a file, a variable, the
setting itself), and what nats-py is told. What may not: which settings apply
(``events.contexts``, ``controller.config``) and the connection.

References are those of the nats command line: a path (``~`` and ``$VARIABLES`` are replaced),
``file://PATH``, ``env://NAME`` for a variable's content, and ``data:;base64,...``.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import urllib.parse
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from nats.aio.client import RawCredentials

DEFAULT_INBOX_PREFIX: Final = "_INBOX"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_ELSEWHERE: Final = {
    "op": "1Password is not asked: export the secret and say env://NAME",
    "nsc": "nsc is not run: `nsc generate creds` writes a file to name here",
}
_JWT: Final = re.compile(r"-{3,}BEGIN NATS USER JWT-{3,}\s+(\S+)\s+-{3,}END", re.ASCII)
_SEED: Final = re.compile(r"-{3,}BEGIN USER NKEY SEED-{3,}\s+(\S+)\s+-{3,}END", re.ASCII)
_TOKENS: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*\Z")


class _Claims(Struct):
    exp: float = 0.0


class AccessUnusable(Exception):
    """What was configured can't be used; the message says which part and why."""


class Access(Struct, frozen=True, kw_only=True):
    """Who we are to the server, where the address does not say it already.

    ``user`` without a ``password`` is a token, as for the nats command line.
    ``creds_file`` and ``nkey_file`` are references as this module's head says, as may be
    ``password`` and ``token``; the ``tls_*`` are paths of PEM files. With ``tls_ca`` only
    servers signed by it are trusted. ``tls_first``: the handshake comes before the server's
    greeting. ``inbox_prefix``: below which answers are listened for.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    creds_file: str = ""
    nkey_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_first: bool = False
    inbox_prefix: str = ""

    def __repr__(self) -> str:
        return "Access(...)"

    @property
    def wants_tls(self) -> bool:
        """Whether a connection in the clear would not be what was asked for."""
        return bool(self.tls_ca or self.tls_cert or self.tls_key or self.tls_first)


def client_options(access: Access) -> dict[str, Any]:
    """What nats-py's connect is told about us. Raises AccessUnusable."""
    options: dict[str, Any] = {}
    if access.user and access.password:
        options["user"] = access.user
        options["password"] = _literal(access.password, "password")
    elif access.user:
        options["token"] = _literal(access.user, "token")
    if access.token:
        options["token"] = _literal(access.token, "token")
    if access.creds_file:
        options["user_credentials"] = _credentials(access.creds_file)
    if access.nkey_file:
        options["nkeys_seed_str"] = _seed(_secret(access.nkey_file, "nkey"), access.nkey_file)
    if access.wants_tls:
        options["tls"] = _tls(access)
    if access.tls_first:
        options["tls_handshake_first"] = True
    prefix = access.inbox_prefix or DEFAULT_INBOX_PREFIX
    if not _TOKENS.match(prefix):
        raise AccessUnusable(f"the inbox prefix {prefix!r} is no plain subject")
    options["inbox_prefix"] = prefix
    return options


def has_expired(access: Access, now: float) -> bool:
    """Whether our credentials say themselves that they are over, by seconds since 1970. The
    server only says that it refuses them."""
    try:
        jwt = _JWT.search(_secret(access.creds_file, "creds")) if access.creds_file else None
        claims = jwt[1].split(".")[1] if jwt else ""
        padded = claims + "=" * (-len(claims) % 4)
        until = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims).exp
    except (AccessUnusable, IndexError, ValueError, msgspec.DecodeError):
        return False
    return 0 < until < now


def expand(path: str) -> str:
    """A path with ``~`` and variables replaced."""
    return str(Path(os.path.expandvars(path)).expanduser()) if path else path


def _scheme(reference: str) -> str:
    found = _SCHEME.match(reference)
    return found[1].lower() if found and (found[2] or found[1].lower() == "data") else ""


def _literal(text: str, what: str) -> str:
    """A secret that stands for itself, unless it refers to another place."""
    known = ("env", "file", "data", *_ELSEWHERE)
    return _secret(text, what) if _scheme(text) in known else text


def _secret(reference: str, what: str) -> str:
    """The content a reference leads to. Raises AccessUnusable."""
    scheme = _scheme(reference)
    if scheme in ("", "file"):
        return _read(_path(reference), what)
    if scheme == "env":
        name = reference.partition("://")[2]
        value = os.environ.get(name, "")
        if not value:
            raise AccessUnusable(f"{what}: the variable {name!r} is not set, or is empty")
        return value.rstrip("\r\n")
    if scheme == "data":
        return _from_data(reference, what)
    reason = _ELSEWHERE.get(scheme, "it is none of a path, file://, env:// and data:")
    raise AccessUnusable(f"{what}: {scheme}: references can't be used: {reason}")


def _from_data(reference: str, what: str) -> str:
    kind, comma, payload = reference.partition(",")
    try:
        if kind.endswith(";base64"):
            return base64.b64decode(payload, validate=True).decode().rstrip("\r\n")
        if comma:
            return urllib.parse.unquote(payload, errors="strict").rstrip("\r\n")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise AccessUnusable(f"{what}: its data: reference can't be read: {error}") from error
    raise AccessUnusable(f"{what}: its data: reference has no content")


def _path(reference: str) -> str:
    return expand(reference[len("file://") :] if _scheme(reference) == "file" else reference)


def _read(path: str, what: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise AccessUnusable(f"{what}: {path} can't be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise AccessUnusable(f"{what}: {path} is no text") from error


def _credentials(reference: str) -> Path | RawCredentials:
    """A file stays a file, so that renewed credentials are read at the next reconnect."""
    text = _secret(reference, "creds")
    where = _shown(reference)
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        lacks = "a user JWT" if jwt is None else "a user's seed"
        raise AccessUnusable(f"creds: {where} holds no credentials: it lacks {lacks}")
    _seed(seed[1], where)
    return Path(_path(reference)) if _scheme(reference) in ("", "file") else RawCredentials(text)


def _seed(text: str, where: str) -> str:
    """The seed of a user's key, checked. Raises AccessUnusable."""
    import nkeys  # type: ignore[import-untyped]  # slow to import, and most have no key

    seed = next((line.strip() for line in text.split("\n") if line.strip().startswith("S")), "")
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        kind = pair.public_key[:1]
        pair.wipe()
    except (nkeys.NkeysError, ValueError, binascii.Error) as error:
        raise AccessUnusable(f"nkey: {_shown(where)} holds no nkey seed") from error
    if kind != b"U":
        raise AccessUnusable(f"nkey: {_shown(where)} is not a user's seed (those begin with SU)")
    return seed


def _shown(reference: str) -> str:
    """A reference without what it may contain of the secret."""
    return "the data: reference" if _scheme(reference) == "data" else reference


def _tls(access: Access) -> ssl.SSLContext:
    """Raises AccessUnusable."""
    ca, cert, key = (expand(path) for path in (access.tls_ca, access.tls_cert, access.tls_key))
    for name, path in (("tlsca", ca), ("tlscert", cert), ("tlskey", key)):
        if path:
            _read(path, name)
    if key and not cert:
        raise AccessUnusable("tlskey: a key without its certificate (tlscert) says nothing")
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError as error:
        raise AccessUnusable(f"tlsca: {ca} holds no certificate in PEM ({error.reason})") from error
    if cert:
        try:
            context.load_cert_chain(cert, key or None)
        except ssl.SSLError as error:
            reason = error.reason or str(error)
            raise AccessUnusable(
                f"tlscert: {cert} and its key {key or cert} can't be used together ({reason})"
            ) from error
    return context
