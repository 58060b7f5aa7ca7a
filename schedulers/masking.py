"""Making values of a recording unreadable, by rule, so that it can be given away.

What lives here: rules, and what they do to a tree of JSON values. What may not: knowing
which line of a recording holds which values; secrets may stand in any of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Final

import msgspec

from events.errors import Invalid

MASKABLE: Final = ("env_vars", "program")
"""Fields that only the user's own workers understand: masking them changes no decision."""

DEFAULT_RULES: Final = (
    "env_vars.*secret*",
    "env_vars.*token*",
    "env_vars.*password*",
    "env_vars.*credential*",
    "env_vars.*key*",
)
MASKED_PREFIX: Final = "masked-"
"""How a value begins that was made unreadable."""

DIGEST_BYTES: Final = 6


class Mask:
    """``rules`` are paths below any object, with ``*``: ``env_vars.*TOKEN*``, ``program``,
    ``program.sink.url``; upper and lower case are the same.

    The same value is masked alike everywhere in one recording, so that what was equal stays
    equal; with the ``key`` gone nobody can try values out. Raises Invalid for a bad rule.
    """

    def __init__(self, rules: Sequence[str], key: bytes) -> None:
        self.rules = list(rules)
        self._key = key
        for rule in rules:
            if rule.lower().split(".")[0] not in MASKABLE:
                raise Invalid(
                    f"{rule!r} masks nothing: rules begin with {' or '.join(MASKABLE)}",
                    path="record_mask",
                )
        self._pattern = re.compile("|".join(map(translate, rules)), re.IGNORECASE)
        self._named = {rule.lower().split(".")[0] for rule in rules}
        """Of MASKABLE those that a rule is about."""
        self._names = [f'"{name}"'.encode() for name in MASKABLE if name in self._named]

    def apply_lines(self, data: bytes) -> bytes:
        """``apply`` for many lines at once."""
        if not self._names_in(data):
            return data
        return b"\n".join(map(self.apply, data.split(b"\n")))

    def apply(self, data: bytes) -> bytes:
        """The JSON of a line, with what the rules name made unreadable."""
        if not self._names_in(data):
            return data
        return msgspec.json.encode(self._outside(msgspec.json.decode(data)))

    def _names_in(self, data: bytes) -> bool:
        """Whether it may have something to mask: a name may be written with escapes."""
        return any(name in data for name in self._names) or (b"\\u" in data and bool(self._names))

    def _outside(self, value: object) -> object:
        """Looks for the fields that rules are about."""
        if isinstance(value, list):
            return [self._outside(item) for item in value]
        if isinstance(value, dict):
            return {
                name: self._field(item, name) if name in MASKABLE else self._outside(item)
                for name, item in value.items()
            }
        return value

    def _field(self, value: object, name: str) -> object:
        """What is below it is the user's own, of whatever name."""
        return self._inside(value, name) if name in self._named else value

    def _inside(self, value: object, path: str) -> object:
        if self._pattern.match(path):
            return self._masked(value)
        if isinstance(value, dict):
            return {name: self._inside(item, f"{path}.{name}") for name, item in value.items()}
        if isinstance(value, list):
            return [self._inside(item, f"{path}.{at}") for at, item in enumerate(value)]
        return value

    def _masked(self, value: object) -> str:
        text = msgspec.json.encode(value)
        made = hashlib.blake2b(text, key=self._key, digest_size=DIGEST_BYTES).hexdigest()
        return f"{MASKED_PREFIX}{made}"
