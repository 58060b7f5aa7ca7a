"""Who a pod is: the labels and annotations it carries, selectors, and the way back.

What lives here: the labels ``cluster``, ``job_id``, ``run_id``, ``job_name`` and
``worker_id``, the one place that builds selectors, and reading a pod's identity. What may
not: everything else of a pod.

A label's value that Kubernetes would not take is a hashed one; the true text stands in an
annotation beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NewType

import msgspec
from msgspec import Struct

from events.errors import Invalid
from events.ids import ID_RE, MAX_INT
from events.traffic import Stamp
from schedulers.kubernetes.names import label_value

CLUSTER: Final = "cluster"
JOB_ID: Final = "job_id"
RUN_ID: Final = "run_id"
JOB_NAME: Final = "job_name"
WORKER_ID: Final = "worker_id"
RESERVED_LABELS: Final = frozenset({CLUSTER, JOB_ID, RUN_ID, JOB_NAME, WORKER_ID})

ANNOTATION_PREFIX: Final = "slotbus/"
"""Annotations that start like this are ours."""

SLOTS: Final = "slotbus/slots"
EPOCH: Final = "slotbus/epoch"
POSITION: Final = "slotbus/position"

Selector = NewType("Selector", str)
"""A label selector that is never empty; made by the functions below only."""


class Identity(Struct, frozen=True, kw_only=True):
    """The worker that a pod is. ``stamp``: the decision it comes from; ``name``: the job's."""

    worker_id: str
    job_id: str
    run_id: int
    name: str
    slots: int
    stamp: Stamp


class RunIdentity(Struct, frozen=True):
    """Whose an object of a whole run is."""

    cluster: str
    job_id: str
    run_id: int


class Marks(Struct, frozen=True):
    """What an object carries so that it can be found and read again."""

    labels: dict[str, str]
    annotations: dict[str, str]


def worker_marks(who: Identity) -> Marks:
    """Labels and annotations of a worker's pod."""
    marks = run_marks(who.stamp.cluster, who.job_id, who.run_id, who.name)
    _mark(marks, WORKER_ID, who.worker_id)
    marks.annotations[SLOTS] = str(who.slots)
    marks.annotations[EPOCH] = str(who.stamp.epoch)
    marks.annotations[POSITION] = str(who.stamp.position)
    return marks


def run_marks(cluster: str, job_id: str, run_id: int, name: str) -> Marks:
    """Labels and annotations of what belongs to a whole run."""
    marks = Marks({}, {})
    _mark(marks, CLUSTER, cluster)
    _mark(marks, JOB_ID, job_id)
    _mark(marks, RUN_ID, str(run_id))
    _mark(marks, JOB_NAME, name)
    return marks


def read_identity(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Identity | None:
    """The worker that these labels and annotations tell of; None where they can't be ours.

    An annotation counts only where its label is the hash of it: a label changed by hand
    makes another pod of it.
    """
    run = read_run(labels, annotations)
    worker_id = _told(WORKER_ID, labels, annotations)
    if run is None or worker_id is None or not ID_RE.match(worker_id):
        return None
    return Identity(
        worker_id=worker_id,
        job_id=run.job_id,
        run_id=run.run_id,
        name=_told(JOB_NAME, labels, annotations) or "",
        slots=_number(annotations.get(SLOTS)) or 1,
        stamp=Stamp(
            cluster=run.cluster,
            epoch=_number(annotations.get(EPOCH)),
            position=_number(annotations.get(POSITION)),
        ),
    )


def read_run(labels: Mapping[str, str], annotations: Mapping[str, str]) -> RunIdentity | None:
    """The run that these labels and annotations tell of, as ``read_identity`` does."""
    cluster, job_id = _told(CLUSTER, labels, annotations), _told(JOB_ID, labels, annotations)
    run_id = _number(_told(RUN_ID, labels, annotations))
    if cluster is None or job_id is None or not run_id:
        return None
    if not (ID_RE.match(cluster) and ID_RE.match(job_id)):
        return None
    return RunIdentity(cluster, job_id, run_id)


def same_worker(one: Identity | None, other: Identity) -> bool:
    """Whether both are the same attempt: what makes "already exists" a success."""
    if one is None or one.stamp.cluster != other.stamp.cluster:
        return False
    fields = ("worker_id", "job_id", "run_id")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def workers(
    cluster: str, job_id: str | None = None, run_id: int | None = None, worker_id: str | None = None
) -> Selector:
    """Selects pods of workers: a cluster's, a job's, a run's, or one. Raises Invalid."""
    wanted = _wanted(cluster, job_id, run_id)
    one = f"{WORKER_ID}={_needed(WORKER_ID, worker_id)}" if worker_id is not None else WORKER_ID
    return Selector(",".join([*wanted, one]))


def programs(cluster: str, job_id: str | None = None, run_id: int | None = None) -> Selector:
    """Selects what belongs to whole runs: their programs. Raises Invalid."""
    return Selector(",".join([*_wanted(cluster, job_id, run_id), f"!{WORKER_ID}"]))


def nobody(selector: Selector) -> Selector:
    """Selects nothing, as a part of what this one selects."""
    return Selector(f"{selector},!{CLUSTER}")


def _wanted(cluster: str, job_id: str | None, run_id: int | None) -> list[str]:
    wanted = [f"{CLUSTER}={_needed(CLUSTER, cluster)}"]
    if job_id is not None:
        wanted.append(f"{JOB_ID}={_needed(JOB_ID, job_id)}")
    if run_id is not None:
        if job_id is None:
            raise Invalid("runs are selected within a job", path=JOB_ID)
        wanted.append(f"{RUN_ID}={run_id}")
    return wanted


def _needed(key: str, text: str) -> str:
    if not text:
        raise Invalid("a selector with an empty value would choose what is not ours", path=key)
    return label_value(text)


def _mark(marks: Marks, key: str, text: str) -> None:
    value = label_value(text)
    marks.labels[key] = value
    if value != text:
        marks.annotations[f"{ANNOTATION_PREFIX}{key}"] = text


def _told(key: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    value = labels.get(key)
    full = annotations.get(f"{ANNOTATION_PREFIX}{key}")
    return full if full is not None and label_value(full) == value else value


def _number(text: str | None) -> int:
    """0 for what is no count: the pod was changed by hand."""
    try:
        number = msgspec.json.decode(text or "0", type=int)
    except msgspec.DecodeError:
        return 0
    return number if 0 <= number <= MAX_INT else 0
