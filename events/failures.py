"""Why a connection to NATS could not be made, in one word and one sentence.

What lives here: telling the ways to fail apart by what nats-py, asyncio and OpenSSL raise.
What may not: connecting.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final, Literal, TypeAlias

import nats.errors

Why: TypeAlias = Literal[
    "refused",
    "auth",
    "expired",
    "limit",
    "tls",
    "tls_ca",
    "tls_name",
    "tls_none",
    "tls_wanted",
    "no_such_host",
    "timeout",
    "hung_up",
    "setup",
    "other",
]

ADVICE: Final[dict[Why, str]] = {
    "refused": "no NATS server listens there",
    "auth": "the server refused the credentials",
    "expired": "the credentials have expired or were revoked: get new ones",
    "limit": "the server or the account takes no more connections",
    "tls": "no secure connection could be made",
    "tls_ca": "the server's certificate is not trusted: name the CA that signed it (--tlsca)",
    "tls_name": "the server's certificate is for another name: connect by a name that is in it",
    "tls_none": "TLS was asked for and the server offers none; nothing was sent",
    "tls_wanted": "the server wants a certificate of ours (--tlscert, --tlskey)",
    "no_such_host": "the host name is not known",
    "timeout": "no answer in time; is it a NATS server, and does it want TLS first?",
    "hung_up": "the server hung up without a word; is it a NATS server?",
    "setup": "the address or the credentials can't be used",
    "other": "the connection failed",
}

_SAID: Final[tuple[tuple[str, Why], ...]] = (
    ("authentication expired", "expired"),
    ("authentication revoked", "expired"),
    ("authorization", "auth"),
    ("authentication", "auth"),
    ("connections exceeded", "limit"),
    ("secure connection", "tls"),
    ("certificate required", "tls_wanted"),
    ("connect call failed", "refused"),
    ("empty response", "hung_up"),
    ("url", "setup"),
)
"""Words of the server, of nats-py and of asyncio. Connect call failed: asyncio joins the
refusals of several addresses of a host into one plain OSError."""

_WRONG_NAME: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_OUT_OF_DATE: Final = frozenset({9, 10})


class NoTls(nats.errors.Error):
    """The server does not speak TLS, and we were told to."""

    def __str__(self) -> str:
        return "the server's greeting does not ask for TLS"


def classify(error: BaseException) -> Why:
    """Which of the ways to fail an error of a first connect stands for."""
    if isinstance(error, NoTls):
        return "tls_none"
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_NAME:
            return "tls_name"
        return "tls" if error.verify_code in _OUT_OF_DATE else "tls_ca"
    text = str(error).lower()
    if isinstance(error, ssl.SSLError | ssl.CertificateError):
        return "tls_wanted" if "certificate_required" in text else "tls"
    kinds: tuple[tuple[type[BaseException], Why], ...] = (
        (socket.gaierror, "no_such_host"),
        (ConnectionRefusedError, "refused"),
        (ConnectionResetError, "hung_up"),
        (TimeoutError, "timeout"),
        (nats.errors.TimeoutError, "timeout"),
        (FileNotFoundError, "setup"),
        (PermissionError, "setup"),
        (ImportError, "setup"),
    )
    for kind, why in kinds:
        if isinstance(error, kind):
            return why
    return next((why for words, why in _SAID if words in text), "other")
