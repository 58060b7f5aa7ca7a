"""Bytes to messages: what is Invalid and where, what is TooLarge, what is only warned of."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from events import codec
from events.errors import (
    CODES,
    CommandTimeout,
    Internal,
    Invalid,
    NotEnoughSlots,
    SlotbusError,
    TooLarge,
    error_from_wire,
)
from events.ids import (
    MAX_ENV_BYTES,
    MAX_INT,
    MAX_LABELS_BYTES,
    MAX_NODE_TEXT,
    MAX_POD_OPTIONS_BYTES,
    MAX_PROGRAM_BYTES,
    MAX_PROGRAM_DEPTH,
)
from events.messages import COMMANDS, StartPipelineReq, StopWorkersReq
from events.queries import QueryWorkers
from events.traffic import HeartbeatNodeReq, RegisterNodeReq


def invalid(body: bytes, kind: type[msgspec.Struct] = StartPipelineReq) -> Invalid:
    with pytest.raises(Invalid) as caught:
        codec.decode(body, kind)
    return caught.value


def a_start(extra: str) -> bytes:
    return b'{"job_id":"j","slots":1,' + extra.encode() + b"}"


def test_two_fields_are_enough_for_a_start() -> None:
    message = codec.decode(b'{"job_id":"wordcount","slots":6}', StartPipelineReq)
    assert (message.job_id, message.slots, message.wait_s, message.program) == (
        "wordcount", 6, 30.0, {},
    )  # fmt: skip


def test_an_empty_body_is_an_empty_object() -> None:
    assert codec.decode(b"", QueryWorkers) == QueryWorkers()
    assert codec.warnings_for(b"", QueryWorkers) == []


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{}", "$"),
        (b'{"job_id":"j"}', "$"),
        (b'{"job_id":"a b","slots":1}', "$.job_id"),
        (b'{"job_id":"j\\n","slots":1}', "$.job_id"),
        (b'{"job_id":"' + b"j" * 129 + b'","slots":1}', "$.job_id"),
        (b'{"job_id":"j","slots":0}', "$.slots"),
        (b'{"job_id":"j","slots":true}', "$.slots"),
        (b'{"job_id":"j","slots":"1"}', "$.slots"),
        (b'{"job_id":"j","slots":1.5}', "$.slots"),
        (b'{"job_id":"j","slots":9223372036854775808}', "$.slots"),
        (a_start('"run_id":0'), "$.run_id"),
        (a_start('"run_id":-1'), "$.run_id"),
        (a_start('"wait_s":-1'), "$.wait_s"),
        (a_start('"wait_s":86401'), "$.wait_s"),
        (a_start('"env_vars":{"A":1}'), "$.env_vars.A"),
        (a_start('"scheduler_config":{"spread":"wide"}'), "$.scheduler_config.spread"),
        (b"[]", "$"),
        (b"null", "$"),
    ],
)
def test_a_wrong_field_is_named(body: bytes, path: str) -> None:
    assert invalid(body).path == path


@pytest.mark.parametrize(
    "body",
    [b"{", b"nonsense", b"\xff\xfe", b'{"job_id":"\xff"}', b'{"a":1}{"b":2}', b'{"slots":1e999}',
     b'{"program":' + b"[" * 100_000, b'{"program":' + b'{"a":' * 100_000,
     b'{"x":' + b"9" * 10_000 + b"}"],
)  # fmt: skip
def test_what_is_no_json_is_invalid(body: bytes) -> None:
    invalid(body)
    with pytest.raises(Invalid):
        codec.decode_with(body, RegisterNodeReq, node_id="n1")


def test_the_largest_numbers_pass() -> None:
    body = f'{{"job_id":"j","slots":{MAX_INT},"run_id":{MAX_INT}}}'.encode()
    message = codec.decode(body, StartPipelineReq)
    assert (message.slots, message.run_id) == (MAX_INT, MAX_INT)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SLOTBUS_JOB_ID", "reserved"),
        ("SLOTBUS_", "reserved"),
        ("1A", "letters, digits"),
        ("A-B", "letters, digits"),
        ("", "letters, digits"),
        ("A\n", "letters, digits"),
    ],
)
def test_a_name_that_no_environment_may_have_is_invalid(name: str, words: str) -> None:
    body = codec.encode({"job_id": "j", "slots": 1, "env_vars": {name: "x"}})
    error = invalid(body)
    assert words in error.message
    assert error.path == f"$.env_vars[{name!r}]"


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ('"env_vars":{"A":"\\u0000"}', "$.env_vars['A']"),
        ('"name":"\\u0000"', "$.name"),
        ('"hash":"\\u0000"', "$.hash"),
        ('"wasm_path":"a\\u0000"', "$.wasm_path"),
        ('"scheduler_config":{"command":["a","b\\u0000"]}', "$.scheduler_config.command[1]"),
        ('"scheduler_config":{"command":"b\\u0000"}', "$.scheduler_config.command[0]"),
    ],
)
def test_a_null_byte_that_would_reach_a_worker_is_invalid(extra: str, path: str) -> None:
    assert invalid(a_start(extra)).path == path


def test_limits_say_how_much_of_what() -> None:
    fits = a_start(f'"program":"{"x" * (MAX_PROGRAM_BYTES - 2)}"')
    codec.decode(fits, StartPipelineReq)
    for extra, path, limit in (
        (f'"program":"{"x" * (MAX_PROGRAM_BYTES - 1)}"', "$.program", MAX_PROGRAM_BYTES),
        (f'"env_vars":{{"A":"{"x" * MAX_ENV_BYTES}"}}', "$.env_vars", MAX_ENV_BYTES),
        (f'"name":"{"x" * (MAX_ENV_BYTES + 1)}"', "$.name", MAX_ENV_BYTES),
    ):
        with pytest.raises(TooLarge) as caught:
            codec.decode(a_start(extra), StartPipelineReq)
        assert caught.value.facts == {"path": path, "limit": limit, "unit": "bytes"}


def sized(template: str, size: int) -> bytes:
    """A body with so many bytes where the template has an asterisk."""
    return template.replace("*", "x" * size).encode()


REGISTER = '{"node_id":"n1","incarnation":"i","task_slots":1,%s}'
START = '{"job_id":"j","slots":1,%s}'


@pytest.mark.parametrize(
    ("kind", "template", "fits", "path"),
    [
        (RegisterNodeReq, REGISTER % '"labels":{"ab":"*"}', MAX_LABELS_BYTES - 2, "$.labels"),
        (RegisterNodeReq, REGISTER % '"addr":"*"', MAX_NODE_TEXT, "$.addr"),
        (RegisterNodeReq, REGISTER % '"machine_id":"*"', MAX_NODE_TEXT, "$.machine_id"),
        (RegisterNodeReq, REGISTER % '"version":"*"', MAX_NODE_TEXT, "$.version"),
        (
            StartPipelineReq,
            START % '"scheduler_config":{"selector":{"ab":"*"}}',
            MAX_LABELS_BYTES - 2,
            "$.scheduler_config.selector",
        ),
        (StartPipelineReq, START % '"env_vars":{"AB":"*"}', MAX_ENV_BYTES - 2, "$.env_vars"),
        (StartPipelineReq, START % '"program":"*"', MAX_PROGRAM_BYTES - 2, "$.program"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("$") else "",
)
def test_what_just_fits_is_taken_and_one_byte_more_is_too_large(
    kind: type[msgspec.Struct], template: str, fits: int, path: str
) -> None:
    codec.decode(sized(template, fits), kind)
    with pytest.raises(TooLarge) as caught:
        codec.decode(sized(template, fits + 1), kind)
    assert caught.value.facts["path"] == path


def test_changes_to_pods_that_just_fit() -> None:
    def options(size: int) -> bytes:
        config = {"kubernetes": {"pod_template": {"x": "x" * size}}}
        return msgspec.json.encode({"job_id": "j", "slots": 1, "scheduler_config": config})

    taken = codec.decode(options(0), StartPipelineReq).scheduler_config.kubernetes
    fits = MAX_POD_OPTIONS_BYTES - len(msgspec.json.encode(taken))
    codec.decode(options(fits), StartPipelineReq)
    with pytest.raises(TooLarge) as caught:
        codec.decode(options(fits + 1), StartPipelineReq)
    assert caught.value.facts["limit"] == MAX_POD_OPTIONS_BYTES


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_program_may_be_nested_only_so_deep(opening: str, closing: str) -> None:
    def nested(levels: int) -> bytes:
        return a_start(f'"program":{opening * levels}1{closing * levels}')

    codec.decode(nested(MAX_PROGRAM_DEPTH), StartPipelineReq)
    assert invalid(nested(MAX_PROGRAM_DEPTH + 1)).path == "$.program"


# --- said by the subject --------------------------------------------------------------------


def test_what_the_subject_says_need_not_be_repeated() -> None:
    body = b'{"incarnation":"i","task_slots":4}'
    assert codec.decode_with(body, RegisterNodeReq, node_id="n1").node_id == "n1"
    body = b'{"node_id":"n1","incarnation":"i"}'
    assert codec.decode_with(body, HeartbeatNodeReq, node_id="n1").node_id == "n1"


@pytest.mark.parametrize("said", [b'"n2"', b"null", b"1", b"[]"])
def test_a_body_that_contradicts_the_subject_is_invalid(said: bytes) -> None:
    body = b'{"incarnation":"i","node_id":' + said + b"}"
    with pytest.raises(Invalid) as caught:
        codec.decode_with(body, HeartbeatNodeReq, node_id="n1")
    assert caught.value.path == "$.node_id"


def test_a_body_beside_a_subject_is_an_object() -> None:
    with pytest.raises(Invalid, match="expected an object"):
        codec.decode_with(b"[]", HeartbeatNodeReq, node_id="n1")


# --- repeated, hashed -----------------------------------------------------------------------


def test_a_digest_ignores_what_may_differ_when_a_command_is_repeated() -> None:
    first = StartPipelineReq(job_id="j", slots=1, command_id="c1", wait_s=0)
    again = StartPipelineReq(job_id="j", slots=1, command_id="c2", wait_s=9)
    other = StartPipelineReq(job_id="j", slots=2, command_id="c1")
    assert codec.body_digest(first) == codec.body_digest(again) != codec.body_digest(other)
    assert codec.body_digest(StopWorkersReq(job_id="j")) != codec.body_digest(
        StopWorkersReq(job_id="j", force=True)
    )


def test_a_program_is_hashed_in_its_canonical_form() -> None:
    expected = hashlib.sha256(b'{"a":[1,{"c":2,"d":3}],"b":null}').hexdigest()
    program = {"b": None, "a": [1, {"d": 3, "c": 2}]}
    assert codec.content_hash(program) == expected


# --- unknown fields -------------------------------------------------------------------------


def test_unknown_fields_are_ignored_and_warned_of_with_the_nearest_known_one() -> None:
    body = b'{"job_id":"j","slots":1,"env_var":{},"zzz":1,"scheduler_config":{"comand":"x"}}'
    codec.decode(body, StartPipelineReq)
    assert codec.warnings_for(body, StartPipelineReq) == [
        "unknown field $.env_var, did you mean env_vars?",
        "unknown field $.zzz",
        "unknown field $.scheduler_config.comand, did you mean command?",
    ]


def test_a_program_may_have_any_fields() -> None:
    assert codec.warnings_for(a_start('"program":{"anything":1}'), StartPipelineReq) == []


def test_there_is_a_limit_to_warnings() -> None:
    body = codec.encode({f"field{number}": 1 for number in range(500)})
    assert len(codec.warnings_for(body, QueryWorkers)) == 20


# --- errors ---------------------------------------------------------------------------------


def test_an_error_comes_back_from_the_wire_as_it_went() -> None:
    error = NotEnoughSlots(3, 2, job_id="j")
    back = codec.error_from_body(codec.encode(error.body()))
    assert isinstance(back, NotEnoughSlots)
    assert (back.slots_needed, back.slots_free, back.message) == (3, 2, error.message)
    assert back.facts == error.facts


@pytest.mark.parametrize("code", CODES)
def test_every_code_finds_its_error(code: str) -> None:
    error = error_from_wire(code, "why", {"x": 1})
    assert (error.code, error.message, error.facts, str(error)) == (code, "why", {"x": 1}, "why")


def test_a_code_of_a_later_version_is_internal() -> None:
    assert isinstance(error_from_wire("tea_break", "later", {}), Internal)


def test_what_is_no_error_is_none() -> None:
    for body in (b"", b"{}", b"[]", b'{"error":1}', b"\xff", b"[" * 100_000, b'{"error":{}'):
        assert codec.error_from_body(body) is None


@pytest.mark.parametrize("name", ["self", "cls", "facts", "args", "path"])
def test_no_fact_of_a_stranger_can_get_in_the_way(name: str) -> None:
    error = codec.error_from_body(codec.encode({"error": {"code": "timeout", name: "x"}}))
    assert isinstance(error, CommandTimeout)
    assert error.facts == {name: "x"}


def test_codes_that_a_client_may_retry() -> None:
    retriable = {code for code in CODES if error_from_wire(code, "", {}).retriable}
    assert retriable == {"not_leader", "timeout", "overloaded"}


def test_statuses_are_those_of_http() -> None:
    assert all(400 <= error_from_wire(code, "", {}).status < 600 for code in CODES)
    assert SlotbusError("x").body() == {"error": {"code": "internal", "message": "x"}}


@pytest.mark.parametrize(
    "kind", [kind for kind in COMMANDS.values() if "not_after" in kind.__struct_fields__]
)
def test_a_time_without_its_zone_is_none(kind: type[msgspec.Struct]) -> None:
    body = b'{"job_id": "j", "node_id": "n", "slots": 1, "not_after": "2026-01-01T00:00:00"}'
    assert invalid(body, kind).path == "$.not_after"
