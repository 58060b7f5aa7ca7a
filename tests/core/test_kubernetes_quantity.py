"""Quantities, held against vectors that apimachinery itself has made."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from events.errors import Invalid
from schedulers.kubernetes.quantity import Quantity, parse_quantity

CASES = Path(__file__).parents[1] / "cases" / "quantities.json"


class Vector(msgspec.Struct, rename={"text": "in"}):
    text: str
    valid: bool
    canonical: str | None
    times: dict[str, str]


VECTORS = msgspec.json.decode(CASES.read_bytes(), type=list[Vector])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: repr(vector.text))
def test_as_apimachinery(vector: Vector) -> None:
    if not vector.valid:
        with pytest.raises(Invalid):
            parse_quantity(vector.text)
        return
    quantity = parse_quantity(vector.text)
    assert str(quantity) == vector.canonical
    assert {factor: str(quantity * int(factor)) for factor in vector.times} == vector.times


def test_there_are_vectors_of_both_kinds() -> None:
    assert len(VECTORS) == 121
    assert {vector.valid for vector in VECTORS} == {True, False}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1e999999999", "1e999999999"),
        ("-1e999999999", "-1e999999999"),
        ("1e2147483647", "10e2147483646"),
        ("1e-999999999", "1e-9"),
        ("123456789012345678901e999999998", "12345678901234567890100e999999996"),
        ("0e999999999", "0"),
        ("1" + "0" * 200, "100e198"),
        ("0." + "0" * 200 + "1", "1n"),
    ],
)
def test_an_exponent_is_never_multiplied_out(text: str, canonical: str) -> None:
    quantity = parse_quantity(text)
    assert str(quantity) == canonical
    assert parse_quantity(canonical) == quantity
    assert hash(parse_quantity(canonical)) == hash(quantity)


def test_far_numbers_compare_without_being_multiplied_out() -> None:
    far, near, none = map(parse_quantity, ("1e999999999", "9E", "0"))
    assert near < far
    assert not far < near
    assert parse_quantity("-1e999999999") < parse_quantity("-9E") < none < near
    assert sorted([far, none, near]) == [none, near, far]
    assert far * 1000 > far


@pytest.mark.parametrize("text", ["1e2147483648", "1e-9999999999", "1" * 257, "1e" + "9" * 200])
def test_what_go_would_wrap_or_nobody_writes_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_quantity(text, "kubernetes.resources.limits.cpu")
    assert caught.value.path == "kubernetes.resources.limits.cpu"


@pytest.mark.parametrize("text", ["-", "e3", "-Ti", "+n", ".k", "e-9"])
def test_a_number_without_digits_is_zero_as_in_apimachinery(text: str) -> None:
    assert str(parse_quantity(text)) == "0"


@pytest.mark.parametrize("text", ["Pi", "Ei", "e-10", "-Ei"])
def test_but_not_outside_its_fast_path(text: str) -> None:
    with pytest.raises(Invalid):
        parse_quantity(text)


def test_equal_as_numbers_whatever_they_were_written_with() -> None:
    same = [parse_quantity(text) for text in ("1.5Gi", "1536Mi", "1610612736", "1610612736000m")]
    assert len(set(same)) == 1
    assert parse_quantity("500m") == parse_quantity("0.5") == parse_quantity("5e-1")
    assert parse_quantity("0.5") != 0.5  # a float is no quantity


def test_too_large_for_the_largest_suffix() -> None:
    assert str(parse_quantity("1000E")) == "1e21"
    assert str(parse_quantity("7Ei") * 1024) == "7168Ei"


@pytest.mark.parametrize("factor", [0, -1])
def test_only_multiplied_by_one_or_more(factor: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        parse_quantity("1") * factor


def test_multiplied_from_both_sides() -> None:
    assert 3 * parse_quantity("500m") == parse_quantity("500m") * 3 == parse_quantity("1.5")


def test_truth_wholeness_and_repr() -> None:
    assert not parse_quantity("0Gi")
    assert parse_quantity("1n")
    assert parse_quantity("1Ki").whole
    assert not parse_quantity("1500m").whole
    assert repr(parse_quantity("0.5Gi")) == "Quantity('512Mi')"
    assert isinstance(parse_quantity("1"), Quantity)
