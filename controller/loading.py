"""Reading a program's configuration from wherever it is said.

What lives here: the one loader for every program's configuration, and the order of its
sources. What may not: what can be set (``controller.config``, ``schedulers.node.config``,
``controller.cli.finding``) and parsing of a command line.

A later source wins: defaults, a context of the nats command line, a TOML file, the variables
that the nats command line reads (``NATS_URL``), ours (``SLOTBUS_CFG_<NAME>``), flags.
"""

from __future__ import annotations

import difflib
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from events.codec import why_unreadable
from events.contexts import read_context, selected_context
from events.errors import Invalid

ENV_PREFIX: Final = "SLOTBUS_CFG_"
NATS_VARIABLES: Final = {
    "NATS_URL": "server",
    "NATS_CONTEXT": "context",
    "NATS_USER": "user",
    "NATS_PASSWORD": "password",
    "NATS_TOKEN": "token",
    "NATS_CREDS": "creds_file",
    "NATS_NKEY": "nkey_file",
    "NATS_CERT": "tls_cert",
    "NATS_KEY": "tls_key",
    "NATS_CA": "tls_ca",
}
"""What the nats command line reads, and the setting of ours that it fills."""

IDENTITY: Final = ("user", "token", "creds_file", "nkey_file")
"""Who we are comes from one source as a whole: a later one that gives any of these takes
away what earlier ones said of them, and their password."""

C = TypeVar("C", bound=Struct)
Setting = object
"""A value as its source gives it: text from the environment, a TOML value, a flag's."""

_Layer = tuple[str, dict[str, Setting]]


def load(
    kind: type[C],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Setting] | None = None,
    also_known: frozenset[str] = frozenset(),
    check: Callable[[C], None] | None = None,
    use_selected: bool = True,
) -> C:
    """Reads a configuration of flat fields; a flag that is None was not given.

    ``also_known``: names that other programs read from the environment; they share it, so
    their variables are no mistakes here. ``use_selected``: where no context is named, take
    the selected one. Raises Invalid with ``path`` (the setting) and ``source`` (where its
    value came from).
    """
    environ = environ or {}
    known = [field.name for field in msgspec.structs.fields(kind)]
    layers: list[_Layer] = [
        (str(file), _from_file(file)) if file else ("", {}),
        ("the environment", _from_nats(known, environ)),
        ("the environment", _from_environ(known, environ, also_known)),
        ("a flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ]
    if "context" in known:
        layers.insert(0, _from_context(layers, environ, use_selected=use_selected))
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    hints = get_type_hints(kind, include_extras=True)
    for source, settings in layers:
        if any(settings.get(name) for name in IDENTITY):
            for name in (*IDENTITY, "password"):
                values.pop(name, None)
        for name, value in settings.items():
            if name not in hints:
                raise _unknown(name, source, list(hints))
            values[name] = _read(value, hints[name], name, source)
            sources[name] = source
    config = _build(kind, values, sources)
    if check is not None:
        try:
            check(config)
        except Invalid as error:
            source = sources.get(error.path, "")
            raise Invalid(error.message, error.path, source=source) from error
    return config


def _build(kind: type[C], values: dict[str, object], sources: dict[str, str]) -> C:
    try:
        return kind(**values)
    except TypeError as error:
        missing = [
            field.name
            for field in msgspec.structs.fields(kind)
            if field.required and field.name not in values
        ]
        name = missing[0] if missing else "$"
        raise Invalid(
            f"{name} is needed: give --{name.replace('_', '-')} or {ENV_PREFIX}{name.upper()}",
            path=name,
            source=sources.get(name, ""),
        ) from error


def _from_file(file: Path) -> dict[str, Setting]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{file} can't be read: {error.strerror}", source=str(file)) from error
    except (RecursionError, ValueError) as error:
        text = f"{file} is not TOML: {why_unreadable(error)}"
        raise Invalid(text, source=str(file)) from error


def _from_context(
    layers: list[_Layer], environ: Mapping[str, str], *, use_selected: bool
) -> _Layer:
    """What the named or the selected context says. A name that was given and is empty means
    none at all."""
    named = [settings["context"] for _, settings in layers if "context" in settings]
    name = named[-1] if named else (selected_context(environ) if use_selected else "")
    if not name:
        return "", {}
    if not isinstance(name, str):
        raise Invalid(f"context is {name!r}, which is no name", path="context")
    context = read_context(name, environ)
    return f"context {context.name}", {**context.settings, "context": name}


def _from_nats(known: list[str], environ: Mapping[str, str]) -> dict[str, Setting]:
    return {
        name: environ[variable]
        for variable, name in NATS_VARIABLES.items()
        if name in known and environ.get(variable)
    }


def _from_environ(
    known: list[str], environ: Mapping[str, str], also_known: frozenset[str]
) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name in known:
            found[name] = value
        elif name not in also_known:
            near = difflib.get_close_matches(name, known, n=1)
            raise Invalid(
                f"{variable} sets nothing here"
                + (f", did you mean {ENV_PREFIX}{near[0].upper()}?" if near else ""),
                path=name,
                source="the environment",
            )
    return found


def _unknown(name: str, source: str, known: list[str]) -> Invalid:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    return Invalid(f"{source}: there is no setting {name!r}{hint}", path=name, source=source)


def _read(value: Setting, hint: object, name: str, source: str) -> object:
    """One setting as its field's type, from text too. Raises Invalid."""
    try:
        if isinstance(value, str):
            _check_text(value)
            value = _from_text(value, hint)
        elif isinstance(value, tuple):  # what command-line parsers give for repeated flags
            value = list(value)
        return msgspec.convert(value, hint, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at `")[0]
        raise Invalid(f"{name} from {source}: {text}", path=name, source=source) from error
    except ValueError as error:
        raise Invalid(f"{name} from {source}: {error}", path=name, source=source) from error


def _check_text(text: str) -> None:
    """What came as bytes that are no UTF-8, or can't be a name. Raises ValueError."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)):
        raise ValueError(f"{text!r} is no text")


def _from_text(text: str, hint: object) -> object:
    """Text for a list or a mapping: JSON, a shell's words, or ``k=v`` joined by commas.

    Raises ValueError.
    """
    origins = [get_origin(part) for part in (hint, *get_args(hint))]
    shape = next((origin for origin in origins if origin in (list, dict)), None)
    if shape is None:
        return text
    if text.lstrip().startswith("[" if shape is list else "{"):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not JSON that can be read: {why_unreadable(error)}") from error
    return shlex.split(text) if shape is list else parse_pairs(text)


def parse_pairs(text: str) -> dict[str, str]:
    """``zone=a,disk=ssd`` as a mapping. Raises ValueError."""
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, found, value = part.partition("=")
        if not found or not key:
            raise ValueError(f"{part!r} is not key=value")
        pairs[key] = value
    return pairs
