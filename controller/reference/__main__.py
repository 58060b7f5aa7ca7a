"""``python -m controller.reference FOLDER``: writes the pages of the reference.

What lives here: which page is in which file. What may not: what is on a page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller.reference.log import events_page
from controller.reference.programs import cli_page, configuration_page, metrics_page
from controller.reference.recordings import recordings_page
from controller.reference.wire import errors_page, messages_page, subjects_page

NOTE: Final = "<!-- Made from the code by `make docs`; a test fails where it is stale. -->"

PAGES: Final[dict[str, Callable[[], str]]] = {
    "cli.md": cli_page,
    "configuration.md": configuration_page,
    "subjects.md": subjects_page,
    "messages.md": messages_page,
    "events.md": events_page,
    "recordings.md": recordings_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
}


def rendered(page: str) -> str:
    """The text of a page's file."""
    return f"{NOTE}\n\n{PAGES[page]()}\n"


def main(folder: Path) -> None:
    """Writes every page."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (folder / page).write_text(rendered(page), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
