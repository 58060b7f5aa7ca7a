"""Servers that ask who one is, and the keys, credentials and certificates for them.

What lives here: configurations of real nats-servers, and what opens them. What may not:
knowledge of what is tried on them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nkeys  # type: ignore[import-untyped]
import trustme

PREFIXES = {
    "O": nkeys.PREFIX_BYTE_OPERATOR,
    "A": nkeys.PREFIX_BYTE_ACCOUNT,
    "U": nkeys.PREFIX_BYTE_USER,
}


@dataclass(frozen=True)
class Key:
    """An nkey: ``public`` names it, ``seed`` is the secret."""

    public: str
    seed: str

    def sign(self, data: bytes) -> bytes:
        signed: bytes = nkeys.from_seed(bytearray(self.seed.encode())).sign(data)
        return signed


def make_key(kind: str) -> Key:
    """A fresh key of an operator (O), an account (A) or a user (U)."""
    seed = nkeys.encode_seed(secrets.token_bytes(32), PREFIXES[kind]).decode()
    pair = nkeys.from_seed(bytearray(seed.encode()))
    return Key(pair.public_key.decode(), seed)


def _segment(content: Mapping[str, object]) -> str:
    raw = json.dumps(content, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def make_jwt(
    issuer: Key, subject: Key, name: str, nats: Mapping[str, object], **claims: int
) -> str:
    """A JWT of NATS's second version, signed by ``issuer``."""
    body: dict[str, object] = {
        "iat": int(time.time()) - 60,
        "iss": issuer.public,
        "sub": subject.public,
        "name": name,
        "nats": {"version": 2, **nats},
        **claims,
    }
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
    signed = f"{_segment({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_segment(body)}"
    signature = base64.urlsafe_b64encode(issuer.sign(signed.encode())).rstrip(b"=").decode()
    return f"{signed}.{signature}"


def creds_text(jwt: str, seed: str) -> str:
    """A credentials file as `nsc` writes it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


class Operator:
    """An operator with one account that has JetStream: servers that trust it know users by
    their JWTs alone. ``streams``: how many the account may have."""

    def __init__(self, *, streams: int = -1, disk: int = -1, connections: int = -1) -> None:
        self._operator = make_key("O")
        self._account = make_key("A")
        self._system = make_key("A")
        everything = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1}
        everything |= {"wildcards": True, "conn": -1, "leaf": -1}
        jetstream = {"mem_storage": -1, "disk_storage": disk, "streams": streams, "consumer": -1}
        limits = everything | jetstream | {"conn": connections}
        self._jwts = {
            self._account.public: self._account_jwt(self._account, "workers", limits),
            self._system.public: self._account_jwt(self._system, "system", everything),
        }

    def _account_jwt(self, key: Key, name: str, limits: Mapping[str, object]) -> str:
        return make_jwt(self._operator, key, name, {"type": "account", "limits": limits})

    def config(self) -> str:
        """What makes a server trust this operator."""
        operator = make_jwt(
            self._operator,
            self._operator,
            "tests",
            {"type": "operator", "system_account": self._system.public},
        )
        preload = "".join(f'  {public}: "{jwt}"\n' for public, jwt in self._jwts.items())
        return (
            f"operator: {operator}\nsystem_account: {self._system.public}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{preload}}}\n"
        )

    def creds(self, name: str = "someone", **claims: int) -> str:
        """Credentials of a fresh user. ``exp``: when they expire, in seconds since 1970."""
        user = make_key("U")
        limits = {"subs": -1, "data": -1, "payload": -1}
        jwt = make_jwt(self._account, user, name, {"type": "user", **limits}, **claims)
        return creds_text(jwt, user.seed)


class Certificates:
    """A CA of a test, and files of what it issued."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str) -> tuple[Path, Path]:
        """The certificate of a host or a client, and its key."""
        issued = self._ca.issue_cert(name)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        issued.private_key_pem.write_to_path(str(key))
        with cert.open("wb") as file:
            for part in issued.cert_chain_pems:
                file.write(part.bytes())
        return cert, key

    def server_config(self, name: str = "127.0.0.1", *, more: str = "") -> str:
        """A server's TLS with a certificate for ``name``."""
        cert, key = self.issue(name)
        return f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{self.ca}"\n{more} }}'
