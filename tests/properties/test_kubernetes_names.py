"""Names and labels made of any text: taken by Kubernetes, stable, and never another's."""

from __future__ import annotations

import re
import string

from hypothesis import assume, example, given
from hypothesis import strategies as st

from events.traffic import Stamp
from schedulers.kubernetes.identity import (
    RESERVED_LABELS,
    Identity,
    programs,
    read_identity,
    run_marks,
    same_worker,
    worker_marks,
    workers,
)
from schedulers.kubernetes.names import (
    dns_label,
    is_qualified_name,
    label_value,
    pod_name,
    program_name,
)

# Kubernetes' own words (apimachinery, util/validation), not the module's.
DNS_1123_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

IDS = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=128)
NEAR = st.text("aA-_.0é", max_size=70)
TEXTS = st.one_of(st.text(max_size=300), NEAR)
RUNS = st.integers(1, 2**63 - 1)


@given(TEXTS)
@example("x" * 200)
@example("größe")
@example("ends-in-a-dash-")
@example("___")
@example("")
@example("\ud800")
def test_any_text_gives_a_name_and_a_value(text: str) -> None:
    name, value = dns_label(text), label_value(text)
    assert DNS_1123_LABEL.fullmatch(name)
    assert len(name) <= 63
    assert LABEL_VALUE.fullmatch(value)
    assert len(value) <= 63
    assert (name, value) == (dns_label(text), label_value(text))


@given(TEXTS, TEXTS)
@example("a_b", "a-b")
@example("A", "a")
@example("x" * 200, "x" * 199 + "y")
@example("a", "a-")
def test_different_texts_differ(one: str, other: str) -> None:
    assume(one != other)
    assert dns_label(one) != dns_label(other)
    assert label_value(one) != label_value(other)


@given(TEXTS)
@example("a_b")
def test_no_text_can_pass_for_the_name_of_another(text: str) -> None:
    name, value = dns_label(text), label_value(text)
    assert name == text or dns_label(name) != name
    assert value == text or label_value(value) != value


@given(st.from_regex(DNS_1123_LABEL, fullmatch=True).filter(lambda text: len(text) <= 63))
def test_what_is_one_already_stays(text: str) -> None:
    assume("--" not in text)
    assert dns_label(text) == label_value(text) == text


@given(IDS, RUNS, IDS)
@example("-", 2**63 - 1, "-")
@example("x" * 128, 2**63 - 1, "w" * 128)
def test_pods_and_programs_have_names(job_id: str, run_id: int, worker_id: str) -> None:
    for name in (
        pod_name("slotbus", job_id, run_id, worker_id),
        program_name("slotbus", job_id, run_id),
    ):
        assert DNS_1123_LABEL.fullmatch(name)
        assert len(name) <= 63


@given(st.tuples(IDS, IDS, RUNS, IDS), st.tuples(IDS, IDS, RUNS, IDS))
@example(("c", "a_b", 1, "w"), ("c", "a-b", 1, "w"))
@example(("c", "a", 1, "1-w"), ("c", "a-1", 1, "w"))
@example(("c", "job", 1, "w"), ("d", "job", 1, "w"))
def test_no_two_workers_share_a_pod(
    one: tuple[str, str, int, str], other: tuple[str, str, int, str]
) -> None:
    assume(one != other)
    assert pod_name(*one) != pod_name(*other)


IDENTITIES = st.builds(
    Identity,
    worker_id=IDS,
    job_id=IDS,
    run_id=RUNS,
    name=TEXTS,
    slots=RUNS,
    stamp=st.builds(Stamp, cluster=IDS, epoch=st.integers(0, 2**63 - 1), position=RUNS),
)


@given(IDENTITIES)
def test_a_pod_tells_who_it_is(who: Identity) -> None:
    marks = worker_marks(who)
    assert marks.labels.keys() == RESERVED_LABELS
    assert all(LABEL_VALUE.fullmatch(value) for value in marks.labels.values())
    assert all(is_qualified_name(key) for key in marks.annotations)
    assert read_identity(marks.labels, marks.annotations) == who
    assert same_worker(read_identity(marks.labels, marks.annotations), who)


@given(
    st.dictionaries(st.sampled_from(sorted(RESERVED_LABELS)), st.text(max_size=70)),
    st.dictionaries(
        st.sampled_from(["slotbus/slots", "slotbus/epoch", "slotbus/job_id", "slotbus/position"]),
        st.text(max_size=70),
    ),
)
def test_labels_written_by_anybody_are_read_without_a_fault(
    labels: dict[str, str], annotations: dict[str, str]
) -> None:
    who = read_identity(labels, annotations)
    assert who is None or (who.slots >= 1 and who.run_id >= 1)


@given(IDENTITIES, IDENTITIES)
def test_a_selector_chooses_exactly_its_own(who: Identity, other: Identity) -> None:
    selector = workers(who.stamp.cluster, who.job_id, who.run_id, who.worker_id)
    assert chosen(selector, worker_marks(who).labels)
    if not same_worker(other, who):
        assert not chosen(selector, worker_marks(other).labels)
    of_run = run_marks(who.stamp.cluster, who.job_id, who.run_id, who.name)
    assert not chosen(selector, of_run.labels)
    assert chosen(programs(who.stamp.cluster, who.job_id), of_run.labels)
    assert not chosen(programs(who.stamp.cluster), worker_marks(who).labels)


def chosen(selector: str, labels: dict[str, str]) -> bool:
    """Equality, existence and absence, as the API server understands them."""
    assert selector
    for term in selector.split(","):
        key, found, value = term.partition("=")
        if found and labels.get(key) != value:
            return False
        if not found and (key.removeprefix("!") in labels) == key.startswith("!"):
            return False
    return True
