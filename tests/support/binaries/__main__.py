"""Finds or builds all of them, and prints where they are.

What lives here: the command behind `.ci/go-binaries`. What may not: anything outside the
standard library.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from tests.support.binaries import natscli
from tests.support.binaries.building import BuildFailed, say
from tests.support.binaries.finding import ensure
from tests.support.kube import build as kubernetes


def _on_term(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    """Goes on with the next where one can't be had; then the code is 1."""
    signal.signal(signal.SIGTERM, _on_term)
    code = 0
    for recipe in (natscli.RECIPE, kubernetes.RECIPE):  # the quick one first
        try:
            found = ensure(recipe)
        except BuildFailed as error:
            say(sys.stderr, recipe.title, str(error))
            code = 1
            continue
        for name, path in found.items():
            sys.stdout.write(f"{name}\t{path}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
