"""The nodes of the pytest plugin, which our own tests use too.

What lives here: their names. What may not: the nodes (``slotbus_pytest.scripted``).
"""

from __future__ import annotations

from slotbus_pytest.scripted import (
    ANSWER_LOST,
    KILL,
    LIVE,
    NEVER,
    OK,
    TERM,
    Program,
    ScriptedLauncher,
    ScriptedNode,
    Turn,
    late,
    refused,
)

__all__ = [
    "ANSWER_LOST",
    "KILL",
    "LIVE",
    "NEVER",
    "OK",
    "TERM",
    "Program",
    "ScriptedLauncher",
    "ScriptedNode",
    "Turn",
    "late",
    "refused",
]
