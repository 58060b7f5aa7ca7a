"""Kubernetes quantities: read, multiplied, compared and written as apimachinery does.

What lives here: ``parse_quantity`` and ``Quantity``. What may not: which resources exist
and what a pod may ask for (``schedulers.kubernetes.template``).

A value is a mantissa and a power of ten that is never multiplied out further than its
digits reach, so that ``1e999999999`` costs no more than ``1``.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import total_ordering
from typing import Final

from events.errors import Invalid

MAX_TEXT: Final = 256
"""Characters of a quantity; Go has no limit, but nobody writes more by intent."""

NANO: Final = -9
"""Finer than nano is rounded away from zero: who wants some gets some."""

BINARY_CAP: Final = 2**63 - 1
"""Parsing caps quantities with binary suffixes here, and no others."""

MAX_EXPONENT: Final = 2**31 - 1
"""Go keeps exponents in 32 bits and wraps above silently; we refuse."""

_SI: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SI_NAMES: Final = {power: suffix for suffix, power in _SI.items()}
_BINARY_NAMES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BINARY: Final = {name: 10 * step for step, name in enumerate(_BINARY_NAMES) if name}
_BARE_BINARY_MOST: Final = 40
"""``Gi`` without a digit is zero to apimachinery, ``Pi`` and ``Ei`` are errors: they leave
its fast path, and only that one takes a number without digits."""

_QUANTITY_RE: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]?|[eE](?P<exponent>[+-]?[0-9]+))"
)


class Family(StrEnum):
    """Which suffixes a quantity was written with, and is written with again."""

    BINARY = "binary"
    DECIMAL = "decimal"
    EXPONENT = "exponent"


@total_ordering
class Quantity:
    """A number with the family of its suffix. Equal and ordered as numbers."""

    __slots__ = ("_exponent", "_mantissa", "family")

    def __init__(self, mantissa: int, exponent: int, family: Family) -> None:
        """``mantissa`` times ten to the ``exponent``."""
        while mantissa and mantissa % 10 == 0:
            mantissa //= 10
            exponent += 1
        self._mantissa = mantissa
        self._exponent = exponent if mantissa else 0
        self.family = family

    def __mul__(self, factor: int) -> Quantity:
        """As many times as much; the factor is 1 or more. Never capped, as in Go."""
        if factor < 1:
            raise ValueError(f"a quantity is multiplied by 1 or more, not by {factor}")
        return Quantity(self._mantissa * factor, self._exponent, self.family)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return (self._mantissa, self._exponent) == (other._mantissa, other._exponent)

    def __lt__(self, other: Quantity) -> bool:
        mine, others = self._mantissa, other._mantissa
        if _sign(mine) != _sign(others):
            return _sign(mine) < _sign(others)
        reach = _digits(mine) + self._exponent - _digits(others) - other._exponent
        if reach:
            return (reach < 0) == (mine > 0)
        common = min(self._exponent, other._exponent)  # as near as their digits are many
        mine *= _ten_to(self._exponent - common)
        return mine < others * _ten_to(other._exponent - common)

    def __hash__(self) -> int:
        return hash((self._mantissa, self._exponent))

    def __bool__(self) -> bool:
        return self._mantissa != 0

    @property
    def whole(self) -> bool:
        """No fraction: what extended resources must be."""
        return self._exponent >= 0

    def __str__(self) -> str:
        """The canonical form: no fraction, the largest suffix that keeps the value."""
        if not self._mantissa:
            return "0"
        if self.family is Family.BINARY and self.whole:
            value = self._mantissa * 10**self._exponent
            if abs(value) >= 1024:
                return _binary_text(value)
        step = self._exponent // 3 * 3
        digits = self._mantissa * 10 ** (self._exponent - step)
        if self.family is Family.EXPONENT or step not in _SI_NAMES:
            return f"{digits}e{step}" if step else str(digits)
        return f"{digits}{_SI_NAMES[step]}"

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"


def parse_quantity(text: str, path: str = "$") -> Quantity:
    """Reads a quantity. Raises Invalid, with ``path``."""
    if len(text) > MAX_TEXT:
        raise Invalid(f"a quantity of more than {MAX_TEXT} characters", path=path)
    match = _QUANTITY_RE.fullmatch(text)
    if not text or match is None:
        raise Invalid(
            f"{text!r} is not a quantity: a number with one of n u m k M G T P E, "
            "Ki Mi Gi Ti Pi Ei, or an exponent as in 1e3",
            path=path,
        )
    part, suffix = match["part"] or "", match["suffix"]
    family, power = _unit(suffix, match["exponent"], path)
    if not match["whole"] and not part:
        _check_bare(text, family, power, path)
    mantissa = int(match["whole"] + part or "0")
    if family is Family.BINARY:
        mantissa, power = mantissa << power, 0
    mantissa, exponent = _at_least_nano(mantissa, power - len(part))
    if family is Family.BINARY:
        if mantissa > BINARY_CAP * 10**-exponent:
            mantissa, exponent = BINARY_CAP, 0
        if mantissa < 10**-exponent:
            family = Family.DECIMAL
    return Quantity(-mantissa if match["sign"] == "-" else mantissa, exponent, family)


def _unit(suffix: str, exponent: str | None, path: str) -> tuple[Family, int]:
    """The family, and the power of ten (binary: of two) that a suffix stands for."""
    if exponent is not None:
        power = int(exponent)
        if abs(power) > MAX_EXPONENT:
            raise Invalid(f"the exponent {exponent} is out of range", path=path)
        return Family.EXPONENT, power
    if suffix in _BINARY:
        return Family.BINARY, _BINARY[suffix]
    return Family.DECIMAL, _SI[suffix]


def _check_bare(text: str, family: Family, power: int, path: str) -> None:
    """A suffix without any digit is zero to apimachinery, unless it is too large or small."""
    fine = power <= _BARE_BINARY_MOST if family is Family.BINARY else power >= NANO
    if not fine:
        raise Invalid(f"{text!r} is not a quantity: it has no digits", path=path)


def _at_least_nano(mantissa: int, exponent: int) -> tuple[int, int]:
    """Rounds away from zero what is finer than nano, without computing large powers."""
    if not mantissa or exponent >= NANO:
        return mantissa, exponent if mantissa else 0
    if _digits(mantissa) + exponent <= NANO:
        return 1, NANO
    return -(-mantissa // 10 ** (NANO - exponent)), NANO


def _binary_text(value: int) -> str:
    step = 0
    while step < len(_BINARY_NAMES) - 1 and value % 1024 == 0:
        value //= 1024
        step += 1
    return f"{value}{_BINARY_NAMES[step]}"


def _ten_to(power: int) -> int:
    """Typed: to Python a power of ten may be a fraction."""
    return int(10**power)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _digits(value: int) -> int:
    return len(str(abs(value)))
