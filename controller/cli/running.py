"""How a command runs: one loop, one client, one exit code.

What lives here: the exit codes and the way from an error to one. What may not: what any
command does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from controller.cli.options import Output

if TYPE_CHECKING:
    from events.errors import SlotbusError

T = TypeVar("T")

DONE: Final = 0
REFUSED: Final = 1
MISUSED: Final = 2
UNREACHED: Final = 3
UNFINISHED: Final = 4
INTERRUPTED: Final = 130

_MISNAMED: Final = frozenset(
    {
        *(errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO),
    }
)
"""The caller named a file that is not there, is there already, or is not theirs to use."""

_BY_CODE: Final = {
    "unreachable": UNREACHED,
    "no_controller": UNREACHED,
    "not_leader": UNREACHED,
    "denied": UNREACHED,
    "timeout": UNFINISHED,
}


def exit_code_of(error_code: str) -> int:
    """How a command ends that was answered with this error."""
    return _BY_CODE.get(error_code, REFUSED)


@contextlib.contextmanager
def reported(output: Output = Output.TABLE) -> Generator[None]:
    """Turns what can go wrong in a command into its message and exit code."""
    from controller.cli.output import error_line, write_body
    from events.codec import encode
    from events.errors import SlotbusError

    try:
        yield
    except UsageProblem as problem:
        error_line(problem.error)
        raise typer.Exit(MISUSED) from problem
    except SlotbusError as error:
        if output is Output.JSON:
            write_body(encode(error.body()))
        error_line(error)
        raise typer.Exit(exit_code_of(error.code)) from error
    except BrokenPipeError as error:
        # Who read us has left (`| head`). Nothing may be flushed to it at exit any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(DONE) from error
    except OSError as error:
        told = _of_system(error)
        if output is Output.JSON and error.filename is not None:
            write_body(encode(told.body()))
        error_line(told)
        raise typer.Exit(MISUSED if error.errno in _MISNAMED else REFUSED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error


def _of_system(error: OSError) -> SlotbusError:
    """What the system has against a file that was named, or against what is to be printed."""
    from events.errors import Internal, Invalid

    why = error.strerror or str(error)
    if error.filename is None:
        return Internal(f"what was to be written can't be: {why}")
    if error.errno in _MISNAMED:
        return Invalid(f"{error.filename} can't be used: {why}", source=str(error.filename))
    return Internal(f"{error.filename} can't be used: {why}", source=str(error.filename))


class UsageProblem(Exception):
    """The command line or a file it names is wrong; ``error`` says what."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def as_usage() -> Generator[None]:
    """What is invalid in here is the caller's mistake, not a leader's refusal."""
    from events.errors import Invalid, TooLarge

    try:
        yield
    except (Invalid, TooLarge) as error:
        raise UsageProblem(error) from error


def run_program(program: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Runs a program until it ends. The first TERM or INT sets the event that it was
    given; another one cancels it."""

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        task = asyncio.current_task()
        assert task is not None

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        await program(stop)

    _run(main)


def run_conversation(conversation: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs it to its end. INT cancels it, another one breaks off its end."""

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def on_signal() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            task.cancel()

        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGINT, on_signal)
        return await conversation()

    return _run(main)


def _run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # Until the loop has its handlers INT ends the process at once (``controller.entry``): there
    # is nothing to end in order yet, and a coroutine that was made is not left behind.
    try:
        return asyncio.run(main())
    except asyncio.CancelledError as error:
        raise typer.Exit(INTERRUPTED) from error
