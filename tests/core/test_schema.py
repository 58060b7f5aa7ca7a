"""JSON Schemas: they are valid, complete, and take what the codec takes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.reference.catalogue import KINDS
from controller.reference.schema import names, schema_of, whole_schema
from events.codec import decode
from events.errors import Invalid
from events.messages import StartPipelineReq, StopWorkersReq
from events.traffic import RegisterNodeReq

runner = CliRunner()


def takes(name: str, body: str) -> bool:
    return bool(jsonschema.Draft202012Validator(schema_of(name)).is_valid(json.loads(body)))


def test_the_whole_is_a_valid_schema_and_defines_everything() -> None:
    whole = whole_schema()
    jsonschema.Draft202012Validator.check_schema(whole)
    assert {kind.__name__ for kind in KINDS} <= whole["$defs"].keys()
    assert "\\Z" not in json.dumps(whole)


@pytest.mark.parametrize("name", sorted(names()))
def test_each_stands_alone(name: str) -> None:
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    referred = {
        text.rpartition("/")[2]
        for text in json.dumps(schema).split('"')
        if text.startswith("#/$defs/")
    }
    assert referred == schema["$defs"].keys()


SAME: list[tuple[type[Any], str, bool]] = [
    (StartPipelineReq, '{"job_id": "j", "slots": 1}', True),
    (StartPipelineReq, '{"job_id": "j", "slots": 0}', False),
    (StartPipelineReq, '{"job_id": "a b", "slots": 1}', False),
    (StartPipelineReq, '{"job_id": "j", "slots": 1, "program": [null, {"a": 1.5}]}', True),
    (StartPipelineReq, '{"job_id": "j", "slots": 1, "scheduler_config": {"spread": "x"}}', False),
    (StartPipelineReq, '{"job_id": "j", "slots": 1, "unknown": true}', True),
    (StopWorkersReq, "{}", False),
    (StopWorkersReq, '{"job_id": "j", "wait_s": -1}', False),
    (RegisterNodeReq, '{"node_id": "n", "task_slots": 1, "incarnation": "i"}', True),
]


@pytest.mark.parametrize(("kind", "body", "good"), SAME)
def test_a_schema_takes_what_the_codec_takes(kind: type[Any], body: str, good: bool) -> None:
    assert takes(kind.__name__, body) is good
    try:
        decode(body.encode(), kind)
    except Invalid:
        assert not good
    else:
        assert good


def test_what_the_subject_says_may_be_left_out() -> None:
    body = '{"task_slots": 1, "incarnation": "i"}'
    assert takes("node.n1.register", body)


SAID = [
    ("StartPipelineReq", "StartPipelineReq"),
    ("startpipelinereq", "StartPipelineReq"),
    ("slotbus.cmd.start", "StartPipelineReq"),
    ("cmd.start", "StartPipelineReq"),
    ("my.root.node.rack-3.heartbeat", "HeartbeatNodeReq"),
    ("slotbus.event.job.wordcount", "PublishedRecord"),
    ("slotbus.eventlog", "Record"),
    ("worker_ended", "WorkerEnded"),
]


@pytest.mark.parametrize(("name", "found"), SAID)
def test_a_message_has_many_names(name: str, found: str) -> None:
    assert schema_of(name)["$ref"] == f"#/$defs/{found}"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(Invalid, match="did you mean StopWorkersReq"):
        schema_of("StopWorkerReq")


def test_the_command_prints_json() -> None:
    one = runner.invoke(app, ["schema", "cmd.stop"])
    assert (one.exit_code, json.loads(one.output)) == (0, schema_of("cmd.stop"))
    whole = runner.invoke(app, ["schema"])
    assert json.loads(whole.output) == whole_schema()
    listed = runner.invoke(app, ["schema", "--list"]).output.splitlines()
    assert listed == sorted(names())
    wrong = runner.invoke(app, ["schema", "nonsense"])
    assert wrong.exit_code == 2
