"""What a recording comes to, as one line: ``python -m tests.golden.replayed FILE [TIME]``.

With a time (ISO 8601, of a day long ago or to come) every clock that slotbus could ask says so.
"""

from __future__ import annotations

import datetime as dates
import hashlib
import sys
import time
from pathlib import Path
from typing import Any, Self

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


def pretend(wall: dates.datetime) -> None:
    """From here on it is another time, for all that was imported."""

    class Likewise(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, dates.datetime)

    class Other(dates.datetime, metaclass=Likewise):
        @classmethod
        def now(cls, tz: dates.tzinfo | None = None) -> Self:
            return cls.fromtimestamp(wall.timestamp(), tz)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.fromtimestamp(wall.timestamp(), dates.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Self:
            return cls.now()

    seconds = wall.timestamp()
    replaced: dict[object, Any] = {
        dates.datetime: Other,
        time.time: lambda: seconds,
        time.time_ns: lambda: int(seconds * 1e9),
        time.monotonic: lambda: seconds,
        time.perf_counter: lambda: seconds,
    }
    ours = ("events", "schedulers")
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] in ours]
    for module in [*modules, time]:
        for name, value in list(vars(module).items()):
            if callable(value) and value in replaced:
                setattr(module, name, replaced[value])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        digest(Path(sys.argv[1]))  # decoders are made from the types as they are now
        pretend(dates.datetime.fromisoformat(sys.argv[2]))
    sys.stdout.write(digest(Path(sys.argv[1])) + "\n")
