"""Subjects with wildcards, as the server understands them.

What lives here: one pure function. What may not: who listens.
"""

from __future__ import annotations


def matches(pattern: str, tokens: list[str]) -> bool:
    """Whether a pattern with wildcards covers a subject's tokens."""
    if "*" not in pattern and ">" not in pattern:
        return False
    wanted = pattern.split(".")
    for at, want in enumerate(wanted):
        if want == ">":
            return len(tokens) > at
        if at >= len(tokens) or want not in ("*", tokens[at]):
            return False
    return len(wanted) == len(tokens)
