"""Commands that are programs of their own: up, controller, agent, demo.

What lives here: their arguments, and the way from flags to a configuration. What may not:
anything heavy at the top; see ``controller.cli``.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import (
    PROGRAM,
    ConfigFile,
    Http,
    LogLevel,
    NodeExpiry,
    Record,
    SchedulerChoice,
    StateDir,
    WorkerCommand,
)


@with_nats
def up(
    nodes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=100,
            help="Agents on this machine; 0 runs workers without agents.",
        ),
    ] = 0,
    slots: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="Slots of every node.")
    ] = 16,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65_535, help="For NATS [4222, or a free one if it is taken]."
        ),
    ] = None,
    worker_command: WorkerCommand = None,
    node_expiry: NodeExpiry = None,
    http: Http = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    record: Record = None,
    log_level: LogLevel = None,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Run everything on this machine: NATS, a controller and its workers.

    An own NATS server, unless a flag, NATS_URL, a named context or a setting says which.
    Other commands find it by themselves. Ctrl-C stops all jobs and ends everything in
    order; the event log stays in the state directory and is there again next time.
    """
    from controller.cli.finding import settings_of_others
    from controller.cli.output import write
    from controller.cli.running import as_usage, reported, run_program
    from controller.config import ControllerConfig, load_controller
    from controller.logs import setup_logging
    from controller.up import UpConfig, run_up
    from events.settings import DEFAULT_SERVER

    flags: dict[str, object] = {
        **nats.settings(),
        "scheduler": "node" if nodes else "process",
        "worker_command": worker_command,
        "node_expiry_s": node_expiry,
        "http": http,
        "task_slots": slots,
        "state_dir": state_dir,
        "log_level": log_level,
        "record": record,
    }
    with reported():
        with as_usage():
            base = load_controller(
                file=config,
                environ=os.environ,
                flags=flags,
                also_known=settings_of_others(ControllerConfig),
                use_selected=False,
            )
        said = nats.server or os.environ.get("NATS_URL") or base.context
        own_server = not said and base.server == DEFAULT_SERVER
        plan = UpConfig(controller=base, nodes=nodes, slots=slots, own_server=own_server, port=port)
        setup_logging(log_level or "warning", base.log_format)
        run_program(lambda stop: run_up(plan, write, stop))


@with_nats
def controller(
    scheduler: Annotated[
        SchedulerChoice | None,
        typer.Option(
            help="process runs workers on this machine, node on agents, kubernetes as pods, "
            "embedded as tasks of this controller; manual prints what a person is to run "
            "(process).",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    worker_command: WorkerCommand = None,
    node_expiry: NodeExpiry = None,
    http: Http = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    record: Record = None,
    log_level: LogLevel = None,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Run a controller. A second one waits until the first is gone.

    Every setting can come from a TOML file, from SLOTBUS_CFG_<NAME> in the environment,
    or from a flag; the later wins. TERM or Ctrl-C ends it; workers go on.
    """
    from controller.app import run_controller
    from controller.cli.finding import settings_of_others
    from controller.cli.running import as_usage, reported, run_program
    from controller.config import ControllerConfig, load_controller
    from controller.logs import setup_logging
    from events.collector import calm_collector

    flags: dict[str, object] = {
        "scheduler": None if scheduler is None else scheduler.value,
        **nats.settings(),
        "worker_command": worker_command,
        "node_expiry_s": node_expiry,
        "http": http,
        "state_dir": state_dir,
        "log_level": log_level,
        "record": record,
    }
    with reported():
        with as_usage():
            chosen = load_controller(
                file=config,
                environ=os.environ,
                flags=flags,
                also_known=settings_of_others(ControllerConfig),
            )
        setup_logging(chosen.log_level, chosen.log_format)
        calm_collector()
        run_program(lambda stop: run_controller(chosen, stop=stop))


@with_nats
def agent(
    node_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Id of this node (the host's name).", rich_help_panel=PROGRAM
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(metavar="N", help="Slots that it offers [16].", rich_help_panel=PROGRAM),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            "-l",
            metavar="K=V",
            help="For selectors; repeatable.",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    worker_command: WorkerCommand = None,
    stop_workers_on_exit: Annotated[
        bool | None,
        typer.Option(
            "--stop-workers-on-exit",
            help="Workers end with the agent instead of going on without it.",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    http: Http = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    log_level: LogLevel = None,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Run the agent of a node: it starts and stops workers as the controller says.

    TERM or Ctrl-C ends it; its workers go on under their supervisor, and the next agent
    with the same state directory takes them up.
    """
    from controller.agent import run_agent_program
    from controller.cli.finding import settings_of_others
    from controller.cli.job_file import pairs
    from controller.cli.running import as_usage, reported, run_program
    from controller.loading import load
    from controller.logs import setup_logging
    from schedulers.node.config import AgentConfig, check_agent

    with reported():
        with as_usage():
            flags: dict[str, object] = {
                "node_id": node_id,
                "slots": slots,
                "labels": pairs(label, "--label") if label else None,
                **nats.settings(),
                "worker_command": worker_command,
                "stop_workers_on_exit": stop_workers_on_exit,
                "http": http,
                "state_dir": state_dir,
                "log_level": log_level,
            }
            chosen = load(
                AgentConfig,
                file=config,
                environ=os.environ,
                flags=flags,
                also_known=settings_of_others(AgentConfig),
                check=check_agent,
            )
        setup_logging(chosen.log_level, chosen.log_format)
        run_program(lambda stop: run_agent_program(chosen, stop=stop))


def demo() -> None:
    """Watch slotbus survive the loss of a node: real processes, about half a minute.

    NATS, a controller, three nodes and a pipeline are started, one node is killed, and
    every promise is checked; the exit code tells whether all held.
    """
    from controller.demo.main import run_demo

    code = run_demo()
    if code:
        raise typer.Exit(code)
