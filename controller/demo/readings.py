"""The readings that the feeder sends: one day at a small dairy, as packaged data.

What lives here: the data file and which reading has which sequence number. What may not:
sending them, and clocks: the time of the first reading is an argument.

`data/readings.csv` has one row for every five minutes of a day and one column a sensor, in
degrees Celsius. It was made up for this demo to have the shape of the real thing: the sun
warms the yard, the herd the barn; warm milk comes into the tank twice a day; the cold store's
door is opened during working hours; the boiler switches between two limits. The day is played
fast and over and over.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from controller.demo.windows import Reading

DATA = "data/readings.csv"


@dataclass(frozen=True)
class Day:
    """The packaged day: a name for each column, and its rows."""

    sensors: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]


@cache
def load_day() -> Day:
    """Reads the packaged data, once."""
    text = files("controller.demo").joinpath(DATA).read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    return Day(tuple(header[1:]), tuple(tuple(float(cell) for cell in row[1:]) for row in rows))


def reading(seq: int, first_at_ms: int, rate: float) -> Reading:
    """The reading with this sequence number (from 1) of a feed that sends `rate` readings a
    second and whose first one was measured at `first_at_ms`."""
    day = load_day()
    row, column = divmod(seq - 1, len(day.sensors))
    return Reading(
        seq=seq,
        sensor=day.sensors[column],
        at_ms=first_at_ms + int((seq - 1) * 1000 / rate),
        celsius=day.rows[row % len(day.rows)][column],
    )
