"""What makes the command line pleasant: descriptions, lists that are watched, colours."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest

from controller.cli.finding import find_up
from events.client import SlotbusClient
from events.states import RUN_ENDED
from tests.support.console import Console, Finished, Running
from tests.support.terminal import on_terminal, plain
from tests.support.waiting import DEADLINE_S

UP = ("up", "--nodes", "2", "--slots", "4", "--port", "0", "--http", "off")
CLEAR = "\x1b[H\x1b[J"
GREEN, RED = "\x1b[32m", "\x1b[31m"
COLOURS = {"TERM": "xterm"}
"""A terminal that shows some."""

T = TypeVar("T")


class House:
    """A cluster that runs, its user's command line, and a quicker way to change it."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def run(self, *words: str, **environ: str) -> Finished:
        return self.console.run(*words, **environ)

    def do(self, work: Callable[[SlotbusClient], Awaitable[T]]) -> T:
        """What a program of theirs would do."""
        found = find_up(self.console.environ)
        assert found is not None

        async def talk() -> T:
            async with SlotbusClient.connect(found.server) as bus:
                return await work(bus)

        return asyncio.run(talk())

    def start(self, job_id: str, slots: int = 1) -> str:
        """The first worker of a job that idles."""
        reply = self.do(lambda bus: bus.start(job_id=job_id, slots=slots))
        return reply.workers[0].worker_id

    def stop(self, job_id: str) -> None:
        self.do(lambda bus: bus.stop(job_id))

    async def stop_all(self, bus: SlotbusClient) -> None:
        for job in await bus.jobs():
            if job.state not in RUN_ENDED:
                await bus.stop(job.job_id, force=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One ``slotbus up`` for the tests of this file; each keeps to jobs of its own."""
    console = Console(tmp_path_factory.mktemp("comfort"))
    with console.running(*UP) as up:
        up.until("Ctrl-C stops all jobs")
        yield House(console)
    assert console.left_over() == []


@pytest.fixture
def house(cluster: House) -> Iterator[House]:
    """Every test leaves the slots as it found them."""
    yield cluster
    cluster.do(cluster.stop_all)


def fields(text: str) -> dict[str, str]:
    """The lines of a description before its first table."""
    lines = text.partition("\n\n")[0].splitlines()
    pairs = (line.partition("  ") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


# --- describe ---------------------------------------------------------------------------------


def test_a_job_is_described(house: House) -> None:
    program = '{"window_s": 2}'
    done = house.run(
        *("start", "told", "--slots", "6", "--name", "Word count", "--env", "SECRET=hush"),
        *("--program", program, "-o", "json", "--", "sleep", "600"),
    )
    placed: Any = done.json()["workers"]
    workers = [worker["worker_id"] for worker in placed]
    out = house.run("describe", "job", "told").out
    told = fields(out)
    assert (told["job"], told["name"], told["run"]) == ("told", "Word count", "1 (highest 1)")
    assert (told["state"], told["slots"], told["live workers"]) == ("running", "6", "2")
    assert (told["command"], told["environment"]) == ("sleep 600", "SECRET")
    assert (json.loads(told["program"]), len(told["hash"])) == (json.loads(program), 64)
    assert "hush" not in out
    assert [word for word in workers if word not in out.partition("workers:")[2]] == []
    assert "run_running told/1" in out.partition("events:")[2]


def test_each_run_of_a_job_can_be_described(house: House) -> None:
    for slots in (1, 2):
        house.start("twice", slots)
        house.stop("twice")
    newest = house.run("describe", "job", "twice").out
    assert fields(newest)["run"] == "2 (highest 2)"
    runs = newest.partition("runs:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[:3] for line in runs[1:]] == [
        ["1", "stopped", "1"], ["2", "stopped", "2"],
    ]  # fmt: skip
    first = house.run("describe", "job", "twice", "--run", "1", "--events", "0").out
    assert (fields(first)["run"], fields(first)["slots"]) == ("1 (highest 2)", "1")
    assert "events:" not in first
    as_json: Any = house.run("describe", "job", "twice", "--events", "3", "-o", "json").json()
    assert (as_json["kind"], as_json["job"]["run_id"], len(as_json["events"])) == ("job", 2, 3)
    assert as_json["events"][-1]["events"][-1]["type"] == "command_done"


def test_a_node_is_described(house: House) -> None:
    worker = house.start("here", 3)
    house.do(lambda bus: bus.cordon("node-1"))
    try:
        out = house.run("describe", "node", "node-1").out
        told = fields(out)
        assert (told["node"], told["state"]) == ("node-1", "cordoned")
        assert told["slots"] == "4: 1 free, 3 in use"
        assert told["heard"].endswith(" s ago")
        assert (told["version"], bool(told["incarnation"])) == ("0.1.0", True)
        assert worker in out.partition("workers:")[2].partition("\n\n")[0]
        assert "node_cordoned node-1" in out.partition("events:")[2]
    finally:
        house.do(lambda bus: bus.uncordon("node-1"))
    as_json: Any = house.run("describe", "node", "node-1", "-o", "json").json()
    assert as_json["node"]["node"]["state"] == "ready"
    assert [row["worker_id"] for row in as_json["workers"]] == [worker]


def test_a_worker_is_described_also_after_its_end(house: House) -> None:
    worker = house.start("brief")
    told = fields(house.run("describe", "worker", worker).out)
    assert (told["job"], told["node"]) == ("brief run 1", "node-1")
    assert (told["state"], told["slots"], told["launched"]) == ("running", "1", "yes")
    os.kill(int(told["pid"]), signal.SIGKILL)
    assert house.run("wait", "brief", "--for", "finished").code == 1
    out = house.run("describe", "worker", worker).out
    told = fields(out)
    assert (told["state"], told["exit"]) == ("failed, gone", "signal 9")
    events = out.partition("events:")[2]
    assert "worker_launched" in events
    assert "worker_ended" in events
    as_json: Any = house.run("describe", "worker", worker, "-o", "json").json()
    assert (as_json["worker"]["worker"]["signal"], as_json["worker"]["gone"]) == (9, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("job", "nobody"), 1, "error unknown_job:"),
        (("job", "nobody", "--run", "7"), 1, "error unknown_job:"),
        (("node", "nowhere"), 1, "error unknown_node:"),
        (("worker", "w-0"), 1, "error unknown_worker:"),
        (("node", "node-1", "--run", "1"), 2, "error invalid: --run is for a job"),
        (("job", "a b"), 2, "error invalid:"),
        (("cluster", "x"), 2, "Usage:"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_can_not_be_described(
    house: House, words: tuple[str, ...], code: int, said: str
) -> None:
    done = house.run("describe", *words)
    assert (done.code, done.out) == (code, "")
    assert done.err.strip().startswith(said), done.err


# --- watching ---------------------------------------------------------------------------------


def test_a_watched_list_in_a_pipe_is_written_once_for_each_change(house: House) -> None:
    with house.console.running("jobs", "seen", "--watch") as watch:
        watch.until("JOB")
        house.start("seen")
        watch.until("running")
        house.stop("seen")
        watch.until("stopped")
        assert watch.end() == 130
        shown = watch.out.split("\n\n")
    assert "Traceback" not in watch.out
    states = [[line.split()[2] for line in table.splitlines()[1:]] for table in shown]
    assert (states[0], states[-1]) == ([], ["stopped"])
    assert all(before != after for before, after in itertools.pairwise(shown))
    assert len(shown) <= 5  # nothing, (starting,) running, (stopping,) stopped


def lists(watch: Running, name: str) -> list[Any]:
    """The rows of each list so far, one a line."""
    whole = watch.out.rpartition("\n")[0].splitlines()
    return [msgspec.json.decode(line)[name] for line in whole]


def test_a_watched_list_as_json_is_a_line_for_each_change(house: House) -> None:
    with house.console.running("workers", "lined", "-w", "-o", "json") as watch:
        watch.until("}\n")
        worker = house.start("lined")
        watch.until('"running"')
        house.stop("lined")
        deadline = time.monotonic() + DEADLINE_S
        while lists(watch, "workers")[-1]:
            assert time.monotonic() < deadline, watch.out
            time.sleep(0.02)
        watch.end()
        shown = lists(watch, "workers")
    assert shown[0] == shown[-1] == []
    assert {row["worker_id"] for rows in shown for row in rows} == {worker}


async def looked_again(bus: SlotbusClient) -> None:
    """Makes a watched list be asked for a few times more, while nothing changes in it."""
    asked = await bus.nc.subscribe(bus.subjects.query("nodes"))
    for _ in range(3):
        await bus.nc.publish(f"{bus.subjects.root}.event.node.nothing", b"{}")
        await asked.next_msg(timeout=DEADLINE_S)
    await asked.unsubscribe()


def test_the_age_of_a_heartbeat_is_no_change(house: House) -> None:
    """It is in the list, and grows."""
    with house.console.running("nodes", "--watch", "-o", "json") as watch:
        watch.until("}\n")
        house.do(looked_again)
        house.do(lambda bus: bus.cordon("node-2"))
        watch.until('"cordoned"')
        house.do(lambda bus: bus.uncordon("node-2"))
        watch.end()
        shown = lists(watch, "nodes")
    for row in itertools.chain.from_iterable(shown):
        assert row.pop("heartbeat_age_s") >= 0
    assert len(shown) >= 2
    assert all(before != after for before, after in itertools.pairwise(shown)), shown


def test_a_watched_list_on_a_terminal_is_drawn_anew_in_its_place(house: House) -> None:
    command = house.console.command("jobs", "drawn", "--watch")
    with on_terminal(command, {**house.console.environ, **COLOURS}) as terminal:
        terminal.until("WORKERS")
        house.start("drawn")
        terminal.until("running")
        assert terminal.press_ctrl_c() == 130
        last = terminal.drawn.split(CLEAR)[-1]
    assert terminal.drawn.count(CLEAR) >= 2
    assert [line.split()[0] for line in plain(last).splitlines() if line.strip()][:2] == [
        "JOB", "drawn",
    ]  # fmt: skip
    assert "Traceback" not in terminal.drawn
    assert terminal.drawn.rfind("\x1b[?25h") >= terminal.drawn.rfind("\x1b[?25l")  # the cursor


# --- colours ----------------------------------------------------------------------------------


def drawn(house: House, *words: str, **environ: str) -> str:
    with on_terminal(
        house.console.command(*words), {**house.console.environ, **COLOURS, **environ}
    ) as terminal:
        assert terminal.wait() == 0
    return terminal.drawn


def test_states_have_colours_on_a_terminal_that_shows_them(house: House) -> None:
    shown = drawn(house, "nodes")
    assert f"{GREEN}ready" in shown
    for forbidden in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}):
        without = drawn(house, "nodes", **forbidden)
        assert GREEN not in without, forbidden
        assert plain(without).split() != []
        assert "ready" in without


def test_findings_of_the_doctor_too(house: House) -> None:
    assert f"{GREEN}ok" in drawn(house, "doctor")
    assert "\x1b[3" not in drawn(house, "doctor", NO_COLOR="1")


def test_a_pipe_gets_plain_columns_unless_colours_are_forced(house: House) -> None:
    piped = house.run("nodes", **COLOURS)
    assert "\x1b" not in piped.out
    forced = house.run("nodes", **(COLOURS | {"FORCE_COLOR": "1"}))
    assert f"{GREEN}ready\x1b[0m" in forced.out
    heads, *rows = (line.split() for line in plain(forced.out).splitlines())
    assert (heads[:2], [row[:2] for row in rows]) == (
        ["NODE", "STATE"], [["node-1", "ready"], ["node-2", "ready"]],
    )  # fmt: skip
    starts = {line.index("ready") for line in plain(forced.out).splitlines()[1:]}
    assert starts == {forced.out.splitlines()[0].index("STATE")}
    both = house.run("nodes", **(COLOURS | {"FORCE_COLOR": "1", "NO_COLOR": "1"}))
    assert "\x1b" not in both.out
    as_json = house.run("nodes", "-o", "json", **(COLOURS | {"FORCE_COLOR": "1"}))
    assert "\x1b" not in as_json.out


def test_help_and_errors_in_a_pipe_are_plain_text(house: House) -> None:
    for words in (["--help"], ["start", "--help"], ["describe", "job"]):
        done = house.run(*words, **COLOURS)
        assert "\x1b" not in done.out + done.err
    assert "\x1b[" in drawn(house, "--help")


def test_logs_of_programs_have_no_colours_where_they_are_not_wanted(house: House) -> None:
    words = ("agent", "--server", "nats://127.0.0.1:1", "--http", "off", "--stop-workers-on-exit")
    folder = str(house.console.folder / "elsewhere")
    for environ, wanted in (({}, True), ({"NO_COLOR": "1"}, False)):
        command = house.console.command(*words, "--state-dir", folder)
        with on_terminal(command, {**house.console.environ, **COLOURS, **environ}) as terminal:
            terminal.until("no NATS server listens there")
            assert terminal.press_ctrl_c() == 0
        assert ("\x1b[3" in terminal.drawn) == wanted, terminal.drawn
