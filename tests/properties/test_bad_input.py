"""Whatever bodies come in whatever order: each is answered, and the laws are kept."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.fuzz import KINDS, NODE_KINDS, Hostile
from controller.services import read_request
from events.asking import ROUTES
from events.codec import decode_with, encode
from events.errors import CODES, SlotbusError
from events.log import encode_record
from schedulers.decide.messages import Inbound
from tests.support.story import Story, acknowledged, launches, never_ran, stops

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)  # fmt: skip
names = sorted({field.encode_name for kind in KINDS for field in msgspec.structs.fields(kind)})
objects = st.dictionaries(st.sampled_from(names), json_values, max_size=8)
bodies = st.binary(max_size=80) | json_values.map(msgspec.json.encode) | objects.map(encode)
steps = st.lists(
    st.tuples(st.sampled_from(KINDS), bodies, st.sampled_from(["n1", "n2"])), max_size=12
)


def read(kind: type[msgspec.Struct], body: bytes, node_id: str) -> Inbound:
    if kind in NODE_KINDS:
        return decode_with(body, kind, node_id=node_id)  # type: ignore[return-value]
    return read_request(kind, body, None, [])  # type: ignore[type-var, return-value]


def send(story: Story, kind: type[msgspec.Struct], body: bytes, node_id: str) -> None:
    """One body, and what a willing node makes of what it leads to."""
    refusal: SlotbusError | None = None
    try:
        message = read(kind, body, node_id)
    except SlotbusError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code in {"invalid", "too_large"}
        assert encode(refusal.body())
        return
    draft = story.tell(message, after=1.0)
    assert draft.answer is not None or draft.joined is not None
    if isinstance(draft.answer, SlotbusError):
        assert draft.answer.code in CODES
        assert encode(draft.answer.body())
    elif draft.answer is not None:
        assert encode(draft.answer)
    if draft.record is not None:
        assert encode_record(draft.record)
    for order in launches(draft):
        story.tell(acknowledged(order))
    for signal in stops(draft):
        story.tell(never_ran(signal))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_any_bodies_are_answered(chosen: list[tuple[type[msgspec.Struct], bytes, str]]) -> None:
    story = Story()
    for kind, body, node_id in chosen:
        send(story, kind, body, node_id)
    story.check()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_nearly_valid_bodies_are_answered(seed: int) -> None:
    story, hostile = Story(), Hostile(seed)
    for _ in range(60):
        body = hostile.body()
        send(story, body.kind, body.data, body.node_id)
    story.check()


def test_every_request_of_the_wire_is_fuzzed() -> None:
    assert set(ROUTES) <= set(KINDS)
    assert set(NODE_KINDS) <= set(KINDS)
