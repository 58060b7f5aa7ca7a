"""What a recording comes to, as one line: ``python -m tests.golden.replayed FILE``."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from events.log import encode_record
from schedulers.files import replay_file


def digest(path: Path) -> str:
    """SHA-256 over all records, the ledger and the pulse."""
    played = replay_file(path)
    hashed = hashlib.sha256()
    for record in played.records:
        hashed.update(encode_record(record))
    hashed.update(played.ledger.snapshot())
    hashed.update(repr((list(played.pulse.beats.items()), played.pulse.due)).encode())
    return f"{len(played.records)} {hashed.hexdigest()}"


if __name__ == "__main__":
    sys.stdout.write(digest(Path(sys.argv[1])) + "\n")
