"""What is known of the pods, whatever order it is heard of in."""

from __future__ import annotations

from typing import Any

import msgspec

from events.states import WorkerState
from events.traffic import Stamp, WorkerFinishedReq
from schedulers.kubernetes.identity import Identity, worker_marks
from schedulers.kubernetes.names import pod_name
from schedulers.kubernetes.phases import Asked
from schedulers.kubernetes.pods import Pod
from schedulers.kubernetes.view import PodView
from schedulers.launcher import HostSeen, Report, WorkerSeen

C = "here"


class Told:
    """A view, and what it has told: where pods are apart from the rest."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.hosts: list[HostSeen] = []
        self.view = PodView(C, self._hear)

    def _hear(self, report: Report) -> None:
        if isinstance(report, HostSeen):
            self.hosts.append(report)
        else:
            self.reports.append(report)

    @property
    def ends(self) -> list[WorkerFinishedReq]:
        return [one for one in self.reports if isinstance(one, WorkerFinishedReq)]

    @property
    def lost(self) -> list[str]:
        return [one.worker_id for one in self.reports if isinstance(one, WorkerSeen) and one.lost]


def pod(
    phase: str = "Pending", *, worker: str = "w1", uid: str = "u1", name: str = "",
    deleted: bool = False, node: str = "n1", code: int | None = None, cluster: str = C,
) -> Pod:  # fmt: skip
    who = Identity(
        worker_id=worker, job_id="j", run_id=1, name="j", slots=2,
        stamp=Stamp(cluster=cluster, epoch=1, position=1),
    )  # fmt: skip
    marks = worker_marks(who)
    state: dict[str, Any] = {"running": {}} if phase == "Running" else {"waiting": {}}
    if code is not None:
        state = {"terminated": {"exitCode": code}}
    tree: dict[str, Any] = {
        "metadata": {
            "name": name or pod_name(C, "j", 1, worker),
            "uid": uid,
            "labels": marks.labels,
            "annotations": marks.annotations,
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "containerStatuses": [{"name": "worker", "state": state}]},
    }
    if deleted:
        tree["metadata"] |= {
            "deletionTimestamp": "2026-01-01T10:00:00Z", "deletionGracePeriodSeconds": 5,
        }  # fmt: skip
    return msgspec.convert(tree, Pod)


def test_where_a_pod_is_is_told_once() -> None:
    told = Told()
    told.view.take(pod(node=""), 0)
    assert told.hosts == []
    told.view.take(pod(), 1)
    told.view.take(pod("Running"), 2)
    told.view.gone(pod("Succeeded", code=0), 3)
    assert told.hosts == [HostSeen(worker_id="w1", host="n1")]


def test_an_old_event_does_not_take_a_pod_back() -> None:
    told = Told()
    told.view.take(pod("Running"), 0)
    tracked = told.view.take(pod("Pending"), 1)
    assert tracked is not None
    assert tracked.sight.state is WorkerState.RUNNING
    told.view.take(pod("Succeeded", code=0), 2)
    told.view.take(pod("Running"), 3)
    assert [end.exit_code for end in told.ends] == [0]
    assert told.view.rows()[0].state is WorkerState.FINISHED


def test_an_end_is_told_once_and_stays_until_it_is_acknowledged() -> None:
    told = Told()
    for _ in range(3):
        told.view.take(pod("Failed", code=3), 0)
    told.view.gone(pod("Failed", code=3), 1)
    assert [(end.exit_code, end.slots) for end in told.ends] == [(3, 2)]
    assert len(told.view.rows()) == 1
    told.view.forget("w1")
    assert told.view.rows() == []
    assert told.view.take(pod("Running"), 2) is None
    told.view.gone(pod("Running"), 3)
    assert len(told.reports) == 1


def test_a_pod_created_and_deleted_between_two_looks_is_told_of_all_the_same() -> None:
    told = Told()
    told.view.gone(pod("Succeeded", code=0), 0)
    assert [end.exit_code for end in told.ends] == [0]


def test_what_a_list_lacks_is_gone_unless_it_is_younger_than_the_list() -> None:
    told = Told()
    told.view.take(pod("Running"), 1)
    told.view.take(pod("Running", worker="w2", uid="u2"), 5)
    told.view.listed([], 6, 4, found=False)
    assert told.lost == ["w1"]
    assert [row.worker_id for row in told.view.rows()] == ["w1", "w2"]
    assert {row.state for row in told.view.rows()} == {WorkerState.ASSIGNED, WorkerState.RUNNING}


def test_who_asked_for_a_deletion_makes_the_difference() -> None:
    told = Told()
    by_hand = told.view.take(pod("Running"), 0)
    told.view.take(pod("Running", deleted=True), 1)
    assert told.lost == ["w1"]
    assert by_hand is not None

    asked = told.view.take(pod("Running", worker="w2", uid="u2"), 0)
    assert asked is not None
    told.view.asking(asked, 5)
    told.view.take(pod("Running", worker="w2", uid="u2", deleted=True), 1)
    told.view.asked(asked)
    told.view.gone(pod("Running", worker="w2", uid="u2", deleted=True), 2)
    assert told.lost == ["w1"]
    assert [(e.worker_id, e.state) for e in told.ends] == [("w2", WorkerState.FINISHED)]


def test_what_goes_while_we_ask_waits_for_the_answer() -> None:
    """Somebody else may have been faster, and by force: then it proves nothing."""
    told = Told()
    tracked = told.view.take(pod("Running"), 0)
    assert tracked is not None
    before = told.view.asking(tracked, 5)
    told.view.gone(pod("Running", deleted=True), 1)
    assert told.reports == []
    tracked.asked = before  # the answer was: there is no such pod
    told.view.asked(tracked)
    assert (told.lost, told.ends) == (["w1"], [])


def test_what_was_found_being_deleted_was_perhaps_asked_for() -> None:
    told = Told()
    told.view.take(pod("Running", deleted=True), 0, found=True)
    assert told.lost == ["w1"]
    told.view.take(pod("Failed", deleted=True, code=143), 1)
    assert [(e.exit_code, e.reason) for e in told.ends] == [(143, "exit code 143")]


def test_an_object_removed_by_force_proves_nothing() -> None:
    told = Told()
    tracked = told.view.take(pod("Running"), 0)
    assert tracked is not None
    told.view.asking(tracked, 0)
    told.view.asked(tracked)
    assert tracked.asked is Asked.FORCED
    told.view.gone(pod("Running"), 1)
    assert told.ends == []
    assert told.view.rows()[0].state is WorkerState.ASSIGNED
    # Without a node nothing can run.
    unbound = told.view.take(pod("Pending", worker="w2", uid="u2", node=""), 0)
    assert unbound is not None
    told.view.asking(unbound, 0)
    told.view.asked(unbound)
    told.view.gone(pod("Pending", worker="w2", uid="u2", node=""), 1)
    assert [end.worker_id for end in told.ends] == ["w2"]


def test_two_pods_that_claim_to_be_one_worker() -> None:
    told = Told()
    told.view.take(pod("Running", name="made-by-hand", uid="u0"), 0)
    assert told.view.of("w1") is not None
    told.view.take(pod("Running"), 1)
    tracked = told.view.of("w1")
    assert tracked is not None
    assert tracked.uid == "u1"
    told.view.take(pod("Failed", code=1, name="made-by-hand", uid="u0"), 2)
    assert told.ends == []


def test_pods_of_others_are_not_looked_at() -> None:
    told = Told()
    assert told.view.take(pod("Running", cluster="elsewhere"), 0) is None
    assert len(told.view) == 0
