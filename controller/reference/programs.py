"""The pages about the programs: command line, configuration, metrics.

What lives here: their order and headings. What may not: any option, setting or metric by
name; they are taken from the programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import typer.main
from msgspec import Struct
from msgspec import inspect as types
from prometheus_client.metrics_core import Metric

from controller.agent import AgentMetrics
from controller.cli.finding import ClientConfig
from controller.cli.main import app
from controller.config import ControllerConfig, env_name
from controller.metrics import Metrics
from controller.outbox import InboxStats
from controller.reference.markdown import (
    code,
    default_of,
    description_of,
    in_words,
    own_doc,
    prose,
    table,
)
from controller.reference.sample import led_for_show
from schedulers.node.config import AgentConfig
from schedulers.node.stats import AgentStats

WIDTH: Final = 100
_MARKUP: Final = re.compile(r"\[/?bold\]")

_PROGRAMS: Final[tuple[tuple[str, type[Struct]], ...]] = (
    ("Controller", ControllerConfig),
    ("Agent", AgentConfig),
    ("Client commands", ClientConfig),
)


def cli_page() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    context = group.context_class(group, info_name=app.info.name, terminal_width=WIDTH)
    parts = [f"# {app.info.name}", _plain(group.help), _plain(group.epilog)]
    panel = ""
    for name, command in group.commands.items():
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"## {panel}")
        parts += _command(name, command, context)
        for below, one in getattr(command, "commands", {}).items():
            parts += _command(f"{name} {below}", one, context)
    return "\n\n".join(text for text in parts if text)


def _command(name: str, command: Any, context: Any) -> list[str]:
    own = command.context_class(command, info_name=name, parent=context)
    usage = " ".join(command.get_usage(own).split()).removeprefix("Usage: ")
    records = [p.get_help_record(own) for p in command.params]
    rows = [(code(record[0]), _plain(record[1])) for record in records if record is not None]
    return [
        f"### {app.info.name} {name}",
        f"    {usage}",
        _plain(command.help),
        table(("argument or option", ""), rows) if rows else "",
    ]


def _plain(text: str | None) -> str:
    return prose(_MARKUP.sub("", text or ""))


def configuration_page() -> str:
    """Every setting of every program."""
    parts = [
        "# Configuration",
        "Who wins, in this order: flags, the environment, a TOML file (`--config`; flat), the "
        "default. Text for a list is split like a shell's words, text for an object is `k=v` "
        "joined by commas; both may be JSON. `NATS_URL` sets `server` where nothing else does.",
    ]
    for title, kind in _PROGRAMS:
        parts += [f"## {title}", own_doc(kind), _settings(kind)]
    return "\n\n".join(parts)


def _settings(kind: type[Struct]) -> str:
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    rows = [
        (
            code(one.name),
            code(env_name(one.name)),
            in_words(one.type),
            default_of(one),
            description_of(one.type),
        )
        for one in info.fields
    ]
    return table(("setting", "in the environment", "type", "default", "meaning"), rows)


def metrics_page() -> str:
    """Every series of ``/metrics``, with its labels."""
    controller = Metrics(InboxStats(), version="")
    _fill(controller.inbox)
    controller.violations[1] += 1
    controller.lead(led_for_show())
    controller.command_took("", 0.0)
    agent = AgentMetrics(AgentStats())
    return "\n\n".join(
        [
            "# Metrics",
            "In Prometheus's text format on `/metrics`. Those of the ledger (slots, nodes, "
            "workers, jobs) are there while the controller leads, those of Kubernetes where "
            "workers are pods. Those of single nodes (`node_id`) are left out where there are more "
            "nodes than `metrics_nodes`.",
            "## Of a controller",
            _series(controller.families()),
            "## Of an agent",
            _series(agent.collect()),
        ]
    )


def _fill(stats: InboxStats) -> None:
    """One of each count, so that every series shows its labels."""
    stats.received["x"] += 1
    stats.dropped["x"] += 1
    stats.errors["x", "x"] += 1


def _series(families: Iterable[Metric]) -> str:
    rows = [
        (
            code(family.name + ("_total" if family.type == "counter" else "")),
            family.type,
            ", ".join(code(label) for label in _labels(family)),
            family.documentation,
        )
        for family in families
    ]
    return table(("series", "type", "labels", "meaning"), sorted(rows))


def _labels(family: Metric) -> list[str]:
    return sorted({label for sample in family.samples for label in sample.labels} - {"le"})
