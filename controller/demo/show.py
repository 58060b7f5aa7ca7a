"""What a spectator of the demo sees: steps, events, results, and the list of promises.

What lives here: printing, also into a pipe, and remembering which promises held. What may not:
knowing what the demo does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from events.queries import NodeRow

PLAIN_WIDTH: Final = 120
"""Columns where the output is no terminal."""


class Promise(Struct, frozen=True):
    """Something the demo claims, and whether it was so."""

    text: str
    held: bool
    detail: str = ""


class Show:
    """The demo's voice. `clock` in seconds."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.promises: list[Promise] = []
        self._console = console or _console()
        self._clock = clock
        self._began = clock()
        self._steps = 0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began

    def step(self, title: str) -> None:
        self._steps += 1
        self._console.print()
        self._console.print(f"[bold]{self._steps}. {escape(title)}[/bold]")

    def say(self, text: str) -> None:
        self._line("", text)

    def event(self, position: int, text: str) -> None:
        self._line(f"event {position}", text, "dim")

    def result(self, text: str) -> None:
        self._line("results", text, "cyan")

    def check(self, text: str, held: bool, detail: str = "") -> bool:
        """Remembers a promise, says whether it held, and returns that."""
        self.promises.append(Promise(text, held, detail))
        self._promise(self.promises[-1])
        return held

    def nodes(self, rows: Iterable[NodeRow]) -> None:
        table = Table("node", "state", "slots", "free", "held", box=None, padding=(0, 2))
        for row in rows:
            numbers = (row.registered_slots, row.free_slots, row.scheduled_slots)
            table.add_row(row.node_id, str(row.state), *(str(number) for number in numbers))
        self._console.print(table)

    def table(self, header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        table = Table(*header, box=None, padding=(0, 2))
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        self._console.print(table)

    def checklist(self) -> bool:
        """Prints every promise again; returns whether all held (and there were any)."""
        for promise in self.promises:
            self._promise(promise)
        failed = [promise for promise in self.promises if not promise.held]
        held = bool(self.promises) and not failed
        self._console.print()
        verdict = "all promises held" if held else f"promises not held: {len(failed)}"
        style = "bold green" if held else "bold red"
        total = f"{len(self.promises)} checked in {self.elapsed_s:.0f} s"
        self._console.print(f"[{style}]{verdict}[/{style}] ({total})")
        return held

    def _line(self, label: str, text: str, style: str = "") -> None:
        opened, closed = (f"[{style}]", f"[/{style}]") if style else ("", "")
        said = f"{self.elapsed_s:5.1f} s  {label:<9} {text}".rstrip()
        self._console.print(f"{opened}{escape(said)}{closed}", soft_wrap=True)

    def _promise(self, promise: Promise) -> None:
        mark = "[green]held[/green]  " if promise.held else "[bold red]BROKEN[/bold red]"
        detail = f" ({promise.detail})" if promise.detail else ""
        self._console.print(f"  {mark}  {escape(promise.text + detail)}", soft_wrap=True)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)
