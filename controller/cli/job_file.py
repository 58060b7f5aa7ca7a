"""A start request from arguments and files, with every mistake named.

What lives here: reading job files and the small languages of options (``K=V``, ``@FILE``,
times).
What may not: talking to anyone.
"""

from __future__ import annotations

import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from events.codec import convert, unknown_fields, why_unreadable
from events.errors import Invalid
from events.messages import StartPipelineReq
from events.waits import wait_for_start

MAX_FILE_BYTES = 4 * 1024 * 1024
"""More than any program that is allowed; spares us reading a disk by mistake."""


class StartArguments(Struct, kw_only=True, frozen=True):
    """What the command line says; None and empty mean that it says nothing."""

    job_id: str | None = None
    file: Path | None = None
    slots: int | None = None
    name: str | None = None
    run_id: int | None = None
    env: list[str] = []
    program: str | None = None
    wasm_path: str | None = None
    hash: str | None = None
    command: list[str] = []
    selector: list[str] = []
    spread: str | None = None
    stop_after_s: float | None = None
    on_shortage: str | None = None
    priority: int | None = None
    not_after: str | None = None
    on_failure: str | None = None
    on_lost: str | None = None
    on_drain: str | None = None
    restart: dict[str, float | None] = {}
    wait_s: float | None = None
    command_id: str | None = None


SIMPLE: Final = (
    *("job_id", "slots", "name", "run_id", "wasm_path", "hash"),
    *("on_shortage", "priority", "on_failure", "on_lost", "on_drain", "wait_s", "command_id"),
)
"""Fields that the command line says as they are."""


def build_start(arguments: StartArguments) -> StartPipelineReq:
    """The request; the command line wins over the file. Raises Invalid, TooLarge."""
    tree = read_job_file(arguments.file) if arguments.file else {}
    for name in SIMPLE:
        value = getattr(arguments, name)
        if value is not None:
            tree[name] = value
    if arguments.program is not None:
        tree["program"] = read_program(arguments.program)
    if arguments.env:
        tree["env_vars"] = {**_table(tree, "env_vars"), **pairs(arguments.env, "--env")}
    if arguments.not_after is not None:
        tree["not_after"] = moment(arguments.not_after, "--not-after")
    restart = {name: value for name, value in arguments.restart.items() if value is not None}
    if restart:
        tree["restart"] = {**_table(tree, "restart"), **restart}
    scheduler = _scheduler_config(arguments)
    if scheduler:
        tree["scheduler_config"] = {**_table(tree, "scheduler_config"), **scheduler}
    for name, how in (("job_id", "JOB"), ("slots", "--slots N")):
        if name not in tree:
            raise Invalid(f"{name} is needed: say {how}, or give it in a file", path=f"$.{name}")
    return convert({"wait_s": wait_for_start(), **tree}, StartPipelineReq)


def _scheduler_config(arguments: StartArguments) -> dict[str, object]:
    given: dict[str, object] = {
        "command": arguments.command or None,
        "selector": pairs(arguments.selector, "--selector") or None,
        "spread": arguments.spread,
        "stop_after_s": arguments.stop_after_s,
    }
    return {name: value for name, value in given.items() if value is not None}


def moment(text: str, option: str) -> datetime:
    """A time with its zone, or seconds from now. Raises Invalid."""
    try:
        return datetime.now(UTC) + timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise Invalid(
            f"{option} {text!r} is no number of seconds and no time like 2026-01-31T12:00:00Z",
            path=option,
        )
    return found


def _table(tree: dict[str, Any], name: str) -> dict[str, Any]:
    value = tree.get(name, {})
    if not isinstance(value, dict):
        raise Invalid(f"expected an object, got {value!r}", path=f"$.{name}")
    return value


def read_job_file(path: Path) -> dict[str, Any]:
    """The fields of a job file: JSON where it is named so, else TOML. Raises Invalid."""
    text = _read(path)
    try:
        tree = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise Invalid(f"{path} is not {kind}: {why_unreadable(error)}", source=str(path)) from error
    if not isinstance(tree, dict):
        raise Invalid(f"{path} holds no object", source=str(path))
    for at, near in unknown_fields(tree, StartPipelineReq):
        name = at.removeprefix("$.")
        hint = f", did you mean {near}?" if near else ""
        raise Invalid(f"{path}: there is no field {name!r}{hint}", path=at, source=str(path))
    return tree


def read_program(text: str) -> Any:
    """``@FILE``, ``@-`` (standard input) or JSON itself. Raises Invalid."""
    source = "--program"
    if text.startswith("@"):
        source = "standard input" if text == "@-" else text[1:]
        text = (
            _limited(sys.stdin.read(MAX_FILE_BYTES + 1), source)
            if text == "@-"
            else _read(Path(source))
        )
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        hint = "" if source != "--program" else "; a file is given as @FILE"
        text = f"{source} is not JSON: {why_unreadable(error)}{hint}"
        raise Invalid(text, path="$.program") from error


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return _limited(file.read(MAX_FILE_BYTES + 1), str(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise Invalid(f"{path} can't be read: {reason}", source=str(path)) from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not UTF-8: {error}", source=str(path)) from error
    except ValueError as error:  # a null byte
        raise Invalid(f"{str(path)!r} is no name of a file: {error}", source=str(path)) from error


def _limited(text: str, source: str) -> str:
    if len(text) > MAX_FILE_BYTES:
        raise Invalid(f"{source} is larger than {MAX_FILE_BYTES} bytes", source=source)
    return text


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """Repeated ``K=V`` as a mapping. Raises Invalid."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Invalid(f"{option} {text!r} is not K=V", path=option)
        found[key] = value
    return found
