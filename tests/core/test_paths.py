"""A mistake is named with its whole path and with what would be right."""

from __future__ import annotations

import pytest

from events.codec import decode
from events.errors import Invalid
from events.messages import StartPipelineReq


def a_start(fields: str) -> bytes:
    return b'{"job_id":"j","slots":1,' + fields.encode() + b"}"


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ('"env_vars":{"A":"1","A B":2}', "$.env_vars['A B']", "Expected `str`, got `int`"),
        ('"scheduler_config":{"spread":"wide"}', "$.scheduler_config.spread", "even, pack"),
        ('"on_lost":"x"', "$.on_lost", "one of report, restart"),
        (
            '"scheduler_config":{"kubernetes":{"resources":{"limits":{"a":1,"cpu":true}}}}',
            "$.scheduler_config.kubernetes.resources.limits.cpu",
            "got `bool`",
        ),
        (
            '"scheduler_config":{"kubernetes":{"tolerations":[{},3]}}',
            "$.scheduler_config.kubernetes.tolerations[1]",
            "got `int`",
        ),
        (
            '"scheduler_config":{"kubernetes":{"image":""}}',
            "$.scheduler_config.kubernetes.image",
            "length >= 1",
        ),
    ],
)
def test_where_it_is_and_what_it_may_be(fields: str, path: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode(a_start(fields), StartPipelineReq)
    assert caught.value.path == path
    assert words in caught.value.message


def test_a_key_that_could_not_be_found_is_left_out() -> None:
    """What follows the value is no JSON, so that only its beginning can be looked at."""
    with pytest.raises(Invalid) as caught:
        decode(a_start('"env_vars":{"A":1}') + b"}", StartPipelineReq)
    assert caught.value.path in ("$.env_vars[...]", "$")
