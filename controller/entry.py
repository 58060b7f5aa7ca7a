"""The console entry: what runs before anything of ours is imported.

The import name `events` is also that of the PyPI distribution `Events`, which overwrites our
`events/__init__.py`. So this module looks at who owns the name before it lets anything import
it, and says in one sentence what to do. It imports nothing of the project at module level and
nothing slow, because `slotbus --help` waits for it, and so does Ctrl-C.
"""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False  # that of `typing` takes as long to import as all the rest here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path

DISTRIBUTION = "slotbus"
EXIT_MISUSE = 2
"""Exit code of a call that can't work as it was made, as in argparse and click."""

_MARKER = "ids.py"
"""A module that our `events` has and others don't."""


def foreign_events(spec: ModuleSpec | None, home: Path) -> str | None:
    """Where the import name `events` leads when it isn't to ours, else None.

    `spec` is what Python would import; `home` is the folder that holds our packages.
    """
    from pathlib import Path

    if spec is None:
        return "nowhere"
    if spec.origin is None:
        return "a folder without __init__.py"
    init = Path(spec.origin)
    ours = (home / "events").resolve()
    if init.name != "__init__.py" or init.parent.resolve() != ours:
        return spec.origin
    if not (ours / _MARKER).is_file() or init.stat().st_size > 0:
        return spec.origin
    return None


def explain(owner: str) -> str:
    """The sentence for a user whose `events` is not ours."""
    return (
        f"slotbus: the import name 'events' leads to {owner}, which is not slotbus's own package;"
        " install slotbus in a virtual environment without the distribution 'Events' and without"
        " another 'events' on PYTHONPATH (here: 'pip uninstall Events', then"
        " 'pip install --force-reinstall --no-deps slotbus')."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; `argv` is without the program's name. Returns the exit code.

    Raises SystemExit where the command line itself ends the process.
    """
    if argv is None:
        _end_at_once_when_interrupted()
    from importlib import import_module
    from importlib.machinery import PathFinder
    from pathlib import Path

    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        sys.stdout.write(f"{DISTRIBUTION} {_version()}\n")
        return 0
    # Not importlib.util.find_spec: it trusts sys.modules, and this asks what the path says.
    owner = foreign_events(PathFinder.find_spec("events"), Path(__file__).resolve().parent.parent)
    if owner is not None:
        sys.stderr.write(explain(owner) + "\n")
        return EXIT_MISUSE
    app = import_module("controller.cli.main").app
    app(args=arguments, prog_name=DISTRIBUTION)
    return 0


def _end_at_once_when_interrupted() -> None:
    """Until a command has something to end in order, Ctrl-C is no exception somewhere in the
    imports but an end without a word. Who started us with it ignored has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _version() -> str:
    from importlib.metadata import version  # slow to import, needed by this one option

    return version(DISTRIBUTION)


if __name__ == "__main__":
    sys.exit(main())
