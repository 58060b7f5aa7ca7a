"""``slotbus controller --scheduler manual``: the printed command is run by hand, and works."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from controller.embedded import EmbeddedServer
from events.subjects import Subjects
from tests.support.console import Console


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path)


def test_what_is_printed_can_be_run_and_its_end_reported(
    console: Console, nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    environ = {"NATS_URL": nats_server.url, "SLOTBUS_CFG_ROOT": subjects.root}
    program = ("controller", "--scheduler", "manual", "--http", "off")
    with console.running(*program, **environ) as controller:
        controller.until("leading")
        script = 'echo "I am $SLOTBUS_JOB_ID with $SLOTBUS_SLOTS"'
        started = console.run("start", "j", "--slots", "2", "--", "sh", "-c", script, **environ)
        assert started.code == 0, started.err
        worker_id = started.out.splitlines()[-1].split()[0]
        controller.until(f"slotbus ended {worker_id}")

        (line,) = re.findall(r"^env SLOTBUS_.*$", controller.out, re.MULTILINE)
        done = subprocess.run(
            ["sh", "-c", line], capture_output=True, text=True, timeout=20, check=True
        )
        assert done.stdout == "I am j with 2\n"

        reported = console.run("ended", worker_id, "--exit-code", "0", **environ)
        assert (reported.code, reported.out) == (0, f"worker {worker_id} has ended\n")
        jobs = console.run("jobs", "j", "-o", "json", **environ).json()["jobs"]
        assert isinstance(jobs, list)
        assert jobs[0]["state"] == "finished"

        unknown = console.run("ended", "w-none", **environ)
        assert (unknown.code, unknown.out) == (2, "")
        assert "no worker w-none is known" in unknown.err
        assert controller.end(signal.SIGTERM) == 0
