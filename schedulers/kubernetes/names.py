"""Names that Kubernetes takes: DNS labels for objects, values for labels.

What lives here: how any text becomes one, always the same and different for different
texts, and the rules that given names are checked by. What may not: which labels a pod has
(``schedulers.kubernetes.identity``).

What had to be cut or changed ends in two dashes and a hash of the whole text. A text that
looks as if it ended like this gets one too, so that no text can pass for another's name.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

MAX_LABEL: Final = 63
"""Characters of a DNS label and of a label's value."""

MAX_SUBDOMAIN: Final = 253
HASH_LENGTH: Final = 10
"""Base 32 digits of SHA-256: 50 bits."""

DNS_LABEL_RE: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
LABEL_VALUE_RE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_SUBDOMAIN_RE: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)
_LOOKS_HASHED_RE: Final = re.compile(rf".*--[a-z2-7]{{{HASH_LENGTH}}}", re.DOTALL)
_NOT_DNS_RE: Final = re.compile(r"[^a-z0-9-]+")
_NOT_VALUE_RE: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def short_hash(*parts: str) -> str:
    """Ten characters of ``[a-z2-7]`` that stand for these texts in this order."""
    whole = b"".join(f"{len(p.encode(*_ANY))}:".encode() + p.encode(*_ANY) for p in parts)
    digest = base64.b32encode(hashlib.sha256(whole).digest())
    return digest[:HASH_LENGTH].decode().lower()


_ANY: Final = ("utf-8", "surrogatepass")
"""Lone surrogates can come out of JSON; they must not end in an exception."""


def dns_label(text: str, *, most: int = MAX_LABEL) -> str:
    """A DNS label of at most ``most`` characters (13 or more), itself where it is one."""
    if len(text) <= most and DNS_LABEL_RE.fullmatch(text) and not _looks_hashed(text):
        return text
    return _hashed(_NOT_DNS_RE.sub("-", text.lower()), text, most, "-")


def label_value(text: str) -> str:
    """A label's value, the text itself where it fits."""
    if LABEL_VALUE_RE.fullmatch(text) and not _looks_hashed(text):
        return text
    return _hashed(_NOT_VALUE_RE.sub("-", text), text, MAX_LABEL, "-_.")


def pod_name(cluster: str, job_id: str, run_id: int, worker_id: str) -> str:
    """The name of a worker's pod: the job and run to read, and a hash of all four."""
    return _named(job_id, str(run_id), short_hash(cluster, job_id, str(run_id), worker_id))


def program_name(cluster: str, job_id: str, run_id: int) -> str:
    """The name of the ConfigMap that holds a run's program."""
    digest = short_hash("program", cluster, job_id, str(run_id))
    return _named(job_id, f"{run_id}-program", digest)


def is_dns_label(text: str) -> bool:
    return DNS_LABEL_RE.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    return len(text) <= MAX_SUBDOMAIN and _SUBDOMAIN_RE.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    return LABEL_VALUE_RE.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """A key of a label or an annotation: ``name`` or ``domain/name``."""
    domain, found, name = text.rpartition("/")
    return bool(name) and is_label_value(name) and (not found or is_subdomain(domain))


def _named(job_id: str, middle: str, digest: str) -> str:
    tail = f"{middle}-{digest}"
    head = _NOT_DNS_RE.sub("-", job_id.lower())[: MAX_LABEL - len(tail) - 1].strip("-")
    return f"{head or 'job'}-{tail}"


def _hashed(readable: str, whole: str, most: int, edges: str) -> str:
    digest = short_hash(whole)
    head = readable.strip(edges)[: most - len(digest) - 2].strip(edges)
    return f"{head or 'x'}--{digest}"


def _looks_hashed(text: str) -> bool:
    return _LOOKS_HASHED_RE.fullmatch(text) is not None
