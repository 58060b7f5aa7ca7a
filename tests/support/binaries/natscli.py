"""The recipe of the nats command line, which users have at hand and the tests run.

What lives here: its version and how it is built. What may not: anything outside the standard
library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TextIO

from tests.support.binaries.building import GO_OLDEST
from tests.support.binaries.finding import Recipe, Target, ensure

NATS_CLI: Final = "v0.5.0"
PACKAGE: Final = "github.com/nats-io/natscli"

RECIPE: Final = Recipe(
    title="nats-cli",
    kept_as=f"natscli-{NATS_CLI}",
    go_mod=(
        f"module build\n\ngo {GO_OLDEST[0]}.{GO_OLDEST[1]}.0\n\nrequire {PACKAGE} {NATS_CLI}\n"
    ),
    ldflags=("-s", "-w", f"-X=main.version={NATS_CLI}"),
    targets=(Target("nats", f"{PACKAGE}/nats", "TEST_ASSET_NATS", (0, 2)),),
)


def ensure_nats(out: TextIO | None = None) -> Path:
    """The program, built first where it is missing.

    Raises Unavailable where the machine can't, BuildFailed for everything else.
    """
    return ensure(RECIPE, out)["nats"]
