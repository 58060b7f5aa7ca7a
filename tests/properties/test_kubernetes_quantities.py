"""Laws of quantities: what is written is read again, and order is that of numbers."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from schedulers.kubernetes.quantity import parse_quantity

UNITS = {
    **{suffix: Fraction(1000) ** i for i, suffix in enumerate(["n", "u", "m", "", *"kMGTPE"], -3)},
    **{f"{suffix}i": Fraction(1024**i) for i, suffix in enumerate("KMGTPE", 1)},
}
NANO = Fraction(1, 10**9)
CAP = 2**63 - 1


@st.composite
def written(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A text and the number it stands for, rounded and capped as the API does."""
    sign = draw(st.sampled_from(["", "+", "-"]))
    whole = draw(st.integers(0, 10**20))
    part = draw(st.text("0123456789", max_size=15))
    suffix = draw(st.sampled_from([*UNITS, "e"]))
    if suffix == "e":
        power = draw(st.integers(-30, 30))
        unit, suffix = Fraction(10) ** power, f"e{power}"
    else:
        unit = UNITS[suffix]
    exact = (Fraction(whole) + Fraction(int(part or "0"), 10 ** len(part))) * unit
    value = -(-exact // NANO) * NANO
    if suffix.endswith("i"):
        value = min(value, Fraction(CAP))
    number = f"{whole}.{part}" if part else str(whole)
    return f"{sign}{number}{suffix}", -value if sign == "-" else value


def as_fraction(text: str) -> Fraction:
    """What a canonical text stands for."""
    for suffix, unit in UNITS.items():
        if suffix and text.endswith(suffix):
            return int(text.removesuffix(suffix)) * unit
    number, _, power = text.partition("e")
    return int(number) * Fraction(10) ** int(power or "0")


@given(written())
def test_the_canonical_form_is_the_same_number(case: tuple[str, Fraction]) -> None:
    text, value = case
    canonical = str(parse_quantity(text))
    assert as_fraction(canonical) == value
    assert str(parse_quantity(canonical)) == canonical


@given(written(), st.integers(1, 2**63 - 1))
def test_multiplied_exactly(case: tuple[str, Fraction], factor: int) -> None:
    text, value = case
    assert as_fraction(str(parse_quantity(text) * factor)) == value * factor


@given(written(), written())
def test_ordered_and_equal_as_numbers(
    one: tuple[str, Fraction], other: tuple[str, Fraction]
) -> None:
    left, right = parse_quantity(one[0]), parse_quantity(other[0])
    assert (left < right) == (one[1] < other[1])
    assert (left == right) == (one[1] == other[1])
    assert (left >= right) == (one[1] >= other[1])
    if left == right:
        assert hash(left) == hash(right)
