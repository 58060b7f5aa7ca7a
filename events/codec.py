"""Bytes to messages and back, with errors that carry the path of the field.

What lives here: decoding, the checks that need more than a type, names of unknown fields
and the canonical forms that hashes are made of. What may not: which subject a message
came from, and any state.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from events.errors import Fact, Invalid, SlotbusError, TooLarge, error_from_wire
from events.ids import (
    ENV_NAME_RE,
    MAX_ENV_BYTES,
    MAX_LABELS_BYTES,
    MAX_NODE_TEXT,
    MAX_POD_OPTIONS_BYTES,
    MAX_PROGRAM_BYTES,
    MAX_PROGRAM_DEPTH,
    RESERVED_ENV_PREFIX,
)
from events.messages import KubernetesOptions, Message, StartPipelineReq
from events.paths import mistake
from events.traffic import RegisterNodeReq

M = TypeVar("M", bound=msgspec.Struct)

_ENCODER: Final = msgspec.json.Encoder()
_SORTED: Final = msgspec.json.Encoder(order="sorted")
_MAX_WARNINGS: Final = 20
_SELECTOR: Final = "$.scheduler_config.selector"


_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {}


def _decoder(kind: type[M]) -> msgspec.json.Decoder[M]:
    """One decoder per kind of message; there are as many kinds as classes."""
    if kind not in _DECODERS:
        _DECODERS[kind] = msgspec.json.Decoder(kind)
    return _DECODERS[kind]


def decode(body: bytes, kind: type[M]) -> M:
    """Reads a message; an empty body is ``{}``. Unknown fields are ignored.

    Raises Invalid with the ``path`` of the field, and TooLarge for a part over its limit.
    """
    try:
        message = _decoder(kind).decode(body or b"{}")
    except msgspec.ValidationError as error:
        text, path = mistake(error, _parsed(body), kind)
        raise Invalid(text, path=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Invalid(f"not JSON that can be read: {error}") from error
    check(message)
    return message


def _parsed(body: bytes) -> object:
    """The value; None where only a part of it is JSON at all."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def decode_with(body: bytes, kind: type[M], **known: str) -> M:
    """Like ``decode``, for messages whose subject says part of it (``node_id``).

    A field in the body that says otherwise is Invalid.
    """
    try:
        tree = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Invalid(f"not JSON that can be read: {error}") from error
    if not isinstance(tree, dict):
        raise Invalid("expected an object")
    for name, value in known.items():
        if tree.setdefault(name, value) != value:
            raise Invalid(f"the body says {tree[name]!r}, the subject {value!r}", path=f"$.{name}")
    return convert(tree, kind)


def why_unreadable(error: Exception) -> str:
    """What a parser has against a text, in words about the text."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if "integer string conversion" in str(error):
        return "a number has too many digits"
    return str(error)


def convert(tree: object, kind: type[M]) -> M:
    """Like ``decode``, from values that are already parsed, perhaps not from JSON. Raises
    Invalid, TooLarge."""
    try:
        message = msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        text, path = mistake(error, tree, kind)
        raise Invalid(text, path=path) from error
    except RecursionError as error:
        raise Invalid("nested too deeply") from error
    try:
        check(message)
        if isinstance(message, StartPipelineReq):
            _check_finite(message.program)
    except UnicodeEncodeError as error:
        raise Invalid(f"{error.object!r} is no text: it can't be UTF-8") from error
    return message


def check(message: msgspec.Struct) -> None:
    """The rules that a type can't say. Raises Invalid, TooLarge."""
    if isinstance(message, RegisterNodeReq):
        _check_size(message.labels, "$.labels", MAX_LABELS_BYTES)
        for name in ("machine_id", "addr", "version"):
            _check_size({"": getattr(message, name)}, f"$.{name}", MAX_NODE_TEXT)
    if isinstance(message, StartPipelineReq):
        _check_size(message.scheduler_config.selector, _SELECTOR, MAX_LABELS_BYTES)
        _check_env(message.env_vars)
        _check_texts(message)
        _check_pods(message.scheduler_config.kubernetes)
        if _is_deeper(message.program, MAX_PROGRAM_DEPTH):
            raise Invalid(f"nested deeper than {MAX_PROGRAM_DEPTH} levels", path="$.program")
        size = len(_ENCODER.encode(message.program))
        if size > MAX_PROGRAM_BYTES:
            raise TooLarge(
                f"the program has {size} bytes of JSON, {MAX_PROGRAM_BYTES} are allowed: "
                "store it elsewhere and pass its address",
                path="$.program",
                limit=MAX_PROGRAM_BYTES,
                unit="bytes",
            )


def _check_size(texts: dict[str, str], path: str, limit: int) -> None:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in texts.items())
    if size > limit:
        raise TooLarge(f"{size} bytes, {limit} are allowed", path=path, limit=limit, unit="bytes")


def _is_deeper(value: object, limit: int) -> bool:
    """Whether a JSON value has more than ``limit`` levels; asks level by level, so that no
    depth can exhaust the stack."""
    level = [value]
    for _ in range(limit):
        level = [inner for inner in _inside(level) if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def _inside(level: list[object]) -> Iterator[object]:
    """The values that the lists and objects of a level hold."""
    for outer in level:
        if isinstance(outer, dict):
            yield from outer.values()
        elif isinstance(outer, list):
            yield from outer


def _check_finite(program: object) -> None:
    """JSON has no NaN and no infinity, other formats do."""
    level = [program]
    while level:
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            raise Invalid("JSON knows no NaN and no infinity", path="$.program")
        level = list(_inside(level))


def _check_env(env_vars: dict[str, str]) -> None:
    total = 0
    for name, value in env_vars.items():
        path = f"$.env_vars[{name!r}]"
        if not ENV_NAME_RE.match(name):
            raise Invalid(f"{name!r} is not a name of letters, digits and _", path=path)
        if name.startswith(RESERVED_ENV_PREFIX):
            raise Invalid(f"names that start with {RESERVED_ENV_PREFIX} are reserved", path=path)
        if "\0" in value:
            raise Invalid("a value can't hold a null byte", path=path)
        total += len(name.encode()) + len(value.encode())
    if total > MAX_ENV_BYTES:
        raise TooLarge(
            f"env_vars have {total} bytes, {MAX_ENV_BYTES} are allowed",
            path="$.env_vars",
            limit=MAX_ENV_BYTES,
            unit="bytes",
        )


def _check_pods(options: KubernetesOptions) -> None:
    """Only what the log must be able to hold; the rest is the Kubernetes backend's."""
    path = "$.scheduler_config.kubernetes"
    for name in ("tolerations", "pod_template"):
        if _is_deeper(getattr(options, name), MAX_PROGRAM_DEPTH):
            raise Invalid(f"nested deeper than {MAX_PROGRAM_DEPTH} levels", path=f"{path}.{name}")
    size = len(_ENCODER.encode(options))
    if size > MAX_POD_OPTIONS_BYTES:
        raise TooLarge(
            f"{size} bytes of JSON, {MAX_POD_OPTIONS_BYTES} are allowed",
            path=path,
            limit=MAX_POD_OPTIONS_BYTES,
            unit="bytes",
        )


def _check_texts(message: StartPipelineReq) -> None:
    """Texts that become environment values of the worker, or its argument vector."""
    command = message.scheduler_config.command
    texts = {"$.name": message.name, "$.hash": message.hash, "$.wasm_path": message.wasm_path}
    for index, word in enumerate(command if isinstance(command, list) else [command or ""]):
        texts[f"$.scheduler_config.command[{index}]"] = word
    for path, text in texts.items():
        if "\0" in text:
            raise Invalid("a null byte can't be passed to a worker", path=path)
        if len(text.encode()) > MAX_ENV_BYTES:
            raise TooLarge(
                f"longer than {MAX_ENV_BYTES} bytes", path=path, limit=MAX_ENV_BYTES, unit="bytes"
            )


def encode(message: msgspec.Struct | dict[str, Any]) -> bytes:
    """The JSON body of a message."""
    return _ENCODER.encode(message)


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces: the same value gives the same bytes."""
    return _SORTED.encode(value)


def content_hash(program: object) -> str:
    """Hex SHA-256 of a program's canonical JSON."""
    return hashlib.sha256(canonical(program)).hexdigest()


_NOT_COMPARED: Final = ("command_id", "wait_s")


def body_digest(message: msgspec.Struct) -> str:
    """Hex SHA-256 of a command without what may differ when it is repeated, and without what
    it leaves open: a version that knows more fields finds the same."""
    tree = {
        field.encode_name: msgspec.to_builtins(getattr(message, field.name))
        for field in _fields(type(message)).values()
        if field.name not in _NOT_COMPARED and getattr(message, field.name) != field.default
    }
    return hashlib.sha256(canonical(tree)).hexdigest()


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """By the name on the wire. Looked up once a kind: it evaluates every annotation, which
    takes twice as long as deciding on a command."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def warnings_for(body: bytes, kind: type[Message]) -> list[str]:
    """A sentence for each field of a body that ``kind`` does not know, with the nearest
    known one. The body is one that ``decode`` took."""
    return [
        f"unknown field {path}" + (f", did you mean {near}?" if near else "")
        for path, near in unknown_fields(msgspec.json.decode(body or b"{}"), kind)
    ][:_MAX_WARNINGS]


def unknown_fields(
    tree: object, kind: type[msgspec.Struct], at: str = "$"
) -> list[tuple[str, str]]:
    """Path and nearest known name (or "") of each unknown field, also in nested structs."""
    if not isinstance(tree, dict):
        return []
    known = _fields(kind)
    found: list[tuple[str, str]] = []
    for name, value in tree.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            found.append((f"{at}.{name}", near[0] if near else ""))
            continue
        inner = known[name].type
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            found.extend(unknown_fields(value, inner, f"{at}.{name}"))
    return found


class _ErrorBody(msgspec.Struct):
    error: dict[str, Any]


def error_from_body(body: bytes) -> SlotbusError | None:
    """The error that a reply's body holds, or None where the body is not an error's."""
    try:
        fields = msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    code, message = str(fields.pop("code", "internal")), str(fields.pop("message", ""))
    facts: dict[str, Fact] = fields
    return error_from_wire(code, message, facts)
