"""Stories for the tests of decisions: audited while they are told, checked at their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from schedulers.decide import Rules
from tests.support.story import Story


@pytest.fixture
def stories() -> Iterator[Callable[[Rules], Story]]:
    """Makes stories under rules of the test's own."""
    told: list[Story] = []

    def begin(rules: Rules) -> Story:
        told.append(Story(rules))
        return told[-1]

    yield begin
    for one in told:
        one.check()


@pytest.fixture
def story(stories: Callable[[Rules], Story]) -> Story:
    return stories(Rules())
