"""Whose end a person may report: only what nobody else can know."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest

from controller.cli.reporting import _row
from controller.cli.running import UsageProblem
from events.client import SlotbusClient
from events.queries import NodeRow, WorkerRow
from events.states import NodeState, WorkerState


class Bus:
    """Knows one worker on one node."""

    def __init__(self, worker: WorkerState, node: NodeState) -> None:
        self._worker, self._node = worker, node

    async def workers(self, *, include_ended: bool) -> list[WorkerRow]:
        return [
            WorkerRow(
                worker_id="w",
                job_id="j",
                run_id=1,
                node_id="n1",
                slots=1,
                state=self._worker,
                since=datetime(2026, 1, 1, tzinfo=UTC),
            )
        ]

    async def nodes(self) -> list[NodeRow]:
        return [
            NodeRow(
                node_id="n1",
                addr="",
                state=self._node,
                registered_slots=1,
                free_slots=0,
                scheduled_slots=1,
                heartbeat_age_s=None,
                labels={},
            )
        ]


def bus(worker: WorkerState, node: NodeState) -> SlotbusClient:
    return cast(SlotbusClient, Bus(worker, node))


@pytest.mark.parametrize("state", [WorkerState.LOST, WorkerState.STOPPING])
async def test_a_person_may_speak_for_a_node_that_has_expired(state: WorkerState) -> None:
    assert (await _row(bus(state, NodeState.EXPIRED), "w")).worker_id == "w"


@pytest.mark.parametrize(
    ("worker", "node"),
    [(WorkerState.STOPPING, NodeState.READY), (WorkerState.RUNNING, NodeState.EXPIRED)],
)
async def test_a_node_that_answers_speaks_for_itself(worker: WorkerState, node: NodeState) -> None:
    with pytest.raises(UsageProblem, match="reports its end itself"):
        await _row(bus(worker, node), "w")
