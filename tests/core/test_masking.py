"""What masking does to the values it is about, and to no others."""

from __future__ import annotations

import json

import pytest

from events.errors import Invalid
from schedulers.masking import DEFAULT_RULES, Mask

KEY = b"k" * 32


def masked(tree: object, *rules: str, key: bytes = KEY) -> object:
    return json.loads(Mask(rules or DEFAULT_RULES, key).apply(json.dumps(tree).encode()))


def test_names_that_sound_secret_are_masked_by_default_in_any_case() -> None:
    env = {"API_TOKEN": "t", "Password": "p", "HOME": "/home"}
    found = masked({"message": {"env_vars": env}})
    assert isinstance(found, dict)
    inner = found["message"]["env_vars"]
    assert inner["HOME"] == "/home"
    assert inner["API_TOKEN"].startswith("masked-")
    assert inner["Password"].startswith("masked-")
    assert inner["Password"] != inner["API_TOKEN"]


def test_rules_reach_into_programs_and_snapshots_and_leave_the_rest() -> None:
    run = {"program": {"sink": {"url": "u"}, "steps": [{"url": "u"}]}, "url": "u", "slots": 3}
    found = masked({"jobs": {"j": {"runs": [run]}}}, "program.*url")
    assert isinstance(found, dict)
    inner = found["jobs"]["j"]["runs"][0]
    assert inner["url"] == "u"
    assert inner["slots"] == 3
    assert inner["program"]["sink"]["url"] == inner["program"]["steps"][0]["url"] != "u"


def test_a_whole_program_becomes_one_word() -> None:
    found = masked({"program": {"a": 1}}, "program")
    assert isinstance(found, dict)
    assert str(found["program"]).startswith("masked-")


def test_equal_values_stay_equal_and_another_key_tells_nothing() -> None:
    tree = {"env_vars": {"A_KEY": "x", "B_KEY": "x"}}
    one, other = masked(tree), masked(tree, key=b"o" * 32)
    assert isinstance(one, dict)
    assert one["env_vars"]["A_KEY"] == one["env_vars"]["B_KEY"]
    assert one != other


def test_without_rules_bytes_stay_as_they_are() -> None:
    assert Mask((), KEY).apply(b'{"env_vars": {"A_KEY": 1} }') == b'{"env_vars": {"A_KEY": 1} }'


def test_a_rule_about_anything_else_is_refused() -> None:
    with pytest.raises(Invalid, match="masks nothing"):
        Mask(("slots",), KEY)


def test_names_written_with_escapes_are_seen_too() -> None:
    """As a sender may write them in a message that is kept as it came."""
    data = b'{"line":"entry","message":{"body":{"env\\u005fvars":{"DB_PASSW\\u004fRD":"hunter2"}}}}'
    mask = Mask(DEFAULT_RULES, b"key")
    assert b"hunter2" not in mask.apply(data)
    assert b"hunter2" not in mask.apply_lines(b'{"line":"ended"}\n' + data + b"\n")
    assert Mask([], b"key").apply(data) == data
