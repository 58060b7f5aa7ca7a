"""What a user of NATS does by hand: the real nats command line against a running slotbus."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from events.asking import ROUTES
from events.subjects import Subjects
from tests.support.console import Console, Finished, Running
from tests.support.waiting import DEADLINE_S

UP = ("up", "--nodes", "2", "--slots", "4", "--port", "0", "--http", "off")
WEEK_NS = 7 * 86_400 * 10**9
TALK = "echo one; echo two; exec sleep 600"


class Hands:
    """One user with both command lines, and a cluster that runs."""

    def __init__(self, slotbus: Console, nats: Console, url: str) -> None:
        self.slotbus = slotbus
        self.cli = nats
        self.url = url

    def nats(self, *arguments: str) -> Finished:
        done = self.cli.run(*arguments, NATS_URL=self.url)
        assert done.code == 0, done.err
        return done

    def ask(self, subject: str, body: str, *more: str) -> dict[str, Any]:
        """The reply as JSON."""
        return self.nats("req", "--raw", *more, subject, body).json()

    def listening(self, subject: str) -> Any:
        """A block in which `nats sub` prints what comes; it is there when the block begins."""
        return self.cli.running("sub", "--raw", subject, "ready", NATS_URL=self.url)

    def until_listening(self, sub: Running) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while "here" not in sub.out:
            assert time.monotonic() < deadline, sub.out
            self.nats("pub", "ready", "here")


@pytest.fixture(scope="module")
def hands(nats_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hands]:
    folder = tmp_path_factory.mktemp("hands")
    console = Console(folder)
    with console.running(*UP) as up:
        up.until("Ctrl-C stops all jobs")
        url = up.out.partition("NATS at ")[2].partition(",")[0]
        yield Hands(console, Console(folder, nats_cli), url)
    assert console.left_over() == []


@pytest.fixture(autouse=True)
def room(hands: Hands) -> Iterator[None]:
    """Every test leaves the slots as it found them."""
    yield
    for job in hands.ask("slotbus.query.jobs", "")["jobs"]:
        if job["state"] in ("running", "starting"):
            hands.ask("slotbus.cmd.stop", json.dumps({"job_id": job["job_id"], "force": True}))


def records_in(printed: str) -> list[dict[str, Any]]:
    """The event records among the lines that `nats sub --raw` has printed."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def kinds_of(records: list[dict[str, Any]]) -> list[str]:
    return [fact["type"] for record in records for fact in record["events"]]


def test_the_service_is_seen(hands: Hands) -> None:
    listed = hands.nats("micro", "ls").out
    assert "slotbus" in listed
    assert "starts, stops and watches the workers of pipelines" in listed
    (service,) = json.loads(hands.nats("micro", "ls", "--json").out)
    assert (service["name"], service["version"]) == ("slotbus", "0.1.0")
    assert service["metadata"]["root"] == "slotbus"
    assert "slotbus" in hands.nats("micro", "ping").out


def test_its_endpoints_are_told(hands: Hands) -> None:
    info = hands.nats("micro", "info", "slotbus", "--json").json()["info"]
    assert isinstance(info, dict)
    subjects = Subjects()
    told = {endpoint["subject"] for endpoint in info["endpoints"]}
    assert told == {route.subject(subjects) for route in ROUTES.values()}
    groups = {endpoint["queue_group"] for endpoint in info["endpoints"]}
    assert groups == {f"slotbus-{info['metadata']['epoch']}"}
    shown = hands.nats("micro", "info", "slotbus").out
    for subject in told:
        assert f"Subject: {subject}\n" in shown


def statistics(hands: Hands, name: str) -> tuple[int, int]:
    """Requests and errors of an endpoint."""
    (service,) = json.loads(hands.nats("micro", "stats", "slotbus", "--json").out)
    (found,) = [each for each in service["endpoints"] if each["name"] == name]
    return found["num_requests"], found["num_errors"]


def test_refusals_are_among_its_statistics(hands: Hands) -> None:
    requests, errors = statistics(hands, "cmd-stop")
    hands.ask("slotbus.cmd.stop", '{"job_id": "never-seen"}')
    hands.ask("slotbus.cmd.stop", '{"job": "never-seen"}')
    assert statistics(hands, "cmd-stop") == (requests + 2, errors + 2)


def test_a_job_by_hand(hands: Hands) -> None:
    started = hands.ask("slotbus.cmd.start", '{"job_id": "hello", "slots": 6}')
    placed = [(worker["node_id"], worker["slots"]) for worker in started["workers"]]
    assert placed == [("node-1", 4), ("node-2", 2)]

    rows = hands.ask("slotbus.query.workers", '{"job_id": "hello"}')["workers"]
    ids = [worker["worker_id"] for worker in started["workers"]]
    assert [(row["worker_id"], row["state"]) for row in rows] == [(i, "running") for i in ids]
    nodes = hands.ask("slotbus.query.nodes", "")["nodes"]
    assert {n["node_id"]: n["free_slots"] for n in nodes} == {"node-1": 0, "node-2": 2}
    (job,) = hands.ask("slotbus.query.jobs", '{"job_id": "hello"}')["jobs"]
    assert (job["state"], job["slots"], job["workers"]) == ("running", 6, 2)
    assert hands.ask("slotbus.query.leader", "")["nodes"] == 2

    stopped = hands.ask("slotbus.cmd.stop", '{"job_id": "hello"}')
    assert (sorted(stopped["workers"]), stopped["unconfirmed"]) == (sorted(ids), [])
    assert hands.ask("slotbus.query.workers", '{"job_id": "hello"}')["workers"] == []


def test_the_readme_says_what_works(hands: Hands) -> None:
    readme = Path(__file__).resolve().parents[2] / "README.md"
    lines = [line.strip() for line in readme.read_text().splitlines()]
    start, nodes, sub = (shlex.split(line)[1:] for line in lines if line.startswith("nats "))
    with hands.cli.running(*sub, NATS_URL=hands.url) as listening:
        listening.until("Subscribing on slotbus.event.job.hello")
        assert '"workers":[{' in hands.nats(*start).out
        assert '"node_id":"node-1"' in hands.nats(*nodes).out
        hands.ask("slotbus.cmd.stop", '{"job_id": "hello"}')
        listening.until("run_ended")


def test_a_node_by_hand(hands: Hands) -> None:
    assert hands.ask("slotbus.cmd.cordon", '{"node_id": "node-1"}')["state"] == "cordoned"
    refused = hands.ask("slotbus.cmd.start", '{"job_id": "kept-out", "slots": 5}')["error"]
    assert (refused["code"], refused["slots_needed"]) == ("not_enough_slots", 1)
    assert hands.ask("slotbus.cmd.uncordon", '{"node_id": "node-1"}')["state"] == "ready"


def test_mistakes_are_answered_with_code_and_hint(hands: Hands) -> None:
    done = hands.nats("req", "slotbus.cmd.start", '{"slots": 1}')
    assert "Nats-Service-Error-Code: 400" in done.err
    assert "Nats-Service-Error: " in done.err
    error = json.loads(done.out)["error"]
    assert (error["code"], "job_id" in error["message"]) == ("invalid", True)
    for body in ("{", "[]", "\udcff", '{"job_id": "a", "slots": 1e999}', '{"job_id": "a.>"}'):
        assert hands.ask("slotbus.cmd.start", body)["error"]["code"] == "invalid", body
    warned = hands.ask("slotbus.cmd.start", '{"job_id": "typo", "slots": 1, "nam": "x"}')
    assert warned["warnings"] == ["unknown field $.nam, did you mean name?"]


def test_a_header_makes_a_command_unique(hands: Hands) -> None:
    body, header = '{"job_id": "once", "slots": 1}', "Nats-Msg-Id:by-hand-1"
    first = hands.ask("slotbus.cmd.start", body, "-H", header)
    assert (first["command_id"], first["run_id"]) == ("by-hand-1", 1)
    assert hands.ask("slotbus.cmd.start", body, "-H", header) == first


def test_a_command_without_a_reply_subject_is_carried_out(hands: Hands) -> None:
    hands.nats("pub", "slotbus.cmd.start", '{"job_id": "told", "slots": 1}')
    assert hands.slotbus.run("wait", "told", "--for", "running").code == 0


def test_events_and_output_are_heard_as_they_happen(hands: Hands) -> None:
    config = {"command": ["sh", "-c", TALK]}
    body = json.dumps({"job_id": "heard", "slots": 1, "scheduler_config": config})
    with (
        hands.listening("slotbus.event.>") as events,
        hands.listening("slotbus.event.job.heard") as of_job,
        hands.listening("slotbus.log.heard.>") as output,
    ):
        for sub in (events, of_job, output):
            hands.until_listening(sub)
        hands.ask("slotbus.cmd.start", body)
        output.until("two")
        hands.ask("slotbus.cmd.stop", '{"job_id": "heard"}')
        for sub in (events, of_job):
            sub.until("run_ended")
        of_this_job = records_in(of_job.out)
        heard = records_in(events.out)
        lines = "".join(each["text"] for each in records_in(output.out))
    assert kinds_of(of_this_job) == [
        "command_taken", "run_created", "run_placed", "worker_assigned",
        "worker_launched", "run_running", "command_done",
        "command_taken", "run_stopping", "worker_stopping",
        "worker_ended", "run_ended", "command_done",
    ]  # fmt: skip
    assert all(record in heard for record in of_this_job)
    assert {"worker_assigned", "worker_ended"} <= set(
        kinds_of([record for record in heard if "of" in record])
    )  # the node's own subject has its share
    assert lines == "one\ntwo\n"
    shown = hands.slotbus.run("events", "--job", "heard", "-o", "json")
    assert shown.code == 0, shown.err
    assert [json.loads(line) for line in shown.out.splitlines()] == of_this_job


def test_a_jobs_past_is_read_from_the_stream(hands: Hands) -> None:
    hands.ask("slotbus.cmd.start", '{"job_id": "past", "slots": 1}')
    hands.ask("slotbus.cmd.stop", '{"job_id": "past", "force": true}')
    subject = "slotbus.event.job.past"
    deadline = time.monotonic() + DEADLINE_S  # the stream gets its copies after the answer
    while True:
        printed = hands.nats("sub", subject, "--all", "--terminate-at-end", "--raw").out
        kinds = kinds_of(records_in(printed))
        if kinds[-1:] == ["command_done"] and kinds.count("command_done") == 2:
            break
        assert time.monotonic() < deadline, kinds
    hands.nats(
        *("consumer", "add", "SLOTBUS_EVENT", "mine", "--pull", "--defaults"),
        *("--filter", subject, "--deliver", "all"),
    )
    first = hands.nats("consumer", "next", "SLOTBUS_EVENT", "mine", "--raw").json()
    assert first == records_in(printed)[0]


def test_the_streams_are_as_documented(hands: Hands) -> None:
    log: Any = hands.nats("stream", "info", "SLOTBUS_LOG", "--json").json()
    config = log["config"]
    assert config["subjects"] == ["slotbus.eventlog"]
    assert (config["discard"], config["max_bytes"], config["deny_delete"]) == ("new", 2**30, True)
    assert config.get("max_age", 0) == 0
    assert log["state"]["messages"] > 0
    shown = hands.nats("stream", "info", "SLOTBUS_LOG").out
    assert "Discard Policy: New" in shown
    events: Any = hands.nats("stream", "info", "SLOTBUS_EVENT", "--json").json()
    assert events["config"]["subjects"] == ["slotbus.event.>"]
    assert events["config"]["max_age"] == WEEK_NS
    listed = hands.nats("stream", "ls").out
    assert "SLOTBUS_LOG" in listed
    assert "SLOTBUS_EVENT" in listed


def test_log_records_and_the_lease_can_be_read(hands: Hands) -> None:
    printed = hands.nats("stream", "get", "SLOTBUS_LOG", "1").out
    (record,) = records_in(printed)
    assert kinds_of([record]) == ["leader_started"]
    lease = hands.nats("kv", "get", "slotbus_lease", "leader", "--raw").json()
    assert lease["epoch"] == record["epoch"]
