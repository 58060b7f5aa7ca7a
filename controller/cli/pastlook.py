"""How the past looks: moments, views, differences, reasons and broken laws.

What lives here: their words and order. What may not: finding them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from controller.cli.options import Output
from controller.cli.output import (
    clean,
    job_table,
    local_time,
    node_table,
    worker_table,
    write,
    write_body,
)
from controller.cli.running import as_usage
from controller.past.history import History
from controller.past.views import Difference, View
from controller.past.why import Broken, Told, Why
from events.errors import Invalid
from events.facts import PassedOver
from events.log import encode_record
from events.stories import Numbered, tell_lines, tell_story

_AGO: Final = re.compile(r"(\d+)([smhd])\Z")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SIGNS: Final = {"came": "+", "went": "-", "changed": "~"}


def moment(text: str | None, option: str) -> int | datetime | None:
    """``10m`` ago, an RFC 3339 time (without a zone: local), a position; None: the end.

    Raises UsageProblem.
    """
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    with as_usage():
        try:
            ago = _AGO.match(text)
            if ago is not None:
                return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            return datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise Invalid(
                f"{option} {text!r} is neither like 10m (s, m, h, d), nor a time, nor a position",
                path=option,
            ) from error


def print_view(found: View, output: Output) -> None:
    if output is Output.JSON:
        write_body(msgspec.json.encode(found))
        return
    when = "the beginning" if found.at is None else local_time(found.at)
    write(f"after record {found.position}, {when}, epoch {found.epoch}\n")
    node_table(found.nodes)
    write("")
    job_table(found.jobs)
    write("")
    worker_table(found.workers)


def print_difference(found: Difference, output: Output) -> None:
    if output is Output.JSON:
        write_body(msgspec.json.encode(found))
        return
    write(f"from record {found.before} to {found.after}")
    for change in found.changes:
        fields = ", ".join(f"{name} {value}" for name, value in change.fields.items())
        write(clean(f"{_SIGNS[change.change]} {change.kind} {change.id}: {fields}"))
    if not found.changes:
        write("nothing differs")


def print_why(found: Why, output: Output) -> None:
    if output is Output.JSON:
        write_body(msgspec.json.encode(found))
        return
    decided = found.decided
    write(
        clean(
            f"{found.kind} {found.id} is there since record {decided.position}, "
            f"{local_time(decided.at)}, because of: {decided.cause}"
        )
    )
    if found.refused:
        write(clean(f"  refused: {found.refused}"))
    if found.candidates:
        free = ", ".join(f"{node} {slots}" for node, slots in found.candidates.items())
        write(clean(f"  free slots then: {free}"))
    for node, slots in found.taken.items():
        write(clean(f"  taken: {node}, {slots} slots"))
    _passed_over(found.passed_over)
    _part("before", found.before)
    _part("decided", [decided])
    _part("after", found.after)


def _passed_over(passed_over: Sequence[PassedOver]) -> None:
    for over in passed_over:
        named = ", ".join(over.nodes)
        more = f" and {over.count - len(over.nodes)} more" if over.count > len(over.nodes) else ""
        write(clean(f"  not taken: {named}{more}: {over.reason}"))


def _part(name: str, told: Sequence[Told]) -> None:
    if told:
        write(f"\n{name}")
    for each in told:
        lines = tell_lines(each.position, each.at, each.cause, each.facts)
        write("\n".join(clean(line) for line in lines))


def print_story(told: Sequence[Numbered], output: Output) -> None:
    if output is Output.JSON:
        for each in told:
            write_body(encode_record(each.record))
        return
    write("\n".join(clean(line) for line in tell_story(told, None).splitlines()))


def print_audit(found: Broken | None, history: History, output: Output) -> None:
    records, after = len(history.records), history.after
    if output is Output.JSON:
        write_body(msgspec.json.encode({"records": records, "violation": found}))
        return
    if found is None:
        begun = f", of a log that begins after record {after}," if after else ""
        write(f"{records} records{begun} keep all six laws")
        return
    write(clean(f"law {found.law} is broken at record {found.position}: {found.sentence}"))
    _part("story", found.story)
