"""Records of a fleet's life, made by real decisions: starts, ends, a node that falls silent.

What lives here: making them, without randomness. What may not: an engine, or a log.
"""

from __future__ import annotations

from bench.material import Story
from events.facts import Record


def a_life(*, jobs: int = 12, nodes: int = 4) -> list[Record]:
    """Some three to five records a job; two of three jobs end again."""
    story = Story(nodes, slots=max(8, jobs * 3 // nodes + 1))
    for number in range(jobs):
        story.start(f"job-{number:06}", 3)
        if number % 3:
            story.finish(f"job-{number:06}")
    return story.records
