"""Looking back: views, differences, reasons and broken laws, over lives lived in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from controller.past.history import History, history_of_files, ledger_of_file
from controller.past.moving import export_lines, write_lines
from controller.past.views import Change, difference, view
from controller.past.why import Why, first_violation, why
from events import facts as f
from events.errors import Invalid, NotEnoughSlots
from events.states import WorkerState
from schedulers.packing import create
from slotbus_pytest.cluster import DAWN, Cluster

Living = Callable[[Cluster], Coroutine[Any, Any, None]]


def lived(live: Living) -> Cluster:
    cluster = Cluster(nodes=3)
    cluster.open()
    cluster.run(live(cluster))
    cluster.close()
    return cluster


async def a_lost_node(cluster: Cluster) -> None:
    await cluster.start("wordcount", 6)
    await cluster.cordon("n3")
    with pytest.raises(NotEnoughSlots):
        await cluster.start("wide", 20)
    await cluster.kill("n1")
    await cluster.advance(40)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return lived(a_lost_node)


@pytest.fixture(scope="module")
def history(cluster: Cluster) -> History:
    return History(records=cluster.records)


def test_a_view_is_what_queries_would_have_said(cluster: Cluster, history: History) -> None:
    now = view(history.ledger_at(None))
    assert now.position == len(history.records)
    assert [(n.node_id, n.state, n.free_slots) for n in now.nodes] == [
        ("n1", "expired", 0), ("n2", "ready", 2), ("n3", "cordoned", 4),
    ]  # fmt: skip
    assert [w.state for w in now.workers] == ["lost", "running"]
    assert now.jobs[0].job_id == "wordcount"
    early = view(history.ledger_at(DAWN + timedelta(seconds=1)))
    assert [n.state for n in early.nodes] == ["ready", "ready", "cordoned"]
    assert view(history.ledger_at(4)).workers == []


def test_moments_that_are_not_there_are_refused(history: History) -> None:
    with pytest.raises(Invalid, match="and no 99"):
        history.ledger_at(99)
    with pytest.raises(Invalid, match="the log begins after"):
        history.ledger_at(DAWN - timedelta(days=1))


def test_a_difference_names_what_came_went_and_changed(history: History) -> None:
    found = difference(history.ledger_at(4), history.ledger_at(None))
    by_id = {change.id: change for change in found.changes}
    assert (found.before, found.after) == (4, len(history.records))
    assert by_id["wordcount"].change == "came"
    assert by_id["n1"].fields["state"] == "ready -> expired"
    back = difference(history.ledger_at(None), history.ledger_at(4))
    assert {c.id for c in back.changes if c.change == "went"} >= {"wordcount"}
    assert difference(history.ledger_at(4), history.ledger_at(4)).changes == []
    assert isinstance(found.changes[0], Change)


def test_why_a_worker_is_where_it_is(cluster: Cluster, history: History) -> None:
    worker = next(iter(history.ledger_at(None).workers))
    found = why(history, worker)
    assert found.kind == "worker"
    assert found.decided.cause.startswith("start ")
    assert found.taken == {"n1": 4, "n2": 2}
    assert found.candidates == {"n1": 4, "n2": 4, "n3": 4}
    assert found.refused == ""
    assert [over.nodes for over in found.passed_over] == [["n3"]]
    assert any("node_registered n1" in fact for told in found.before for fact in told.facts)
    assert [told.cause.split()[0] for told in found.after] == ["launch", "timer"]


def test_why_a_command_was_refused_and_a_job_never_ran(history: History) -> None:
    def check(found: Why) -> None:
        assert found.taken == {}
        assert found.refused.startswith("not_enough_slots: ")
        assert found.candidates == {"n2": 2}
        reasons = [over.reason for over in found.passed_over]
        assert "cordoned" in reasons, reasons
        assert any("command_done" in fact for fact in found.decided.facts)

    check(why(history, "wide"))
    (command,) = [
        fact.command_id
        for record in history.records
        for fact in record.events
        if isinstance(fact, f.CommandTaken) and fact.job_id == "wide"
    ]
    check(why(history, command))


def test_why_of_a_job_goes_on_with_its_workers(history: History) -> None:
    found = why(history, "wordcount")
    told = [fact for each in found.after for fact in each.facts]
    assert any(fact.startswith("worker_lost") for fact in told)
    assert any(fact.startswith("run_running") for fact in told)


def test_why_of_nothing_says_what_to_give(history: History) -> None:
    with pytest.raises(Invalid, match="nothing in this log is called ghost"):
        why(history, "ghost")


def test_a_law_that_is_broken_is_told_with_its_story(history: History) -> None:
    assert first_violation(history) is None
    last = history.records[-1]
    worker = next(iter(history.ledger_at(None).workers))
    end = f.WorkerEnded(worker_id=worker, state=WorkerState.FAILED)
    broken = replace(history, records=[*history.records, *[replace(last, events=[end])] * 2])
    found = first_violation(broken)
    assert found is not None
    assert (found.law, found.position) == (5, len(broken.records))
    assert worker in found.sentence
    assert found.story[0].facts[0].startswith("worker_assigned")
    assert found.story[-1].facts[0].startswith("worker_ended")


def test_a_command_without_an_outcome_is_found(history: History) -> None:
    late = history.records[-1].at
    taken = f.CommandTaken(
        command_id="c-x", kind="stop", digest="d", deadline=late - timedelta(minutes=1)
    )
    last = replace(history.records[-1], events=[taken])
    cut = replace(history, records=[*history.records, last])
    found = first_violation(cut)
    assert found is not None
    assert found.law == 3


def test_an_export_is_read_again_whole_or_in_part(history: History, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(b"".join(line + b"\n" for line in export_lines(history, None, None)))
    assert history_of_files(whole) == history
    for moment in (4, len(history.records), DAWN + timedelta(seconds=1), None):
        found = ledger_of_file(whole, moment)
        assert found is not None
        assert found.snapshot() == history.ledger_at(moment).snapshot()
    assert ledger_of_file(whole, 99) is None
    assert ledger_of_file(whole, DAWN - timedelta(days=1)) is None
    part = tmp_path / "part.jsonl"
    part.write_bytes(b"".join(line + b"\n" for line in export_lines(history, 6, 9)))
    read = history_of_files(part)
    found = ledger_of_file(part, 9)
    assert found is not None
    assert found.snapshot() == history.ledger_at(9).snapshot()
    assert ledger_of_file(part, 4) is None
    assert (read.after, len(read.records)) == (5, 4)
    assert read.ledger_at(9).snapshot() == history.ledger_at(9).snapshot()
    assert read.ledger_at(5).snapshot() == history.ledger_at(5).snapshot()
    with pytest.raises(Invalid, match="there are records 6 to 9, and no 4"):
        read.ledger_at(4)
    assert first_violation(read) is None
    ghost = f.WorkerEnded(worker_id="ghost", state=WorkerState.FAILED)
    wrong = replace(read.records[-1], events=[ghost])
    broken = first_violation(replace(read, records=[*read.records, wrong]))
    assert broken is not None
    assert (broken.law, broken.position) == (5, 10)
    timed = list(export_lines(history, DAWN + timedelta(seconds=20), None))
    assert len(timed) == 2  # a snapshot, and the expiry


def test_a_recording_is_a_history_too(cluster: Cluster, history: History, tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in cluster.recorder.lines))
    assert history_of_files(path) == history
    assert ledger_of_file(path, None) is None
    (tmp_path / "empty.jsonl").touch()
    assert history_of_files(tmp_path / "empty.jsonl") == History(records=[])


async def twice(cluster: Cluster) -> None:
    await cluster.start("j", 1)
    await cluster.new_leader()
    await cluster.stop("j")


def test_the_recordings_of_leaders_that_follow_one_another_are_one_history(
    tmp_path: Path,
) -> None:
    cluster = lived(twice)
    lines = [line + b"\n" for line in cluster.recorder.lines]
    second = [at for at, line in enumerate(lines) if line.startswith(b'{"line":"opening"')][1]
    parts = [tmp_path / "2.jsonl", tmp_path / "1.jsonl.zst"]  # as no shell would sort them
    stamps = [b"2026-01-01T00:00:01Z", b"2026-01-01T00:00:02Z"]
    for path, stamp, part in zip(parts, stamps, (lines[1:second], lines[second:]), strict=True):
        with create(path) as file:
            file.write(b'{"line":"recording","v":1,"made_at":"' + stamp + b'"}\n' + b"".join(part))
    whole = history_of_files(*reversed(parts))
    assert whole.records == cluster.records
    assert whole.ledger_at(None).snapshot() == cluster.ledger.snapshot()
    last = history_of_files(parts[1])
    assert last.after > 0
    assert last.ledger_at(None).snapshot() == cluster.ledger.snapshot()


def test_records_that_are_missing_between_two_leaders_cut_the_history(tmp_path: Path) -> None:
    cluster = lived(twice)
    lines = [line + b"\n" for line in cluster.recorder.lines]
    second = [at for at, line in enumerate(lines) if line.startswith(b'{"line":"opening"')][1]
    path = tmp_path / "recording.jsonl"
    path.write_bytes(b"".join([*lines[:4], *lines[second:]]))
    read = history_of_files(path)
    assert read.after > 0
    assert read.ledger_at(None).snapshot() == cluster.ledger.snapshot()


def test_what_is_missing_at_the_end_of_a_file_is_said(history: History, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.zst"
    count = write_lines(path, export_lines(history, None, None))
    assert count == len(history.records)
    path.write_bytes(path.read_bytes()[:-1])
    read = history_of_files(path)
    assert len(read.records) < count
    assert read.torn[0].startswith("log.jsonl.zst ends in the middle of something")
    with pytest.raises(FileExistsError):
        write_lines(path, [])
