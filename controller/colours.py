"""Whether a stream gets colours.

What lives here: that decision, the same for tables and logs. What may not: any colour.
"""

from __future__ import annotations

import os
from typing import TextIO


def shows_colours(stream: TextIO) -> bool:
    """NO_COLOR forbids them, FORCE_COLOR wants them in a pipe too; else terminals that can."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"
