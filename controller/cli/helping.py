"""How help looks, where that is not as typer does it.

What lives here: the kinds of commands that ``controller.cli.main`` is made of. What may not:
any command, and anything heavy at the top; see ``controller.cli``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from controller.cli.start import AFTER_DASHES


def _flowing(text: str | None) -> str | None:
    """Paragraphs that are folded where the terminal ends, not where the source's lines do; what
    is indented stays as it is."""
    if text is None:
        return None
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part[:1] == " " else " ".join(part.split()) for part in parts)


def _flags_alone(params: list[Any]) -> list[Any]:
    """Without the type of a flag, which has no value to be of it."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag and param.metavar is None:
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = _flowing(self.help)

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        return _flags_alone(super().get_params(ctx))


class WithCommand(Command):
    """A command whose arguments after ``--`` are another program's, untouched."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if "--" in args:
            at = args.index("--")
            ctx.meta[AFTER_DASHES] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """All commands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = _flowing(self.help)

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        return _flags_alone(super().get_params(ctx))


class App(typer.Typer):
    """A typer whose commands are of these kinds."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(cls=Group, **kwargs)

    def command(self, name: str | None = None, **kwargs: Any) -> Callable[..., Any]:
        kwargs.setdefault("cls", Command)
        return super().command(name, **kwargs)
