"""Published event records as lines for people.

What lives here: what a published record has beside a log's: facts that this version does not
know. What may not: how facts are worded (``events.stories``), reading the stream.
"""

from __future__ import annotations

from events.following import EventRecord
from events.stories import tell_fact, tell_lines

__all__ = ["tell", "tell_fact"]


def tell(record: EventRecord) -> list[str]:
    """One line for each fact of a record, in local time; the first says when and why."""
    facts = [tell_fact(fact) for fact in record.events]
    facts += [f"{kind} (unknown to this version)" for kind in record.unknown]
    return tell_lines(record.position, record.at, record.cause, facts)
