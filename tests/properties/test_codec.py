"""The codec: round trips, and nothing that comes in can make it do anything but refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events import codec
from events.errors import Invalid, TooLarge, error_from_wire
from events.facts import Record, RunCreated
from events.ids import START
from events.log import LogUnreadable, decode_record, encode_record
from events.messages import (
    ConfirmDeadReq,
    CordonReq,
    DrainReq,
    SchedulerConfig,
    StartPipelineReq,
    StopWorkersReq,
)
from events.queries import QueryJobs, QueryNodes, QueryWorkers
from events.states import WorkerState
from events.subjects import Subjects
from events.traffic import (
    AgentStart,
    HeartbeatNodeReq,
    InventoryReply,
    InventoryRow,
    RegisterNodeReq,
    Stamp,
    WorkerFinishedReq,
)

KINDS: list[type[msgspec.Struct]] = [
    AgentStart,
    ConfirmDeadReq,
    CordonReq,
    DrainReq,
    HeartbeatNodeReq,
    InventoryReply,
    QueryJobs,
    QueryNodes,
    QueryWorkers,
    RegisterNodeReq,
    StartPipelineReq,
    StopWorkersReq,
    WorkerFinishedReq,
]
FIELDS = sorted({field.encode_name for kind in KINDS for field in msgspec.structs.fields(kind)})

ids = st.text("abcXYZ019_-", min_size=1, max_size=128)
counts = st.integers(1, 2**63 - 1)
waits = st.floats(0, 86_400, allow_nan=False)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
env_names = st.from_regex(r"[A-RT-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True)
starts = st.builds(
    StartPipelineReq,
    job_id=ids,
    slots=counts,
    name=texts,
    program=json_values,
    wasm_path=texts,
    hash=texts,
    run_id=st.none() | counts,
    env_vars=st.dictionaries(env_names, texts, max_size=3),
    scheduler_config=st.builds(
        SchedulerConfig,
        command=st.none() | texts | st.lists(texts, max_size=3),
        selector=st.dictionaries(texts, texts, max_size=2),
        spread=st.sampled_from(["pack", "even"]),
        stop_after_s=st.none() | waits,
    ),
    command_id=st.none() | ids,
    wait_s=waits,
)
stamps = st.builds(Stamp, cluster=texts, epoch=st.integers(0, 2**62), position=st.integers(0, 9))
rows = st.builds(
    InventoryRow,
    worker_id=ids,
    job_id=ids,
    run_id=counts,
    slots=counts,
    state=st.sampled_from(WorkerState),
    pid=st.none() | st.integers(1, 2**31),
    stamp=st.none() | stamps,
)
registrations = st.builds(
    RegisterNodeReq,
    node_id=ids,
    task_slots=st.integers(0, 1_000_000),
    incarnation=ids,
    labels=st.dictionaries(texts, texts, max_size=3),
    workers=st.none() | st.lists(rows, max_size=3),
)
bodies = (
    st.binary(max_size=60)
    | json_values.map(msgspec.json.encode)
    | st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6).map(msgspec.json.encode)
)


@given(starts | registrations)
def test_a_message_comes_back_as_it_went(message: msgspec.Struct) -> None:
    assert codec.decode(codec.encode(message), type(message)) == message


@given(starts)
def test_a_message_made_of_values_is_the_same_as_one_made_of_bytes(
    message: StartPipelineReq,
) -> None:
    tree = msgspec.json.decode(codec.encode(message))
    assert codec.convert(tree, StartPipelineReq) == message
    assert codec.body_digest(codec.convert(tree, StartPipelineReq)) == codec.body_digest(message)


@pytest.mark.parametrize("kind", KINDS)
@given(body=bodies)
def test_whatever_comes_in_is_a_message_or_refused(kind: type[msgspec.Struct], body: bytes) -> None:
    message = taken_or_refused(lambda: codec.decode(body, kind))
    if message is not None:
        codec.warnings_for(body, kind)  # type: ignore[arg-type]
        codec.body_digest(message)
        assert codec.decode(codec.encode(message), kind) == message


def taken_or_refused(decode: Callable[[], msgspec.Struct]) -> msgspec.Struct | None:
    """The message, or None after a refusal that can be told to its sender."""
    with suppress(Invalid, TooLarge):
        return decode()
    with pytest.raises((Invalid, TooLarge)) as caught:
        decode()
    told = msgspec.json.decode(codec.encode(caught.value.body()))["error"]
    assert told["message"]
    assert told["code"] == caught.value.code
    return None


@given(bodies)
def test_whatever_comes_in_under_a_subject_is_a_message_or_refused(body: bytes) -> None:
    message = taken_or_refused(lambda: codec.decode_with(body, HeartbeatNodeReq, node_id="n1"))
    assert message is None or codec.decode(codec.encode(message), HeartbeatNodeReq) == message


@given(bodies)
def test_whatever_a_reply_is_reading_its_error_raises_nothing(body: bytes) -> None:
    error = codec.error_from_body(body)
    assert error is None or error.message is not None


@given(json_values)
def test_a_hash_follows_from_the_value_alone(value: object) -> None:
    back = msgspec.json.decode(msgspec.json.encode(value))
    assert codec.content_hash(back) == codec.content_hash(value)


@given(st.text(max_size=10), st.text(max_size=10), st.dictionaries(texts, st.integers()))
def test_any_error_can_be_made_from_the_wire(
    code: str, message: str, facts: dict[str, int]
) -> None:
    error = error_from_wire(code, message, dict(facts))
    assert (error.message, error.facts) == (message, facts)


@given(bodies)
def test_a_line_that_is_no_record_is_unreadable_and_nothing_else(line: bytes) -> None:
    with suppress(LogUnreadable):
        assert isinstance(decode_record(line, START), Record)


@given(json_values.map(msgspec.json.encode))
def test_a_record_is_one_line_whatever_its_program_is(program: bytes) -> None:
    pretty = msgspec.json.format(program, indent=2)
    record = Record(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        epoch=1,
        cause="start",
        events=[
            RunCreated(
                job_id="j",
                run_id=1,
                command_id="c",
                slots=1,
                name="j",
                hash="",
                deadline=datetime(2026, 1, 1, tzinfo=UTC),
                program=msgspec.Raw(pretty),
            )
        ],
    )
    line = encode_record(record)
    assert b"\n" not in line
    (fact,) = decode_record(line, START).events
    assert isinstance(fact, RunCreated)
    assert msgspec.json.decode(fact.program) == msgspec.json.decode(program)


@given(ids, st.sampled_from(["register", "heartbeat", "finished"]))
def test_a_node_subject_says_whose_it_is(node_id: str, verb: str) -> None:
    tree = Subjects("a.b")
    found = tree.parse_node(tree.node(node_id, verb))
    assert (found.node_id, found.verb) == (node_id, verb)


@given(st.text(max_size=30))
def test_any_other_subject_is_invalid_and_nothing_else(subject: str) -> None:
    with pytest.raises(Invalid):
        Subjects().parse_node(subject)
