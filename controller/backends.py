"""Backends by name: what a controller's configuration makes of each.

What lives here: the way from ``ControllerConfig`` to the engine's rules and backend. What
may not: what a backend does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from nats.aio.client import Client

from controller.config import ControllerConfig, default_state_dir
from events.errors import Invalid
from events.policies import Restarting
from events.subjects import Subjects
from schedulers.decide import Rules
from schedulers.embedded import embedded_backend, embedded_rules
from schedulers.engine import Backend
from schedulers.kubernetes.connecting import obstacle, own_namespace
from schedulers.kubernetes.scheduler import kubernetes_backend, kubernetes_rules
from schedulers.manual import manual_backend, manual_rules
from schedulers.node.backend import node_backend
from schedulers.node.identity import machine_id
from schedulers.process import LOCAL_NODE, process_backend, process_rules
from schedulers.supervisor.starter import ensure_supervisor


def rules_of(config: ControllerConfig) -> Rules:
    """What decisions depend on."""
    rules = Rules(
        heartbeat_s=config.heartbeat_s,
        expiry_s=config.node_expiry_s,
        start_timeout_s=config.start_timeout_s,
        launch_timeout_s=config.launch_timeout_s,
        stop_timeout_s=config.stop_timeout_s,
        allow_job_command=config.allow_job_command,
        worker_command=config.worker_command,
        on_shortage=config.on_shortage,
        on_failure=config.on_failure,
        on_lost=config.on_lost,
        on_drain=config.on_drain or None,
        restart=Restarting(
            first_s=config.restart_first_s,
            longest_s=config.restart_longest_s,
            limit=config.restart_limit,
            window_s=config.restart_window_s,
            quiet_s=config.restart_quiet_s,
        ),
    )
    match config.scheduler:
        case "process":
            return process_rules(rules, config.slots_per_process)
        case "embedded":
            return embedded_rules(rules, config.slots_per_process)
        case "kubernetes":
            return kubernetes_rules(rules, config.pods())
        case "manual":
            return manual_rules(rules, config.slots_per_process)
        case _:
            return rules


def state_dir_of(config: ControllerConfig, environ: Mapping[str, str] = os.environ) -> Path:
    """Where this controller's supervisor lives; controllers of one cluster on one machine
    share it, so that one can take over another's workers."""
    if config.state_dir:
        return Path(config.state_dir)
    return default_state_dir(environ, f"local-{Subjects(config.root).token}")


async def obstacle_of(config: ControllerConfig) -> str:
    """What would be in this controller's way if it had to lead now, "" for nothing. Looks
    only: a standby asks for it."""
    if config.scheduler != "kubernetes":
        return ""
    return await obstacle(config.pods(own_namespace()))


def make_backend(
    config: ControllerConfig,
    nc: Client,
    subjects: Subjects,
    environ: Mapping[str, str] = os.environ,
) -> Backend:
    """The configured backend. Raises Invalid where its state directory can't be made."""
    match config.scheduler:
        case "node":
            return node_backend(nc, subjects)
        case "embedded":
            return embedded_backend(task_slots=config.task_slots)
        case "kubernetes":
            return kubernetes_backend(config.pods(own_namespace(environ)))
        case "manual":
            return manual_backend(task_slots=config.task_slots)
    state_dir = state_dir_of(config, environ)
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Invalid(
            f"the state directory {state_dir} can't be made: {error.strerror}", path="state_dir"
        ) from error
    return process_backend(
        partial(ensure_supervisor, state_dir, LOCAL_NODE),
        machine_id=machine_id(state_dir),
        task_slots=config.task_slots,
    )
