"""A failing story made short: as long as it still breaks the same law, things are left out.

What lives here: the search, bounded in time. What may not: telling stories.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.story import Action, Story, Told

SEEDS: Final = 3
"""Tried for each shorter story: what is left out shifts everything a little, and a law that
is broken by a race is then broken under another seed."""

MARGIN_S: Final = 1.0
"""By which a story may go on after the law was broken."""


class Shrunk(Struct, frozen=True):
    story: Story
    told: Told
    tries: int


def kind_of(sentence: str) -> str:
    """What a broken law's sentence says, without who and how much."""
    plain = re.sub(r"\S*\d\S*", "#", sentence)
    return " ".join(plain.split()[:8])


def shrink(story: Story, told: Told, tell: Callable[[Story], Told], budget_s: float) -> Shrunk:
    """The shortest that was found within ``budget_s`` seconds of processor time."""
    search = _Search(story, told, tell, time.process_time() + budget_s)
    search.run()
    return Shrunk(search.story, search.told, search.tries)


class _Search:
    def __init__(
        self, story: Story, told: Told, tell: Callable[[Story], Told], until: float
    ) -> None:
        self.story = story
        self.told = told
        self.tries = 0
        self._tell = tell
        self._until = until
        self._kind = kind_of(told.broken)

    def run(self) -> None:
        self._end_early()
        for kind in sorted({action.kind for action in self.story.actions}):
            others = [action for action in self.story.actions if action.kind != kind]
            self._try(replace(self.story, actions=others))
        size = max(1, len(self.story.actions) // 2)
        while size:
            if not self._leave_out(size):
                size //= 2
        self._end_early()
        while self.story.setup.controllers > 1:
            fewer = replace(self.story.setup, controllers=self.story.setup.controllers - 1)
            if not self._try(replace(self.story, setup=fewer)):
                break

    def _end_early(self) -> None:
        """What comes after the law was broken, or long before peace, is not needed."""
        last = max((action.at for action in self.story.actions), default=0.0)
        for length_s in (self.told.lasted_s + MARGIN_S, last + MARGIN_S):
            if length_s < self.story.length_s:
                kept = [action for action in self.story.actions if action.at < length_s]
                self._try(replace(self.story, length_s=length_s, actions=kept))

    def _leave_out(self, size: int) -> bool:
        """Whether anything could be left out, so many at a time."""
        found, at = False, 0
        while at < len(self.story.actions):
            actions: list[Action] = self.story.actions
            fewer = actions[:at] + actions[at + size :]
            if self._try(replace(self.story, actions=fewer)):
                found = True
            else:
                at += size
            if time.process_time() > self._until:
                return False
        return found

    def _try(self, story: Story) -> bool:
        if time.process_time() > self._until:
            return False
        for seed in range(self.story.seed, self.story.seed + SEEDS):
            self.tries += 1
            tried = replace(story, seed=seed)
            told = self._tell(tried)
            if told.broken and kind_of(told.broken) == self._kind:
                self.story, self.told = tried, told
                return True
        return False
