"""The numbers in docs/operating.md, limits and others, are what the code keeps to."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from controller import recordsettings as usual_recording
from controller.cli import completing, running
from controller.cli.finding import ClientConfig
from controller.config import LOG_MAX_BYTES
from controller.nodetraffic import HELD_MOST
from controller.outbox import QUEUE_LIMIT as ANSWERS
from controller.services import MAX_OPEN
from controller.tap import MAX_TAPS
from events import ids
from schedulers.decide import Rules
from schedulers.decide.paging import PAGE_BYTES
from schedulers.loop import QUEUE_LIMIT
from schedulers.node.desk import MAX_ORDERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
RULES = Rules()
LIMITS: dict[str, int] = {
    "workers of a run": ids.MAX_WORKERS_A_RUN,
    "a program": ids.MAX_PROGRAM_BYTES,
    "levels of lists and objects in a program": ids.MAX_PROGRAM_DEPTH,
    "a program in the environment": ids.MAX_INLINE_PROGRAM_BYTES,
    "`env_vars` of a job": ids.MAX_ENV_BYTES,
    "labels of a node, or a selector": ids.MAX_LABELS_BYTES,
    "changes to pods (`scheduler_config.kubernetes`)": ids.MAX_POD_OPTIONS_BYTES,
    "`addr`, `machine_id`, `version` of a node, each": ids.MAX_NODE_TEXT,
    "a start with all its workers, in the log": ids.MAX_RECORD_BYTES,
    "a reason in the log": ids.MAX_REASON,
    "messages that wait for the leader's engine": QUEUE_LIMIT,
    "nodes whose registration or heartbeat waits for room there": HELD_MOST,
    "commands and queries without an answer yet": MAX_OPEN,
    "answers that wait to be sent": ANSWERS,
    "recorders from outside at the same time (`slotbus record`)": MAX_TAPS,
    "lines that wait to be recorded": usual_recording.BUFFER_BYTES,
    "orders under way on an agent": MAX_ORDERS,
    "commands that are remembered": RULES.remembered_commands,
    "ended jobs that are remembered": RULES.remembered_jobs,
    "runs of a job that are remembered": RULES.remembered_runs,
    "the event log": LOG_MAX_BYTES,
    "rows of a page": PAGE_BYTES,
}


def rows() -> dict[str, str]:
    """What is limited, and the limit as the page has it."""
    lines = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[1].strip(): cells[2].strip() for cells in lines if len(cells) >= 5}


@pytest.mark.parametrize("what", LIMITS)
def test_a_stated_limit_is_the_one_that_is_kept(what: str) -> None:
    assert f"{LIMITS[what]:,}" in rows()[what]


def test_exit_codes_are_those_of_the_code() -> None:
    codes = (
        running.DONE, running.REFUSED, running.MISUSED, running.UNREACHED, running.UNFINISHED,
        running.INTERRUPTED,
    )  # fmt: skip
    lines = PAGE.read_text().splitlines()
    below = lines[lines.index("| exit code | |") + 2 :]
    told = [line.split("|")[1].strip() for line in takewhile(lambda line: line, below)]
    assert told == [str(code) for code in codes]


def test_what_is_waited_for_is_as_long_as_it_says() -> None:
    text = " ".join(PAGE.read_text().split())
    usual = ClientConfig()
    assert f"after `connect_timeout_s` ({usual.connect_timeout_s:g} s" in text
    assert f"goes on asking for `patience_s` ({usual.patience_s:g} s)" in text
    assert completing.CONNECT_S + completing.ANSWER_S <= 1.0  # "a second at most"
    sizes = (usual_recording.FILE_BYTES >> 20, usual_recording.TOTAL_BYTES >> 30)
    assert f"`record_file_bytes` of lines ({sizes[0]} MiB)" in text
    assert f"more than `record_max_bytes` ({sizes[1]} GiB)" in text
