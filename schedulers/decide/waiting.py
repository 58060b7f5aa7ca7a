"""Starts that wait for slots: the line they stand in, and who is placed when there is room.

What lives here: the rule of the line, placing from it, giving up, and what it lacks. What
may not: the first reading of a start (``commands``) and choosing nodes (``placement``).

The rule: those who wait are placed in the order of their priority, and of their acceptance
where it is equal. Who can't be placed keeps the nodes it may use for itself, so that none of
the same or a lower priority, waiting or new, is placed on one of them: small starts can't
pass a large one for ever. Who asks for more than these nodes could ever offer together keeps
nothing, since waiting for it would not help anyone.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import takewhile
from typing import Final

from msgspec import Struct

from events.entities import Run
from events.errors import SlotbusError, TooLarge, TooLate
from events.facts import RunCreated, RunEnded, RunWaiting
from events.ids import MAX_WORKERS_A_RUN
from events.ledger import Ledger
from events.queries import QueryShortage, ShortageReply, WaitingRow
from events.states import RunState
from schedulers.decide.draft import Draft, Rules
from schedulers.decide.orders import refuse
from schedulers.decide.paging import fill, page
from schedulers.decide.placing import Selector, plan_for, put_workers, wish_of
from schedulers.placement import Plan, too_many_workers

KEPT_BACK: Final = "those that wait before it have not got their slots yet"

Key = tuple[tuple[str, str], ...]
"""A selector that can be looked up."""


class Missing(Struct):
    """Slots that those who wait with one selector want, and that its nodes have free."""

    wanted: int
    free: int


def kept_from(draft: Draft, priority: int) -> list[Selector]:
    """The nodes, as selectors, that a new start of this priority must leave to those who
    stand before it."""
    kept: dict[Key, Selector] = {}
    for run in in_line(draft.ledger):
        if run.priority < priority:
            break
        if _rests(draft, run):
            continue
        selector = _selector_of(draft.rules, run)
        if _key(selector) not in kept and _could_fit(draft, run, selector):
            kept[_key(selector)] = selector
        if not selector and kept:
            break
    return list(kept.values())


def wait(draft: Draft, run: Run, plan: Plan, reason: str = "") -> None:
    """There is no room for a run that could be placed from now on: it stands in line."""
    draft.emit(
        RunWaiting(
            job_id=run.job_id,
            run_id=run.run_id,
            missing=plan.missing,
            reason=reason or f"{plan.missing} slots are missing",
            passed_over=plan.passed_over,
        )
    )


def offer(draft: Draft) -> None:
    """Places those who wait, in their order, as far as there is room."""
    for run in _due(draft):
        if run.not_after is not None and draft.now > run.not_after and not draft.full():
            give_up(draft, run)
    kept: dict[Key, Selector] = {}
    for _, _, job_id, run_id in list(draft.ledger.waiting):
        if draft.full():
            draft.leave()
            return
        if () in kept:
            break
        run = draft.ledger.jobs[job_id].run(run_id)
        if _rests(draft, run):
            continue
        selector = _selector_of(draft.rules, run)
        key = _key(selector)
        if key in kept:
            continue
        told = run.not_before is None and bool(run.reason)
        # Most of a long line can't be placed, which the index knows without looking at nodes.
        if not told or _free(draft.ledger, selector) >= run.slots:
            wish = wish_of(draft.rules, run.scheduler_config, run.slots)
            plan = plan_for(draft, wish, list(kept.values()))
            if not plan.missing:
                _place(draft, run, plan)
                continue
            if not told:
                wait(draft, run, plan)
        if _could_fit(draft, run, selector):
            kept[key] = selector
    _tell_those_behind(draft)


def _tell_those_behind(draft: Draft) -> None:
    """What could be placed from now on, and nobody looked at, waits like any other start."""
    created = [
        draft.ledger.jobs[fact.job_id].run(fact.run_id)
        for fact in draft.events
        if isinstance(fact, RunCreated) and fact.restart_of is not None
    ]
    for run in [*created, *_due(draft)]:
        untold = run.state is RunState.WAITING and not run.reason
        if untold or (run.not_before is not None and draft.now >= run.not_before):
            if draft.full():
                draft.leave()
                return
            wait(draft, run, Plan([], run.slots, 0, []), KEPT_BACK)


def _due(draft: Draft) -> list[Run]:
    """Those who wait and have a time that has come."""
    ledger = draft.ledger
    times = takewhile(lambda alarm: alarm[0] <= draft.now, ledger.alarms)
    runs = dict.fromkeys((job_id, run_id) for _, job_id, run_id in times)
    return [ledger.jobs[job_id].run(run_id) for job_id, run_id in runs]


def _rests(draft: Draft, run: Run) -> bool:
    """A restart whose time has not come has no place in the line yet: it keeps nothing from
    others."""
    return run.not_before is not None and draft.now < run.not_before


def _place(draft: Draft, run: Run, plan: Plan) -> None:
    if too_many_workers(plan):
        text = f"{len(plan.shares)} workers, {MAX_WORKERS_A_RUN} are allowed a run"
        _end(draft, run, TooLarge(text, limit=MAX_WORKERS_A_RUN, unit="workers"))
    else:
        put_workers(draft, run, plan, anew=True)


def give_up(draft: Draft, run: Run) -> None:
    """Its time to be placed is over."""
    text = f"no room for {run.slots} slots until {run.not_after:%Y-%m-%dT%H:%M:%SZ}"
    _end(draft, run, TooLate(text, job_id=run.job_id, run_id=run.run_id))


def _end(draft: Draft, run: Run, error: SlotbusError) -> None:
    draft.emit(
        RunEnded(job_id=run.job_id, run_id=run.run_id, state=RunState.FAILED, reason=error.message)
    )
    if run.command_id in draft.ledger.pending:
        refuse(draft, run.command_id, error)


def in_line(ledger: Ledger) -> Iterator[Run]:
    """The runs that wait, in the order in which they are placed."""
    for _, _, job_id, run_id in ledger.waiting:
        yield ledger.jobs[job_id].run(run_id)


def next_time(ledger: Ledger) -> datetime | None:
    """When the first of those who wait is given up, or may be placed."""
    return ledger.alarms[0][0] if ledger.alarms else None


def _could_fit(draft: Draft, run: Run, selector: Selector) -> bool:
    """Whether the ready nodes would have room for it, were they empty."""
    if not selector:
        return run.slots <= draft.ledger.capacity.registered
    return run.slots <= draft.ledger.capacity.part(selector).registered


# --- what it lacks ----------------------------------------------------------------------


def missing_slots(ledger: Ledger, rules: Rules) -> int:
    """Slots that would let all who wait begin: those wanted less those free, for each
    selector. Nodes that two selectors name are counted for both, so it may be more. Restarts
    whose time has not come lack nothing yet."""
    return sum(max(0, each.wanted - each.free) for each in _by_selector(ledger, rules).values())


def shortage(draft: Draft, query: QueryShortage) -> None:
    """Answers who waits and for what, in their order."""
    ledger, rules = draft.ledger, draft.rules
    places = {f"{index:08}": run for index, run in enumerate(in_line(ledger), start=1)}
    lacking = _lacking(ledger, rules)
    part = page(places, query.cursor, query.limit)
    rows = fill(part, lambda key: _row(places[key], rules, lacking))
    missing = missing_slots(ledger, rules)
    draft.answer = ShortageReply(missing=missing, waiting=rows.rows, next=rows.next)


def _row(run: Run, rules: Rules, lacking: dict[tuple[str, int], int]) -> WaitingRow:
    return WaitingRow(
        job_id=run.job_id,
        run_id=run.run_id,
        slots=run.slots,
        missing=lacking[run.job_id, run.run_id],
        priority=run.priority,
        since=run.since,
        not_before=run.not_before,
        not_after=run.not_after,
        selector=_selector_of(rules, run),
        reason=run.reason,
    )


def _lacking(ledger: Ledger, rules: Rules) -> dict[tuple[str, int], int]:
    """What each that waits lacks, once those before it with its selector have theirs."""
    groups = {key: each.free for key, each in _by_selector(ledger, rules).items()}
    lacking = {}
    for run in in_line(ledger):
        if run.not_before is not None:
            lacking[run.job_id, run.run_id] = 0
            continue
        key = _key(_selector_of(rules, run))
        lacking[run.job_id, run.run_id] = max(0, run.slots - max(0, groups[key]))
        groups[key] -= run.slots
    return lacking


def _by_selector(ledger: Ledger, rules: Rules) -> dict[Key, Missing]:
    groups: dict[Key, Missing] = {}
    for run in in_line(ledger):
        if run.not_before is not None:
            continue
        selector = _selector_of(rules, run)
        key = _key(selector)
        if key not in groups:
            groups[key] = Missing(0, _free(ledger, selector))
        groups[key].wanted += run.slots
    return groups


def _selector_of(rules: Rules, run: Run) -> Selector:
    return run.scheduler_config.selector if rules.chooses_nodes else {}


def _key(selector: Selector) -> Key:
    return tuple(sorted(selector.items()))


def _free(ledger: Ledger, selector: Selector) -> int:
    """Free slots of the ready nodes that a selector names."""
    return (ledger.capacity.part(selector) if selector else ledger.capacity).free
