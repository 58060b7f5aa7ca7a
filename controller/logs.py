"""How slotbus's programs log: lines of JSON for machines, columns for a terminal.

What lives here: the set-up of structlog and of the standard library's logging, through
which nats-py, aiohttp and asyncio speak. What may not: log lines themselves, and the event
log, which is another thing altogether.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal, TextIO

import structlog
from structlog.typing import Processor

from controller.colours import shows_colours

LogFormat = Literal["auto", "json", "console"]

_QUIET: Final = {"aiohttp.access": logging.WARNING, "asyncio": logging.WARNING}


def setup_logging(
    level: str = "info", log_format: LogFormat = "auto", stream: TextIO | None = None
) -> None:
    """Sends everything at ``level`` or above to ``stream`` (standard error).

    ``auto`` writes columns to a terminal and JSON to everything else. Safe to repeat: the
    last call wins.
    """
    out = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(log_format, out),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))


def _renderers(log_format: LogFormat, out: TextIO) -> list[Processor]:
    if log_format == "console" or (log_format == "auto" and out.isatty()):
        plain = structlog.dev.plain_traceback  # the other one shows locals, secrets among them
        colours = shows_colours(out)
        return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
