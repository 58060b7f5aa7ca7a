"""The keyword arguments of the client's commands, typed.

What lives here: one dict type per command whose fields are given by name. What may not: what
the fields mean (``events.messages``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypedDict

from events.messages import SchedulerConfig
from events.policies import OnDrain, OnEnd, RestartOptions


class StartFields(TypedDict, total=False):
    """The fields of ``StartPipelineReq``, as keyword arguments of ``start``."""

    job_id: str
    slots: int
    name: str
    program: Any
    wasm_path: str
    hash: str
    run_id: int | None
    env_vars: dict[str, str]
    scheduler_config: SchedulerConfig
    on_shortage: Literal["fail", "wait"] | None
    priority: int
    not_after: datetime | None
    on_failure: OnEnd | None
    on_lost: OnEnd | None
    on_drain: OnDrain | None
    restart: RestartOptions
    command_id: str | None
    wait_s: float


class StopFields(TypedDict, total=False):
    """The fields of ``StopWorkersReq`` beside the job, as arguments of ``stop``."""

    run_id: int | None
    force: bool
    grace_s: float
    wait_s: float
    command_id: str | None
